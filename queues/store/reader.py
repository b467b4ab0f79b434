"""The store of one host, as its workers have it: they copy from the mapped file and lay gradients beside it."""

import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from queues.store.layout import Layout, missing
from queues.store.mapped import Mapped
from queues.store.slabs import Slabs
from queues.store.store import Sent, Verdict
from trunkline.clock import Clock, Deadline, SystemClock
from trunkline.errors import Unreachable
from trunkline.files import storage
from trunkline.tensors import Array

FRESH, FIRST, LONGEST = 0.05, 0.0002, 0.005
"""Seconds: for how long a verdict is looked for most often, then between two looks, and at most between two."""


class FileReader:
    """A `StoreReader` of a folder, for any number of processes and threads. A store that is made anew is gone over to.

    :param folder: the writer's.
    :param seconds: that a read may take, where the writer changes what is read again and again.
    """

    def __init__(self, folder: Path, *, clock: Clock | None = None, seconds: float = 30.0) -> None:
        self._folder, self._clock, self._seconds = folder, clock or SystemClock(), seconds
        self._lock = threading.Lock()
        self._map: Mapped | None = None

    def _current(self) -> Mapped:
        """:raises Unreachable, DamagedFile, StorageFailed: there is no store, or none that can be read."""
        path = self._folder / "map"
        with self._lock:
            try:
                with storage(path):
                    found = path.stat()
                    if self._map is None or self._map.identity != (found.st_dev, found.st_ino):
                        self._map = Mapped(path)
            except FileNotFoundError:
                raise Unreachable(
                    f"`{path}` should be the parameters of a stream, found no such file.", hint="Start the stream's server."
                ) from None
            return self._map

    @property
    def layout(self) -> Layout:
        """Names and shapes of all parameters, and where they lie in a slot.

        :raises Unreachable, DamagedFile, StorageFailed: there is no store, or none that can be read.
        """
        return self._current().layout

    def step(self) -> int:
        """The step that `read` would give now.

        :raises DeadlineExceeded, Unreachable, DamagedFile, StorageFailed: the store cannot be read.
        """
        return self.read({})

    @torch.no_grad()
    def read(self, into: Mapping[str, Tensor]) -> int:
        """Copy parameters, all of one step, into tensors of their names; tell the step.

        :raises DeadlineExceeded, Unreachable, DamagedFile, StorageFailed: the store cannot be read.
        :raises NotFound: it has no parameter of this name and shape.
        """
        deadline = Deadline(self._clock, self._seconds, "parameters that are not changed while they are copied")
        while True:
            found = self._current()
            slot = found.active
            if slot in (0, 1):
                before, step = found.sequence(slot), found.step(slot)
                if before % 2 == 0:
                    for name, tensor in into.items():
                        self._copy(name, found.values[slot].get(name), tensor)
                    if found.sequence(slot) == before:
                        return step
            deadline.check()
            self._clock.sleep(FIRST)

    def _copy(self, name: str, source: Array | None, tensor: Tensor) -> None:
        if source is None or source.shape != tuple(tensor.shape):
            raise missing(name, tuple(tensor.shape), None if source is None else source.shape)
        if tensor.device.type == "cpu" and tensor.dtype == torch.float32:
            np.copyto(tensor.detach().numpy(), source)
        else:
            tensor.copy_(torch.from_numpy(source.copy()))

    # -- gradients -----------------------------------------------------------------------------------------------------

    def send(self, gradient: Sent) -> None:
        """Lay a gradient down, whole.

        :raises QueueFull: there is no room for it now.
        :raises StorageFailed, Unreachable, DamagedFile: the disk refused, or there is no store.
        """
        self.slabs().lay(gradient)

    def withdraw(self, batch: str, attempt: int) -> None:
        """Take back a gradient that was laid down and not submitted."""
        with storage(self._folder):
            self.slabs().free(batch, attempt, earlier=False)

    def slabs(self) -> Slabs:
        """Where gradients are laid.

        :raises Unreachable, DamagedFile, StorageFailed: there is no store, or none that can be read.
        """
        table = self._current().table
        return Slabs(self._folder / "slabs", table.slabs, table.slab_bytes)

    def verdict(self, batch: str, attempt: int, seconds: float) -> Verdict | None:
        """Wait for what becomes of a gradient; None: nothing within this time."""
        deadline = Deadline(self._clock, seconds, "a verdict")
        fresh = Deadline(self._clock, FRESH, "a verdict")
        pause, known = FIRST, None
        while True:
            found = self._current()
            if known != (state := (found.identity, found.verdicts.told)):
                known = state
                if (verdict := found.verdicts.find(batch, attempt)) is not None:
                    return verdict
            if deadline.over():
                return None
            self._clock.sleep(min(pause, deadline.left()))
            pause = min(LONGEST, pause * 1.1) if fresh.over() else FIRST
