"""Gradients that come from elsewhere, piece by piece, laid down beside those of this host once they are whole and right.

What a body says of itself is compared with what the store has before its numbers are taken: a name that is no parameter of its
task, a shape that is another, or more bytes than a gradient can have, and the rest is not even read. Whether the numbers are
finite, and of which step they are, is the writer's to judge, for then the batch is computed again.
"""

import mmap
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path

from torch import Tensor

from queues.store.layout import SHARED, Layout
from queues.store.reader import FileReader
from queues.store.slabs import Slabs
from queues.store.wireform import HEAD, Front, Part, Table, numbers, read_head, read_table, verified
from trunkline.errors import DamagedFile, Reason, RefusedValue
from trunkline.files import storage

WHAT = "the body"

BATCH_LIMIT, NUMBER_LIMIT = 200, 1 << 53
"""Characters of a batch's id, and any number in a table."""


class Arrivals:
    """What the store of one host takes from workers elsewhere. Any thread may use it.

    :param reader: of the store, whose folder they are laid in.
    :param tasks: of the stream.
    """

    def __init__(self, reader: FileReader, layout: Layout, tasks: Collection[str]) -> None:
        self.reader, self.layout, self.tasks = reader, layout, frozenset(tasks)
        names = sum(200 + 6 * len(name) for name in layout.shapes)
        numbers = sum(4 * prod(shape) + 8 * (shape[0] if shape else 0) + 192 for shape in layout.shapes.values())
        self.front_limit, self.limit = 4096 + names, 4096 + names + numbers

    @contextmanager
    def arriving(self, size: int) -> Iterator["Arrival"]:
        """A body of this size; what is not kept by `Arrival.finish` is gone when the block ends.

        :raises RefusedValue: `size`: no gradient of this store has as many bytes.
        :raises QueueFull, StorageFailed: there is no room.
        """
        if not HEAD.size <= size <= self.limit:
            raise RefusedValue(Reason.SIZE, f"a gradient should have from {HEAD.size} to {self.limit} bytes, found {size}.")
        slabs = self.reader.slabs()
        with slabs.arriving(size) as (handle, part):
            yield Arrival(self, slabs, size, handle, part)

    def check(self, table: Table) -> None:
        """:raises RefusedValue: `names`, `shape`, `malformed`: it is none of this store's."""
        numbers = (table.attempt, table.base, table.samples)
        if not 0 < len(table.batch) <= BATCH_LIMIT or not all(0 <= number < NUMBER_LIMIT for number in numbers):
            raise RefusedValue(Reason.MALFORMED, "a gradient should name its batch, attempt, base and samples, found others.")
        if table.task not in self.tasks:
            raise RefusedValue(Reason.NAMES, f"a gradient should be of a task of the stream, found {table.task[:80]!r}.")
        for part in table.parts:
            self._check(table.task, part)

    def _check(self, task: str, part: Part) -> None:
        shape = self.layout.shapes.get(part.name)
        if shape is None or not part.name.startswith((SHARED, f"head/{task}/")):
            raise RefusedValue(Reason.NAMES, f"task {task!r} should have parameters of its own, found {part.name[:200]!r}.")
        found = part.shape
        if part.rows:
            good = bool(shape) and len(found) == len(shape) and found[1:] == shape[1:] and found[0] <= shape[0]
        else:
            good = found == shape
        if not good:
            raise RefusedValue(Reason.SHAPE, f"the gradient of {part.name!r} should be {shape}, found {found}.")

    def check_rows(self, name: str, index: Tensor) -> None:
        """:raises RefusedValue: `shape`: rows that are not different and ascending, or beyond the end."""
        if not len(index):
            return
        if index[0].item() < 0 or index[-1].item() >= self.layout.shapes[name][0] or not bool((index[1:] > index[:-1]).all()):
            raise RefusedValue(Reason.SHAPE, f"rows of {name!r} should be different, ascending numbers below its length.")


class Arrival:
    """One gradient on its way in. Its methods write to a disk."""

    def __init__(self, arrivals: Arrivals, slabs: Slabs, size: int, handle: int, part: Path) -> None:
        self._arrivals, self._slabs, self._size, self._handle, self._part = arrivals, slabs, size, handle, part
        self._front: bytearray | None = bytearray()  # as long as head and table are not whole
        self._head: Front | None = None
        self._at = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """The next bytes.

        :raises RefusedValue: they are more than were promised, or what they say of themselves is wrong.
        """
        if self._at + len(data) > self._size:
            raise RefusedValue(Reason.SIZE, f"the body should have {self._size} bytes, found more.")
        if self._front is not None:
            self._front += data[: self._arrivals.front_limit]
            self._read_front()
        view = memoryview(data)
        while view:
            done = os.pwrite(self._handle, view, self._at)
            self._at, view = self._at + done, view[done:]

    def _read_front(self) -> None:
        front = self._front
        assert front is not None
        with _refused():
            if self._head is None and len(front) >= HEAD.size:
                self._head = read_head(bytes(front[: HEAD.size]), self._size, WHAT)
                if HEAD.size + self._head.length > self._arrivals.front_limit:
                    raise RefusedValue(Reason.SIZE, f"a table should have {self._arrivals.front_limit} bytes at most, found more.")
            if self._head is not None and len(front) >= (end := HEAD.size + self._head.length):
                table, _ = read_table(self._head, bytes(front[HEAD.size : end]), WHAT)
                self._arrivals.check(table)
                self._front = None

    def finish(self) -> bool:
        """All came: lay it down. False: it was judged before, and nobody waits for it any more.

        :raises RefusedValue: it is not whole, or not right.
        """
        if self._at != self._size or self._front is not None:
            raise RefusedValue(Reason.SIZE, f"the body should have {self._size} bytes, found {self._at}.")
        data = mmap.mmap(self._handle, 0, access=mmap.ACCESS_COPY)  # torch warns of what cannot be stored to
        with _refused():
            table, places = verified(data, self._size, WHAT)
        for part, where in zip(table.parts, places, strict=True):
            if part.rows:
                self._arrivals.check_rows(part.name, numbers(data, where[0]))
        if self._arrivals.reader.verdict(table.batch, table.attempt, 0.0) is not None:
            return False
        with storage(self._part):
            self._part.replace(self._slabs.path(table.batch, table.attempt))
        return True


@contextmanager
def _refused() -> Iterator[None]:
    """What is no gradient, as what came off a wire."""
    try:
        yield
    except DamagedFile as error:
        raise RefusedValue(Reason.DAMAGED, error.message) from None
