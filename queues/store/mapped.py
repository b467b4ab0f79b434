"""The file that a store of one host is: mapped by the writer, and by each reader, which copies from it.

head      magic, form, length and CRC-32 of the table, size of the file
table     JSON: epoch, the boot that the file belongs to, names and shapes, room for gradients
words     eight bytes each: which slot is active; per slot its sequence and its step; verdicts told; who writes
verdicts  the last of them, see `queues.store.verdicts`
slot 0    see `queues.store.layout`
slot 1

A slot's sequence is odd while it is written. The writer changes the slot that is not active, then makes it the active one by
storing one word: whoever is killed at any point leaves one slot whole. A reader looks at the sequence before it copies and after.
The file need not reach the disk: as long as the machine runs, the system keeps what was stored, also of a process that is killed.
What another boot left is not believed: of two pages of one step a disk may have one.

The order of stores is what x86 promises: no store is seen before an earlier one. Elsewhere it is only that thousands of
instructions of the interpreter lie between two stores to words, many times what a processor reorders.

Room is taken from the disk before anything is mapped, for a disk that is full when a page is first stored to kills the process
without a word.
"""

import mmap
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from queues.store.layout import Layout, Slot
from queues.store.verdicts import RING_BYTES, Verdicts
from trunkline.errors import DamagedFile
from trunkline.files import discard, storage
from trunkline.tensors import Array
from trunkline.values import Value

MAGIC, FORM = b"TRUNKSTO", 1
TABLE_LIMIT = 64 << 20  # bytes
ELEMENTS_LIMIT = 1 << 40
HEAD = struct.Struct("<8sIIIIQ")  # magic, form, length of the table, its CRC-32, nothing, size of the file

ACTIVE, SEQUENCE, STEP, TOLD, OWNER = 0, 1, 3, 5, 6
"""Words: SEQUENCE and STEP have one for each slot."""

WORDS = 8


class Table(Value):
    """What does not change while the file is in use."""

    epoch: str
    boot: str
    moments: tuple[str, ...]
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    slabs: int  # gradients that may wait
    slab_bytes: int

    @property
    def layout(self) -> Layout:
        """Of both slots."""
        return Layout(dict(self.tensors), self.moments)


class Mapped:
    """An open file.

    :param write: whether to store into it.
    :raises FileNotFoundError: it is not there.
    :raises DamagedFile: it is none, or cut off.
    :raises StorageFailed: it cannot be read.
    """

    def __init__(self, path: Path, *, write: bool = False) -> None:
        self.path = path
        with storage(path), path.open("r+b" if write else "rb") as file:
            found = os.fstat(file.fileno())
            self.identity = (found.st_dev, found.st_ino)
            if found.st_size < HEAD.size:
                raise DamagedFile(f"`{path}` should be a parameter store, found {found.st_size} bytes.")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE if write else mmap.ACCESS_READ)
        self.table = _read_table(self._map, found.st_size, path)
        self.layout = self.table.layout
        words, self._slots = _places(self._map[: HEAD.size], self.layout)
        self._words: NDArray[np.uint64] = np.frombuffer(self._map, "<u8", WORDS, words)
        self.verdicts = Verdicts(self._map, words + 8 * WORDS, self._words[TOLD : TOLD + 1])
        self.values = tuple(self._values(start) for start in self._slots)
        """The parameters in each slot, without a copy; for readers."""

    # -- words ---------------------------------------------------------------------------------------------------------

    @property
    def active(self) -> int:
        """The slot that has the newest step. Believed only if it is 0 or 1."""
        return int(self._words[ACTIVE])

    def sequence(self, slot: int) -> int:
        """Odd while the slot is written."""
        return int(self._words[SEQUENCE + slot])

    def step(self, slot: int) -> int:
        """That a slot has."""
        return int(self._words[STEP + slot])

    @property
    def owner(self) -> int:
        """The number that the writer gave itself."""
        return int(self._words[OWNER])

    @owner.setter
    def owner(self, number: int) -> None:
        self._words[OWNER] = number

    def sane(self) -> str | None:
        """What is wrong with the words, or None."""
        if self.active not in (0, 1):
            return f"its active slot should be 0 or 1, found {self.active}"
        if self.sequence(self.active) % 2:
            return "its active slot should be whole, found it half-written"
        if self.step(self.active) >= 1 << 53:
            return f"its step should be a number of steps, found {self.step(self.active)}"
        return None

    # -- the writer ----------------------------------------------------------------------------------------------------

    def slot(self, number: int) -> Slot:
        """A slot to store into."""
        start = self._slots[number]
        return self.layout.slot(torch.frombuffer(self._map, dtype=torch.float32, count=self.layout.size, offset=start))

    def begin(self, slot: int) -> None:
        """Say that a slot is being written."""
        self._words[SEQUENCE + slot] |= np.uint64(1)

    def finish(self, slot: int, step: int) -> None:
        """Say that a slot is whole, and what it has."""
        self._words[STEP + slot] = step
        self._words[SEQUENCE + slot] += np.uint64(1)

    def flip(self, slot: int) -> None:
        """Make it the active one: this is the moment at which a step has happened."""
        self._words[ACTIVE] = slot

    def _values(self, start: int) -> Mapping[str, Array]:
        part: Array = np.frombuffer(self._map, "<f4", self.layout.part, start)
        return {
            name: part[start : start + prod(self.layout.shapes[name])].reshape(self.layout.shapes[name])
            for name, start in self.layout.starts().items()
        }


def make(path: Path, table: Table, step: int, fill: Callable[[Slot], None]) -> None:
    """Put a new file in place, whole; readers of the one before go over to it.

    :param fill: writes what the slot begins with; it is zero.
    :raises StorageFailed: no room, or the disk refused.
    """
    text = table.model_dump_json().encode()
    size = _size(len(text), table.layout)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with storage(path):
        try:
            handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                allocate(handle, size)
                os.pwrite(handle, HEAD.pack(MAGIC, FORM, len(text), zlib.crc32(text), 0, size) + text, 0)
            finally:
                os.close(handle)
            made = Mapped(beside, write=True)
            made.begin(0)
            fill(made.slot(0))
            made.finish(0, step)
            made.begin(1)
            made.flip(0)
            beside.replace(path)
        except BaseException:
            discard(beside)
            raise


def allocate(handle: int, size: int) -> None:
    """Take room on the disk, so that no later store finds it full."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
        return
    zeros = bytes(1 << 20)
    for start in range(0, size, len(zeros)):
        os.pwrite(handle, zeros[: size - start], start)


def _read_table(data: mmap.mmap, size: int, path: Path) -> Table:
    magic, form, length, check, _, said = HEAD.unpack(data[: HEAD.size])
    if (magic, form, said) != (MAGIC, FORM, size) or length > min(TABLE_LIMIT, size - HEAD.size):
        raise DamagedFile(f"`{path}` should be a parameter store of form {FORM} and {size} bytes, found another head.")
    text = data[HEAD.size : HEAD.size + length]
    try:
        if zlib.crc32(text) != check:
            raise ValueError
        table = Table.model_validate_json(text)
        if any(n < 0 for _, shape in table.tensors for n in shape) or len(dict(table.tensors)) != len(table.tensors):
            raise ValueError
        elements = sum(prod(shape) for _, shape in table.tensors)
        if elements > ELEMENTS_LIMIT or _size(length, table.layout) != size:
            raise ValueError
    except ValueError:
        raise DamagedFile(f"`{path}` should hold the table of a parameter store, found something else.") from None
    return table


def _places(head: bytes, layout: Layout) -> tuple[int, tuple[int, int]]:
    """Where the words are, and the two slots."""
    length = HEAD.unpack(head)[2]
    words = _paged(HEAD.size + length)
    first = _paged(words + 8 * WORDS + RING_BYTES)
    return words, (first, _paged(first + 4 * layout.size))


def _size(length: int, layout: Layout) -> int:
    words = _paged(HEAD.size + length)
    first = _paged(words + 8 * WORDS + RING_BYTES)
    return _paged(_paged(first + 4 * layout.size) + 4 * layout.size)


def _paged(size: int) -> int:
    return -(-size // 4096) * 4096
