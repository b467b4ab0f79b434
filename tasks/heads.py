"""What a site puts on top of the shared encoder for one task: a loss, and predictions. Heads never leave their site.

Shapes: B samples, T tokens, H hidden, C labels. Every loss is a mean over samples, so that parts of a batch, weighted by their
sizes, sum to the loss of the batch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tasks import plugins
from tasks.batches import IGNORED, Batch, Encoded
from tasks.specs import TaskSpec
from trunkline.errors import SpecError


class Head(nn.Module):
    """The seam: a user's own head is one of these.

    :param spec: the task it serves.
    :param labels: its label names, in the order of its outputs.
    """

    divisible = True
    """Whether the loss of a batch is the sum of the losses of its parts; then a batch can be worked off in micro-batches."""

    def __init__(self, spec: TaskSpec, labels: tuple[str, ...]) -> None:
        super().__init__()
        self.spec, self.labels = spec, labels

    def forward(self, sides: Sequence[Encoded]) -> Tensor:
        """Raw outputs for a batch: logits, numbers or embeddings."""
        raise NotImplementedError

    def loss(self, sides: Sequence[Encoded], batch: Batch) -> Tensor:
        """Mean loss over the samples of a batch, a scalar."""
        raise NotImplementedError

    def predict(self, sides: Sequence[Encoded]) -> Tensor:
        """What the metric compares with `Batch.labels`: class numbers, 0/1 by label, or numbers; for pairs scores (B, B)."""
        raise NotImplementedError


class _Labels(Head):
    """A logit a label, from the vector of the whole sample."""

    def __init__(self, spec: TaskSpec, labels: tuple[str, ...], hidden: int) -> None:
        super().__init__(spec, labels)
        self.linear = _linear(hidden, len(labels))

    def forward(self, sides: Sequence[Encoded]) -> Tensor:
        return self.linear(sides[0].pooled)  # (B, C)


class Single(_Labels):
    """One label a sample: cross entropy."""

    def loss(self, sides: Sequence[Encoded], batch: Batch) -> Tensor:
        return functional.cross_entropy(self(sides), batch.labels)

    def predict(self, sides: Sequence[Encoded]) -> Tensor:
        return self(sides).argmax(-1)  # (B,)


class Multi(_Labels):
    """Any number of labels a sample: binary cross entropy, mean over labels."""

    def loss(self, sides: Sequence[Encoded], batch: Batch) -> Tensor:
        return functional.binary_cross_entropy_with_logits(self(sides), batch.labels)

    def predict(self, sides: Sequence[Encoded]) -> Tensor:
        return (self(sides) > 0).float()  # (B, C)


class Regression(Head):
    """A number a sample: squared error of the standardised target, so that the unit of the target does not matter.

    :param scale: mean and standard deviation of the training targets.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, spec: TaskSpec, hidden: int, scale: tuple[float, float]) -> None:
        super().__init__(spec, ())
        self.linear = _linear(hidden, 1)
        self.register_buffer("mean", torch.tensor(scale[0], dtype=torch.float32))
        self.register_buffer("deviation", torch.tensor(scale[1], dtype=torch.float32))

    def forward(self, sides: Sequence[Encoded]) -> Tensor:
        return self.linear(sides[0].pooled).squeeze(-1)  # (B,), standardised

    def loss(self, sides: Sequence[Encoded], batch: Batch) -> Tensor:
        return functional.mse_loss(self(sides), (batch.labels - self.mean) / self.deviation)

    def predict(self, sides: Sequence[Encoded]) -> Tensor:
        return self(sides) * self.deviation + self.mean  # (B,)


class Tokens(Head):
    """A label a token: cross entropy, mean over a sample's labelled tokens, then over samples."""

    def __init__(self, spec: TaskSpec, labels: tuple[str, ...], hidden: int) -> None:
        super().__init__(spec, labels)
        self.linear = _linear(hidden, len(labels))

    def forward(self, sides: Sequence[Encoded]) -> Tensor:
        tokens = sides[0].tokens
        if tokens is None:
            raise SpecError(f"task {self.spec.name!r} should have an encoder that reads tokens, found one that does not.")
        return self.linear(tokens)  # (B, T, C)

    def loss(self, sides: Sequence[Encoded], batch: Batch) -> Tensor:
        each = functional.cross_entropy(self(sides).transpose(1, 2), batch.labels, ignore_index=IGNORED, reduction="none")  # (B, T)
        labelled = (batch.labels != IGNORED).sum(1)  # (B,)
        return (each.sum(1) / labelled.clamp(min=1)).mean()

    def predict(self, sides: Sequence[Encoded]) -> Tensor:
        return self(sides).argmax(-1)  # (B, T)


class Pairs(Head):
    """Two sides that belong together: each finds its own among all of the batch, both ways (InfoNCE), with a learnt temperature."""

    divisible = False
    start, limit = 20.0, 100.0  # of the factor on the cosines

    def __init__(self, spec: TaskSpec) -> None:
        super().__init__(spec, ())
        self.log_scale = nn.Parameter(torch.tensor(self.start).log())

    def forward(self, sides: Sequence[Encoded]) -> Tensor:
        """Cosines of every first side (rows) with every second side (columns), (B, B)."""
        first, second = (functional.normalize(side.pooled.float(), dim=-1) for side in sides)
        return first @ second.T

    def loss(self, sides: Sequence[Encoded], batch: Batch) -> Tensor:
        scores = self(sides) * self.log_scale.exp().clamp(max=self.limit)
        own = torch.arange(batch.size, device=scores.device)
        return (functional.cross_entropy(scores, own) + functional.cross_entropy(scores.T, own)) / 2

    def predict(self, sides: Sequence[Encoded]) -> Tensor:
        return self(sides)


def _linear(hidden: int, outputs: int) -> nn.Linear:
    linear = nn.Linear(hidden, outputs)
    nn.init.normal_(linear.weight, std=0.02)
    nn.init.zeros_(linear.bias)
    return linear


def make_head(
    spec: TaskSpec,
    labels: tuple[str, ...],
    hidden: int,
    seed: int,
    *,
    scale: tuple[float, float] = (0.0, 1.0),
    modules: Sequence[Path] = (),
) -> Head:
    """A new head for a task; the same seed makes the same head.

    :param labels: `SampleTable.labels`.
    :param hidden: the encoder's.
    :param scale: `SampleTable.scale`: mean and deviation of a regression's training targets.
    :param modules: folders with a user's own head.
    :raises SpecError: a user's own head cannot be made.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if spec.custom_head is not None:
            return _own(spec, labels, hidden, modules)
        if spec.head == "regression":
            return Regression(spec, hidden, scale)
        if spec.head == "pairs":
            return Pairs(spec)
        return {"single": Single, "multi": Multi, "tokens": Tokens}[spec.head](spec, labels, hidden)


def _own(spec: TaskSpec, labels: tuple[str, ...], hidden: int, modules: Sequence[Path]) -> Head:
    kind: Any = plugins.load(spec.custom_head or "", modules, "trunkline.heads")
    try:
        head = kind(spec, labels, hidden)
    except Exception as error:
        raise SpecError(f"`{spec.custom_head}` should take (spec, labels, hidden), found {error!r}.") from error
    if not isinstance(head, Head):
        raise SpecError(f"`{spec.custom_head}` should make a tasks.heads.Head, found {type(head).__name__}.")
    return head
