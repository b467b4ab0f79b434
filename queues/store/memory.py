"""The store in this process, for tests, notebooks and workers that are threads of their server."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from queues.store.layout import Layout, missing
from queues.store.moves import Mover, twice
from queues.store.publish import write_shared
from queues.store.rows import thinned
from queues.store.store import Rows, Sent, Verdict
from queues.stream.spec import StreamSpec
from trunkline.errors import QueueFull

VERDICTS, REMEMBERED = 4096, 1 << 16
"""Verdicts, and applied batches, that are remembered."""


class MemoryStore:
    """A `StoreWriter` for any number of threads; `reader()` is the other side. What it holds ends with the process.

    :param parameters: as they begin, `shared/NAME` and `head/TASK/NAME`; copied.
    :param most: gradients that may lie here.
    :raises SpecError: a parameter is not float32, or has another kind of name.
    """

    def __init__(self, spec: StreamSpec, parameters: Mapping[str, Tensor], *, most: int = 64) -> None:
        self.layout = Layout.of(parameters, spec.learning)
        self._mover, self._most = Mover(spec, self.layout), most
        self._slot = self.layout.slot(torch.zeros(self.layout.size))
        for name, parameter in parameters.items():
            self._slot.values[name].copy_(parameter.detach())
        self._step = self._checkpointed = 0
        self._laid: dict[tuple[str, int], Sent] = {}
        self._verdicts: dict[tuple[str, int], Verdict] = {}
        self._applied: dict[str, int] = {}
        self._rounds: dict[str, int] = {}
        self._changed = threading.Condition(threading.RLock())

    def reader(self) -> "MemoryReader":
        """A worker's view of this store."""
        return MemoryReader(self)

    @property
    def step(self) -> int:
        """Of the parameters as they are now."""
        return self._step

    def received(self, batch: str, attempt: int) -> Sent | None:
        """A gradient that was laid down; None: it is not there."""
        with self._changed:
            return self._laid.get((batch, attempt))

    def applied(self, batch: str) -> int | None:
        """The step at which a batch was applied; None: it was not."""
        with self._changed:
            return self._applied.get(batch)

    def apply(self, gradients: tuple[Sent, ...], combined: Mapping[str, Tensor] | None = None) -> int:
        """One step.

        :raises RefusedValue: `names`, `shape`, `dtype`, `not_finite`; nothing moved.
        :raises Conflict: a batch was applied already.
        """
        with self._changed:
            for sent in gradients:
                if sent.batch in self._applied:
                    raise twice(sent.batch, self._applied[sent.batch])
            step = self._mover.plan(gradients, combined, self._step)
            self._mover.move(self._slot, self._slot, step)
            self._step += 1
            self._applied |= {sent.batch: self._step for sent in gradients}
            while len(self._applied) > REMEMBERED:
                del self._applied[next(iter(self._applied))]
            return self._step

    @torch.no_grad()
    def add(self, delta: Mapping[str, Tensor], name: str) -> int:
        """One step that adds to shared parameters; done once a name.

        :raises RefusedValue: `names`, `shape`, `dtype`, `not_finite`.
        """
        return self._once(delta, name, lambda value, more: value.add_(more))

    @torch.no_grad()
    def put(self, values: Mapping[str, Tensor], name: str, *, fresh: bool = False) -> int:
        """One step that sets shared parameters; done once a name.

        :param fresh: whether their moments begin anew.
        :raises RefusedValue: `names`, `shape`, `dtype`, `not_finite`.
        """
        with self._changed:
            begun, step = name in self._rounds, self._once(values, name, lambda value, new: value.copy_(new))
            for key in values if fresh and not begun else ():
                self._slot.forget(key)
            return step

    def _once(self, tensors: Mapping[str, Tensor], name: str, change: Callable[[Tensor, Tensor], object]) -> int:
        with self._changed:
            if name not in self._rounds:
                self._mover.check_delta(tensors)
                for key, tensor in tensors.items():
                    change(self._slot.values[key], tensor)
                self._step += 1
                self._rounds[name] = self._step
            return self._rounds[name]

    def added(self) -> Mapping[str, int]:
        """The rounds that were added or put, by name, and at which step each was."""
        with self._changed:
            return dict(self._rounds)

    def done(self, batch: str, attempt: int, verdict: Verdict) -> None:
        """Tell the reader what became of its gradient, and let it go with those of earlier attempts."""
        with self._changed:
            for laid in [key for key in self._laid if key[0] == batch and key[1] <= attempt]:
                del self._laid[laid]
            self._verdicts[batch, attempt] = verdict
            while len(self._verdicts) > VERDICTS:
                del self._verdicts[next(iter(self._verdicts))]
            self._changed.notify_all()

    def checkpoint(self) -> int:
        """What a process keeps to itself cannot be covered better than it is."""
        with self._changed:
            self._checkpointed = self._step
            return self._step

    def values(self) -> Mapping[str, Tensor]:
        """All parameters at this step, by name; to read, until the next step."""
        return self._slot.values

    def write_shared(self, path: Path) -> str:
        """Write the encoder's part at this step as a parameter set; tell the digest of the file."""
        with self._changed:
            return write_shared(path, self._slot.values)

    def checkpointed(self) -> int:
        """The newest step that is covered."""
        return self._checkpointed

    def close(self) -> None:
        """Nothing is held."""

    # -- what the reader does ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _read(self, into: Mapping[str, Tensor]) -> int:
        with self._changed:
            for name, tensor in into.items():
                found = self.layout.shapes.get(name)
                if found != tuple(tensor.shape):
                    raise missing(name, tuple(tensor.shape), found)
                tensor.copy_(self._slot.values[name])
            return self._step

    def _send(self, gradient: Sent) -> None:
        tensors = {name: _copy(tensor) for name, tensor in thinned(gradient.tensors).items()}
        copied = Sent(gradient.batch, gradient.attempt, gradient.task, gradient.base, gradient.samples, gradient.loss, tensors)
        with self._changed:
            key = (gradient.batch, gradient.attempt)
            if key not in self._laid and len(self._laid) >= self._most:
                raise full(self._most)
            self._laid[key] = copied

    def _verdict(self, batch: str, attempt: int, seconds: float) -> Verdict | None:
        end = time.monotonic() + seconds
        with self._changed:
            while (batch, attempt) not in self._verdicts and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            return self._verdicts.get((batch, attempt))

    def _withdraw(self, batch: str, attempt: int) -> None:
        with self._changed:
            self._laid.pop((batch, attempt), None)


class MemoryReader:
    """A `StoreReader` of a `MemoryStore`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def step(self) -> int:
        """The step that `read` would give now."""
        return self._store.step

    def read(self, into: Mapping[str, Tensor]) -> int:
        """Copy parameters, all of one step, into tensors of their names; tell the step.

        :raises NotFound: the store has no parameter of this name and shape.
        """
        return self._store._read(into)

    def send(self, gradient: Sent) -> None:
        """Lay a copy of a gradient down.

        :raises QueueFull: there is no room for it now.
        """
        self._store._send(gradient)

    def verdict(self, batch: str, attempt: int, seconds: float) -> Verdict | None:
        """Wait for what becomes of a gradient; None: nothing within this time."""
        return self._store._verdict(batch, attempt, seconds)

    def withdraw(self, batch: str, attempt: int) -> None:
        """Take back a gradient that was laid down and not submitted."""
        self._store._withdraw(batch, attempt)


def full(most: int) -> QueueFull:
    """What a store says that has no room for another gradient."""
    return QueueFull(f"at most {most} gradients should wait in the store, found as many.", hint="Wait for the server.")


def _copy(tensor: Tensor | Rows) -> Tensor | Rows:
    if isinstance(tensor, Rows):
        return Rows(tensor.index.clone(), tensor.values.clone())
    return tensor.detach().clone()
