"""What a store should come to, in plain loops: ordinary parameters, `torch.optim`, one optimiser for the encoder and one a head."""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from queues.store.store import Rows, Sent
from queues.stream.spec import Learning, StreamSpec

TASKS = ("mood", "topic")

SHAPES: Mapping[str, tuple[int, ...]] = {
    "shared/embedding": (2000, 40),  # more than one block
    "shared/bias": (40,),
    "shared/dense": (40, 33),
    "shared/scale": (),
    "head/mood/weight": (3, 40),
    "head/mood/bias": (3,),
    "head/topic/weight": (5, 40),
    "head/topic/bias": (5,),
}


def spec_of(learning: Mapping[str, object] | None = None, store: Mapping[str, object] | None = None) -> StreamSpec:
    """A stream of two tasks."""
    tasks = [{"name": name, "head": "single", "fields": ["text"], "label": "label", "labels": ["a", "b", "c"]} for name in TASKS]
    return StreamSpec.model_validate(
        {
            "name": "stream",
            "encoder": "tiny",
            "tasks": tasks,
            "learning": {"warmup_steps": 3, **(learning or {})},
            "store": store or {},
        },
        strict=False,
    )


def parameters(seed: int = 0, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> dict[str, nn.Parameter]:
    """As they begin."""
    random = torch.Generator().manual_seed(seed)
    return {name: nn.Parameter(torch.randn(shape, generator=random)) for name, shape in shapes.items()}


def sent(
    number: int, task: str, *, base: int | None = None, skip: Sequence[str] = (), rows: bool = False, size: float = 1.0
) -> Sent:
    """The gradient of batch `number`, computed on the step before its own, unless `base` says otherwise.

    :param rows: whether the embedding's is of a few rows.
    """
    random = torch.Generator().manual_seed(number)
    tensors: dict[str, Tensor | Rows] = {}
    for name, shape in SHAPES.items():
        if name in skip or not name.startswith(("shared/", f"head/{task}/")):
            continue
        tensors[name] = torch.randn(shape, generator=random) * size
        if rows and name == "shared/embedding":
            index = torch.randperm(shape[0], generator=random)[:37].sort().values
            tensors[name] = Rows(index, torch.randn(37, *shape[1:], generator=random) * size)
    return Sent(f"batch-{number}", 1, task, number if base is None else base, 8, 0.5, tensors)


def stream(count: int, **how: object) -> Iterator[Sent]:
    """Gradients of both tasks, some without one of the tensors."""
    for number in range(count):
        skip = ("shared/dense",) if number % 3 == 2 else ()
        yield sent(number, TASKS[number % 4 == 1], skip=skip, **how)  # type: ignore[arg-type]


class PlainStore:
    """Parameters and optimisers as anybody would write them."""

    def __init__(self, spec: StreamSpec, parameters: Mapping[str, nn.Parameter]) -> None:
        self.spec, self.learning, self.step = spec, spec.learning, 0
        self.parameters = {name: nn.Parameter(p.detach().clone()) for name, p in parameters.items()}
        groups = ["shared/", *(f"head/{task.name}/" for task in spec.tasks)]
        self.optimisers = {
            group: self._optimiser([p for n, p in self.parameters.items() if n.startswith(group)]) for group in groups
        }

    def _optimiser(self, values: list[nn.Parameter]) -> torch.optim.Optimizer:
        learning: Learning = self.learning
        if learning.optimizer == "sgd":
            return torch.optim.SGD(values, lr=1.0, momentum=learning.momentum)
        groups = [
            {"params": [p for p in values if p.ndim > 1], "weight_decay": learning.weight_decay},
            {"params": [p for p in values if p.ndim <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=1.0, betas=(learning.beta1, 0.999), fused=True)

    def share(self, staleness: int) -> float:
        """Of the learning rate."""
        learning, damping = self.learning, 1.0
        if self.spec.store.damping == "sqrt" and staleness:
            damping = math.sqrt(1 + staleness)
        if self.step < learning.warmup_steps:
            return (self.step + 1) / learning.warmup_steps / damping
        if learning.decay == "none":
            return 1.0 / damping
        assert learning.total_steps is not None
        return max(0.0, (learning.total_steps - self.step) / (learning.total_steps - learning.warmup_steps)) / damping

    def apply(self, gradients: tuple[Sent, ...], combined: Mapping[str, Tensor] | None = None) -> int:
        for gradient in gradients:
            for name, tensor in gradient.tensors.items():
                if combined is None or not name.startswith("shared/"):
                    self.parameters[name].grad = dense(tensor, self.parameters[name])
        for name, tensor in (combined or {}).items():
            self.parameters[name].grad = tensor.clone()
        if self.learning.clip_norm:
            nn.utils.clip_grad_norm_(self.parameters.values(), self.learning.clip_norm)
        share = self.share(max(self.step - gradient.base for gradient in gradients))
        for group, optimiser in self.optimisers.items():
            rate = self.learning.learning_rate if group == "shared/" else self.learning.head_learning_rate
            for entry in optimiser.param_groups:
                entry["lr"] = rate * share
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        return self.step

    def values(self) -> dict[str, Tensor]:
        """Copies of what it holds."""
        return {name: p.detach().clone() for name, p in self.parameters.items()}


def dense(tensor: Tensor | Rows, like: Tensor) -> Tensor:
    """Rows as a whole tensor, a copy of any other."""
    if not isinstance(tensor, Rows):
        return tensor.clone()
    whole = torch.zeros_like(like)
    for position, values in zip(tensor.index.tolist(), tensor.values, strict=True):
        whole[position] = values
    return whole


def read(reader: object) -> tuple[int, dict[str, Tensor]]:
    """All that a reader has, and its step."""
    into = {name: torch.full(shape, float("nan")) for name, shape in SHAPES.items()}
    return reader.read(into), into  # type: ignore[attr-defined]


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    """To the bit."""
    return left.keys() == right.keys() and all(
        left[name].contiguous().view(torch.int32).equal(right[name].contiguous().view(torch.int32)) for name in left
    )
