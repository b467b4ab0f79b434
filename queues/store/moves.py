"""How a gradient moves parameters: AdamW or SGD, one optimiser state a tensor, from one slot to another.

What a gradient has no entry for keeps its value and its moments bit for bit. AdamW is torch's fused kernel, called on parts of a
tensor that a cache holds: a part is copied from the old slot and moved while it is there, which saves reading it again. SGD has no
decay and writes from slot to slot. Both come to the bits that `torch.optim` comes to.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from queues.store.layout import SHARED, Layout, Slot
from queues.store.store import Rows, Sent
from queues.stream.spec import Learning, StreamSpec
from tasks.optimisers import AdamW, rate
from trunkline.errors import Conflict, Reason, RefusedValue

BLOCK = 1 << 18
"""Elements worked on at a time."""

Gradients = Mapping[str, Tensor | Rows]


@dataclass(frozen=True, slots=True)
class Step:
    """What one step moves, checked, and by how much."""

    gradients: Gradients  # in the order of the layout
    scale: Tensor | None  # () float32: what clipping multiplies by; None: nothing
    rates: tuple[float, float]  # of shared layers and of heads


class Mover:
    """The optimiser of a store. It keeps nothing but room to work in.

    :param layout: of both slots.
    """

    def __init__(self, spec: StreamSpec, layout: Layout) -> None:
        self._learning, self._damping = spec.learning, spec.store.damping
        self._layout = layout
        self._room = torch.empty(BLOCK)
        self._expanded: dict[str, tuple[Tensor, Tensor]] = {}  # zeros but for the rows at work, and which those are

    @torch.no_grad()
    def plan(self, gradients: tuple[Sent, ...], combined: Mapping[str, Tensor] | None, step: int) -> Step:
        """Check what moves the parameters of `step`.

        :raises RefusedValue: `names`, `shape`, `dtype`, `not_finite`.
        """
        found = _merged(gradients, combined)
        for name, tensor in found.items():
            _check(name, tensor, self._layout)
        ordered = {name: self._prepared(name, found[name]) for name in self._layout.shapes if name in found}
        norm = nn.utils.get_total_norm([g.values if isinstance(g, Rows) else g for g in ordered.values()])
        if not math.isfinite(norm.item()):
            raise RefusedValue(
                Reason.NOT_FINITE,
                f"a gradient of {', '.join(sent.task for sent in gradients)} should be finite, found a norm of {norm.item()}.",
                hint="A smaller learning rate, clipping, or float32 helps.",
            )
        share = rate(
            step,
            warmup_steps=self._learning.warmup_steps,
            decay=self._learning.decay,
            total_steps=self._learning.total_steps or 0,
        )
        share = self._damped(share, max((step - sent.base for sent in gradients), default=0))
        rates = (self._learning.learning_rate * share, self._learning.head_learning_rate * share)
        return Step(ordered, _clip(self._learning, norm), rates)

    def check_delta(self, delta: Mapping[str, Tensor]) -> None:
        """What a round adds to shared layers.

        :raises RefusedValue: `names`, `shape`, `dtype`, `not_finite`.
        """
        for name, tensor in delta.items():
            _belongs(name, SHARED)
            _check(name, tensor, self._layout)
            if not tensor.isfinite().all():
                raise RefusedValue(Reason.NOT_FINITE, f"what a round adds to {name!r} should be finite, found that it is not.")

    def _damped(self, share: float, staleness: int) -> float:
        return share if self._damping == "none" or staleness <= 0 else share / math.sqrt(1 + staleness)

    def _prepared(self, name: str, tensor: Tensor | Rows) -> Tensor | Rows:
        """Rows as a whole tensor, unless only they shall move."""
        if not isinstance(tensor, Rows) or self._learning.lazy:
            return tensor
        whole, before = self._expanded.get(name) or (torch.zeros(self._layout.shapes[name]), tensor.index)
        self._expanded[name] = (whole, tensor.index.clone())
        return whole.index_fill_(0, before, 0.0).index_copy_(0, tensor.index, tensor.values)

    @torch.no_grad()
    def move(self, old: Slot, new: Slot, step: Step) -> None:
        """Make one step.

        :param new: may be `old`. Else its tensors that the step has no entry for, or only rows of, should be as `old` has them.
        """
        for name in step.gradients:
            torch.add(old.counts[name], 1, out=new.counts[name])
        whole = {name: g for name, g in step.gradients.items() if isinstance(g, Tensor)}
        for name, rows in step.gradients.items():
            if isinstance(rows, Rows):
                self._move_rows(name, rows, old, new, step)
        if self._learning.optimizer == "sgd":
            for name, grad in whole.items():
                self._sgd(old, new, name, grad, step)
        else:
            self._adamw(old, new, whole, step)

    def _rate(self, name: str, step: Step) -> float:
        return step.rates[0] if name.startswith(SHARED) else step.rates[1]

    def _decay(self, name: str) -> float:
        return self._learning.weight_decay if len(self._layout.shapes[name]) > 1 else 0.0

    # -- AdamW ---------------------------------------------------------------------------------------------------------

    def _adamw(self, old: Slot, new: Slot, whole: Mapping[str, Tensor], step: Step) -> None:
        kinds = sorted({(self._rate(name, step), self._decay(name)) for name in whole})
        for lr, decay in kinds:
            names = [name for name in whole if (self._rate(name, step), self._decay(name)) == (lr, decay)]
            fused = AdamW(lr=lr, beta1=self._learning.beta1, weight_decay=decay)
            for pieces in _pieces(old, new, whole, names):
                grads = self._clipped([piece.grad for piece in pieces], step)
                for piece in pieces:
                    for target, source in zip(piece.new, piece.old, strict=True):
                        if target is not source:
                            target.copy_(source)
                values, means, squares = ([piece.new[i] for piece in pieces] for i in range(3))
                fused.move(values, means, squares, grads, [piece.count for piece in pieces])

    def _clipped(self, grads: list[Tensor], step: Step) -> list[Tensor]:
        if step.scale is None:
            return grads
        room, start = [], 0
        for grad in grads:
            room.append(torch.mul(grad, step.scale, out=self._room[start : start + grad.numel()]))
            start += grad.numel()
        return room

    # -- SGD -----------------------------------------------------------------------------------------------------------

    def _sgd(self, old: Slot, new: Slot, name: str, grad: Tensor, step: Step) -> None:
        if step.scale is not None:
            grad = grad * step.scale
        if self._learning.momentum:
            grad = self._gathered(old, new, name, grad)
        torch.add(old.values[name], grad, alpha=-self._rate(name, step), out=new.values[name])

    def _gathered(self, old: Slot, new: Slot, name: str, grad: Tensor) -> Tensor:
        before, after = old.moments["momentum_buffer"][name], new.moments["momentum_buffer"][name]
        if new.counts[name].item() == 1:
            return after.copy_(grad)
        return torch.mul(before, self._learning.momentum, out=after).add_(grad)

    # -- some rows only ------------------------------------------------------------------------------------------------

    def _move_rows(self, name: str, rows: Rows, old: Slot, new: Slot, step: Step) -> None:
        """What an optimiser would do to a tensor of these rows; the others stay. That is not AdamW: theirs would move too."""
        views = tuple(part[rows.index] for part in old.parts(name))
        names = tuple(old.moments)
        part = Slot({name: views[0]}, {m: {name: v} for m, v in zip(names, views[1:], strict=True)}, {name: new.counts[name]})
        if self._learning.optimizer == "sgd":
            self._sgd(part, part, name, rows.values, step)
        else:
            self._adamw(part, part, {name: rows.values}, step)
        for target, moved in zip(new.parts(name), part.parts(name), strict=True):
            target.index_copy_(0, rows.index, moved)


def twice(batch: str, step: int) -> Conflict:
    """What a store says that is to apply a batch again."""
    return Conflict(f"a batch should be applied once, found that {batch!r} was at step {step}.")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a tensor, flat."""

    old: tuple[Tensor, ...]
    new: tuple[Tensor, ...]
    grad: Tensor
    count: Tensor


def _pieces(old: Slot, new: Slot, whole: Mapping[str, Tensor], names: list[str]) -> Iterator[list[_Piece]]:
    """Tensors in lists of pieces, each list of at most BLOCK elements."""
    gathered: list[_Piece] = []
    room = BLOCK
    for name in names:
        before = tuple(part.view(-1) for part in old.parts(name))
        after = before if new is old else tuple(part.view(-1) for part in new.parts(name))
        grad = whole[name].reshape(-1)
        for start in range(0, grad.numel(), BLOCK):
            stop = min(start + BLOCK, grad.numel())
            if stop - start > room:
                yield gathered
                gathered, room = [], BLOCK
            source = tuple(part[start:stop] for part in before)
            target = source if new is old else tuple(part[start:stop] for part in after)
            gathered.append(_Piece(source, target, grad[start:stop], new.counts[name]))
            room -= stop - start
    if gathered:
        yield gathered


def _clip(learning: Learning, norm: Tensor) -> Tensor | None:
    """As `torch.nn.utils.clip_grad_norm_` does; a factor of one is left out."""
    if not learning.clip_norm:
        return None
    factor = torch.clamp(learning.clip_norm / (norm + 1e-6), max=1.0)
    return None if factor.item() == 1.0 else factor


def _merged(gradients: tuple[Sent, ...], combined: Mapping[str, Tensor] | None) -> dict[str, Tensor | Rows]:
    """:raises RefusedValue: `names`."""
    found: dict[str, Tensor | Rows] = dict(combined or {})
    for name in found:
        _belongs(name, SHARED)
    for sent in gradients:
        for name, tensor in sent.tensors.items():
            if name.startswith(SHARED):
                if combined is not None:
                    continue
            else:
                _belongs(name, f"head/{sent.task}/")
            if name in found:
                raise RefusedValue(Reason.NAMES, f"a step should have one gradient of {name!r}, found two.")
            found[name] = tensor
    return found


def _belongs(name: str, prefix: str) -> None:
    if not name.startswith(prefix):
        raise RefusedValue(Reason.NAMES, f"a gradient should be of what begins with {prefix}, found {name[:200]!r}.")


def _check(name: str, tensor: Tensor | Rows, layout: Layout) -> None:
    """:raises RefusedValue: a gradient is none of this parameter."""
    shape = layout.shapes.get(name)
    if shape is None:
        raise RefusedValue(Reason.NAMES, f"a gradient should be of a parameter of the stream, found one of {name[:200]!r}.")
    values = tensor.values if isinstance(tensor, Rows) else tensor
    if values.dtype != torch.float32:
        raise RefusedValue(Reason.DTYPE, f"the gradient of {name!r} should be float32, found {values.dtype}.")
    wanted = shape
    if isinstance(tensor, Rows):
        _check_rows(name, tensor, shape)
        wanted = (len(tensor.index), *shape[1:])
    if tuple(values.shape) != wanted:
        raise RefusedValue(Reason.SHAPE, f"the gradient of {name!r} should be {wanted}, found {tuple(values.shape)}.")


def _check_rows(name: str, rows: Rows, shape: tuple[int, ...]) -> None:
    index = rows.index
    good = bool(shape) and index.dtype == torch.int64 and index.ndim == 1
    if good and len(index):
        good = index[0].item() >= 0 and index[-1].item() < shape[0] and bool((index[1:] > index[:-1]).all())
    if not good:
        raise RefusedValue(Reason.SHAPE, f"rows of {name!r} should be different, ascending numbers below its length.")
