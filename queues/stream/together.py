"""Steps of one batch of each task: which tasks a step waits for, and how their gradients become one."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from queues.redis import RedisQueues, Stats
from queues.store.layout import SHARED, Layout
from queues.store.store import Rows, Sent, StoreWriter
from queues.stream.record import Entry, Record
from queues.stream.seeds import dropout_seed
from queues.stream.spec import StreamSpec
from tasks.balance import Rule, find
from tasks.balance.matrix import Row, told
from trunkline.clock import Clock


class Store(StoreWriter, Protocol):
    """A writer with what all kinds have besides the seam."""

    layout: Layout  # the parameters that it has

    def values(self) -> Mapping[str, Tensor]:
        """All parameters at this step, by name; to read, until the next step."""
        ...

    def write_shared(self, path: Path) -> str:
        """Write the encoder's part at this step as a parameter set; tell the digest of the file."""
        ...


@dataclass(frozen=True, slots=True)
class Joined:
    """One step of several tasks."""

    gradients: tuple[Sent, ...]
    combined: Mapping[str, Tensor] = field(repr=False)  # the shared part
    weights: Mapping[str, float]
    state: Mapping[str, float]  # of the rule, after this step
    cosines: tuple[Row, ...] = ()  # of the tasks' gradients

    def noted(self, entry: Entry) -> Entry:
        """The step's last entry of the record: with what the rule did, and remembers."""
        return replace(entry, weights=dict(self.weights), state=dict(self.state))


class Joiner:
    """Waits for the tasks of a step, and combines their gradients.

    A task is waited for while it is open and has a batch out, or one that could be claimed; at most `together.wait_seconds` from
    the first gradient of a step on.
    """

    def __init__(self, spec: StreamSpec, queues: RedisQueues, store: Store, clock: Clock) -> None:
        self.spec, self.queues, self.store, self.clock = spec, queues, store, clock
        self._rule = find(spec.together.rule)
        self._rule.check_installed()
        self._state: Mapping[str, float] = {}
        self._weights: Mapping[str, float] = {}
        self._since: float | None = None  # the first gradient of this step
        self._waiting: tuple[str, ...] = ()

    def begin(self, record: Record) -> None:
        """Go on from what the rule remembered."""
        self._state = record.last_state()

    def complete(self, tasks: Collection[str]) -> bool:
        """Whether a step of these tasks' gradients may be made now."""
        if not tasks:
            self._since, self._waiting = None, ()
            return False
        now = self.clock.monotonic()
        if self._since is None:
            self._since = now
        others = [task.name for task in self.spec.tasks if task.name not in tasks]
        self._waiting = tuple(name for name in others if has_work(self.queues.stats(name)))
        return not self._waiting or now - self._since >= self.spec.together.wait_seconds

    def join(self, gradients: tuple[Sent, ...]) -> Joined:
        """Combine the shared parts.

        :raises RefusedValue: a gradient is not finite, or of another shape.
        """
        return join(self._rule, self.store.layout, gradients, self._state, self.store.step + 1, self.spec.learning.seed)

    def wrong(self, sent: Sent) -> str | None:
        """Why a gradient cannot be combined with others; None: it can."""
        shapes = self.store.layout.shapes
        for name, tensor in sent.tensors.items():
            values = tensor.values if isinstance(tensor, Rows) else tensor
            fits = name in shapes and (isinstance(tensor, Rows) or tuple(values.shape) == shapes[name])
            if not fits or values.dtype != torch.float32:
                return f"a gradient should be of the stream's parameters, found another at {name[:200]!r}"
            if not values.isfinite().all():
                return f"the gradient of {name!r} should be finite, found that it is not"
            if (
                isinstance(tensor, Rows)
                and len(tensor.index)
                and not 0 <= int(tensor.index.min()) <= int(tensor.index.max()) < shapes[name][0]
            ):
                return f"rows of {name!r} should be below its length"
        return None

    def applied(self, joined: Joined) -> None:
        """The step was made."""
        self._state, self._weights, self._since, self._waiting = joined.state, joined.weights, None, ()

    def table(self) -> dict[str, Any]:
        """For people, as JSON values."""
        return {"rule": str(self._rule), "weights": dict(self._weights), "waits_for": list(self._waiting)}


def join(rule: Rule, layout: Layout, gradients: tuple[Sent, ...], state: Mapping[str, float], step: int, seed: int) -> Joined:
    """Combine the shared parts of one gradient of each task.

    :param state: what the rule remembers.
    :param step: that they will make.
    :param seed: of the stream.
    :raises RefusedValue: a gradient is not finite, or of another shape.
    """
    found = rule.combine(
        {sent.task: _shared(sent, layout) for sent in gradients},
        {sent.task: sent.loss for sent in gradients},
        {sent.task: sent.samples for sent in gradients},
        state,
        dropout_seed(seed, "rule", str(step)),
    )
    scaled = tuple(_with_head(sent, found.heads[sent.task]) for sent in gradients)
    return Joined(scaled, found.gradient, found.weights, found.state, tuple(told(found, step)))


def _shared(sent: Sent, layout: Layout) -> dict[str, Tensor]:
    found = {name: tensor for name, tensor in sent.tensors.items() if name.startswith(SHARED)}
    return {name: tensor if isinstance(tensor, Tensor) else _whole(tensor, layout.shapes[name]) for name, tensor in found.items()}


def _whole(rows: Rows, shape: tuple[int, ...]) -> Tensor:
    return rows.values.new_zeros(shape).index_copy_(0, rows.index, rows.values)


def has_work(found: Stats) -> bool:
    """Whether a task is open and has a batch out, or one that could be claimed."""
    counts, settings = found.counts, found.settings
    if found.state not in ("open", "draining"):
        return False
    if counts.leased + counts.submitted:
        return True
    flushed = 0 < settings.flush_seconds <= found.oldest and counts.queued >= settings.flush_least
    return counts.queued >= settings.batch_size or (counts.queued > 0 and (found.state == "draining" or flushed))


def _with_head(sent: Sent, factor: float) -> Sent:
    if factor == 1.0:
        return sent
    tensors = {name: tensor if name.startswith(SHARED) else _scaled(tensor, factor) for name, tensor in sent.tensors.items()}
    return replace(sent, tensors=tensors)


def _scaled(tensor: Tensor | Rows, factor: float) -> Tensor | Rows:
    return Rows(tensor.index, tensor.values * factor) if isinstance(tensor, Rows) else tensor * factor
