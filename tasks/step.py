"""One batch to one gradient: a pure function of parameters, batch and seed, used by child and worker alike."""

import errno
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tasks.batches import Batch, Encoded, Inputs
from tasks.encoders import Encoder
from tasks.heads import Head
from trunkline.errors import Reason, SpecError, TrainingFailed

PRECISIONS = ("float32", "bf16")


@dataclass(frozen=True, slots=True)
class Gradient:
    """Of one task's weighted loss on one batch. A tensor that the batch did not touch has no entry."""

    task: str
    loss: float  # mean over the samples, before the task's weight
    samples: int
    shared: dict[str, Tensor]  # by name in `Encoder.trainable()`
    head: dict[str, Tensor]  # by name in `Head.named_parameters()`


def gradient(
    encoder: Encoder,
    head: Head,
    batch: Batch,
    *,
    micro_batch: int | None = None,
    precision: str = "float32",
    seed: int = 0,
    head_alone: bool = False,
) -> Gradient:
    """The gradient of `head.spec.weight` times the mean loss of a batch.

    :param micro_batch: samples a forward pass; None: all at once. Parts weigh as their sizes, so the gradient is the same.
    :param precision: of the forward pass, one of PRECISIONS; gradients are always float32.
    :param seed: of dropout. The global random generators are left as they were.
    :param head_alone: leave the encoder as it is, and without dropout; there is a gradient of the head only.
    :raises SpecError: the head's loss cannot be taken in parts, or no such precision.
    :raises TrainingFailed: `not_finite`, `memory`, `training`.
    """
    if micro_batch is not None and micro_batch < batch.size and not head.divisible:
        raise SpecError(
            f"`micro_batch` should be at least the batch size {batch.size} for task {batch.task!r}, found {micro_batch}: "
            "each of its samples is compared with all others of the batch.",
            hint="Leave it out, or make the batch smaller.",
        )
    device = encoder.device
    batch = batch.to(device)
    shared = {} if head_alone else encoder.trainable()
    private = {name: p for name, p in head.named_parameters() if p.requires_grad}
    targets = [*shared.values(), *private.values()]
    names = [*shared, *private]
    total: list[Tensor | None] = [None] * len(targets)
    loss = 0.0
    _train_mode(head)
    encoder.eval() if head_alone else _train_mode(encoder)
    with _translated(batch), _seeded(seed, device):
        for piece in batch.pieces(micro_batch):
            share = piece.size / batch.size
            with _autocast(precision, device):
                value = head.loss([_encoded(encoder, side, head_alone) for side in piece.inputs], piece)
            loss += _finite(value, batch) * share
            if not targets:  # a head of no parameters, by itself
                continue
            found = torch.autograd.grad(_scaled(value, share * head.spec.weight), targets, allow_unused=True)
            total = [_sum(old, new) for old, new in zip(total, found, strict=True)]
    grads = [(name, tensor) for name, tensor in zip(names, total, strict=True)]
    return Gradient(
        task=batch.task,
        loss=loss,
        samples=batch.size,
        shared={name: tensor for name, tensor in grads[: len(shared)] if tensor is not None},
        head={name: tensor for name, tensor in grads[len(shared) :] if tensor is not None},
    )


def _train_mode(module: nn.Module) -> None:
    if not module.training:  # walking through all parts takes its time
        module.train()


def _encoded(encoder: Encoder, side: Inputs, alone: bool) -> Encoded:
    with torch.no_grad() if alone else nullcontext():
        return encoder(side)


def _scaled(loss: Tensor, factor: float) -> Tensor:
    return loss if factor == 1.0 else loss * factor


def _sum(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    if old is None or new is None:
        return old if new is None else new
    return old.add_(new)


def _finite(loss: Tensor, batch: Batch) -> float:
    value = loss.item()
    if not -float("inf") < value < float("inf"):
        raise TrainingFailed(
            Reason.NOT_FINITE,
            f"the loss of task {batch.task!r} should be finite, found {value}.",
            hint="A smaller learning rate, clipping, or float32 helps.",
        )
    return value


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed what dropout draws from, and give it back as it was."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed(seed)
        yield


def _autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    if precision not in PRECISIONS:
        raise SpecError(f"`precision` should be one of {', '.join(PRECISIONS)}, found {precision!r}.")
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()


def choose_precision(precision: str, device: torch.device) -> str:
    """What `auto` means on a device: bf16 where it is fast there, float32 elsewhere."""
    if precision != "auto":
        return precision
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "float32"


@contextmanager
def _translated(batch: Batch) -> Iterator[None]:
    """What torch says about a step, as our error."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if memory_ran_out(error):
            raise _out_of_memory(batch) from error
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TrainingFailed(Reason.TRAINING, f"a step of task {batch.task!r} should finish, found: {said}") from error


def memory_ran_out(error: Exception) -> bool:
    """Whether an error says that memory ran out: each library has its own way, and torch on a CPU has none but its words."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and ("can't allocate memory" in str(error) or "not enough memory" in str(error))


def _out_of_memory(batch: Batch) -> TrainingFailed:
    return TrainingFailed(
        Reason.MEMORY,
        f"a batch of {batch.size} samples of task {batch.task!r} should fit into memory, found that it does not.",
        hint="Set `micro_batch`, or a smaller `batch_size` or `max_length`.",
    )
