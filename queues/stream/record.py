"""The record of what was applied: for each batch its samples, what they did, and when. `replay` computes the parameters anew from
it; a server of queues that was set back learns from it what it forgot.

It is written before the store moves, so it knows at least as much as the store; what it knows beyond is cut off at the start. Files
`applied/NUMBER.log`, the newest last, hold frames one after the other:

    4 bytes   length of what follows, big-endian
    4 bytes   CRC-32 of what follows
    4 bytes   length of the head
    head      JSON: the fields of `Entry` but the samples
    samples   8 bytes of arrival each; then 4 bytes of length each; then the samples
"""

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from trunkline.errors import DamagedFile
from trunkline.files import discard, storage, sync_folder, write_all

SEGMENTS = 16
"""Parts that the record has when it is full: the oldest of them goes at once."""

SEGMENT_LEAST = 1 << 20
"""Bytes of a part at least."""

_FRAME = struct.Struct(">II")
_HEAD = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch that changed the parameters at a step; or, with no task, a round that was added to them."""

    step: int
    batch: str  # or the round's name
    task: str = ""
    attempt: int = 0
    base: int = 0  # the step whose parameters its gradient was computed on
    staleness: int = 0  # steps between the two, less one
    seed: int = 0  # of dropout
    loss: float = 0.0
    worker: str = ""
    at: float = 0.0  # seconds since 1970
    weights: Mapping[str, float] | None = None  # of the tasks, where a rule combined several
    state: Mapping[str, float] | None = None  # what the rule remembers after this step
    samples: tuple[bytes, ...] = field(default=(), repr=False)
    stamps: bytes = field(default=b"", repr=False)  # arrival of each sample in its queue, 8 bytes each

    def encode(self) -> bytes:
        """One frame."""
        fields = {name: getattr(self, name) for name in _NAMES if getattr(self, name) is not None}
        head = json.dumps(fields | {"samples": len(self.samples)}).encode()
        lengths = struct.pack(f">{len(self.samples)}I", *map(len, self.samples))
        body = b"".join((_HEAD.pack(len(head)), head, self.stamps, lengths, *self.samples))
        return _FRAME.pack(len(body), zlib.crc32(body)) + body

    def table(self) -> dict[str, Any]:
        """As JSON values, for people: how many samples, and not which."""
        return {name: getattr(self, name) for name in _NAMES} | {"samples": len(self.samples)}

    @staticmethod
    def decode(body: bytes) -> "Entry":
        """:raises ValueError, KeyError, struct.error: it is none."""
        end = _HEAD.size + _HEAD.unpack_from(body)[0]
        head = json.loads(body[_HEAD.size : end])
        count = head.pop("samples")
        stamps, end = body[end : end + 8 * count], end + 8 * count
        lengths, end = struct.unpack_from(f">{count}I", body, end), end + 4 * count
        samples = []
        for length in lengths:
            samples.append(body[end : end + length])
            end += length
        return Entry(**head, stamps=stamps, samples=tuple(samples))


_NAMES = [name for name in Entry.__slots__ if name not in ("samples", "stamps")]


class Record:
    """The record of one stream, in a folder. One thread writes, any may read.

    :param most: bytes that are kept, about; 0: nothing is written.
    :raises StorageFailed: the folder cannot be written.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self._most = folder, most
        self._handle: int | None = None
        self._size = self._before = 0
        with storage(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._parts():
            self._cut_torn(self._parts()[-1])

    # -- writing -------------------------------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> None:
        """Write what a step is about to apply.

        :raises StorageFailed: the disk refused; nothing was written.
        """
        if not self._most:
            return
        with storage(self.folder):
            handle = self._open(entries[0].step)
            frames = b"".join(entry.encode() for entry in entries)
            try:
                write_all(handle, frames)
            except OSError:
                os.ftruncate(handle, self._size)
                raise
            self._before, self._size = self._size, self._size + len(frames)

    def cut(self, step: int) -> int:
        """Forget what was not applied after all: everything beyond a step; return how many entries."""
        self._close()
        gone = 0
        for part in reversed(self._parts()):
            kept = 0
            for end, entry in _frames(part, last=True):
                if entry.step <= step:
                    kept = end
                else:
                    gone += 1
            with storage(part):
                if kept:
                    os.truncate(part, kept)
                    break
                discard(part)
        return gone

    def undo(self) -> None:
        """Forget what was written last: the store did not move."""
        if self._handle is not None:
            with storage(self.folder):
                os.ftruncate(self._handle, self._before)
            self._size = self._before

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        if self._handle is not None:
            with storage(self.folder):
                os.fsync(self._handle)

    def prune(self, covered: int) -> None:
        """Let the oldest parts go while all are too large together, but nothing beyond a step."""
        parts = self._parts()
        total = sum(part.stat().st_size for part in parts)
        for part, following in pairwise(parts):
            if total <= self._most or _first(following) > covered:
                return
            total -= part.stat().st_size
            discard(part)

    def close(self) -> None:
        """Close the file; what was written is on the disk."""
        self.sync()
        self._close()

    def _open(self, step: int) -> int:
        if self._handle is not None and self._size >= max(SEGMENT_LEAST, self._most // SEGMENTS):
            self.sync()
            self._close()
            path = self.folder / f"{step:020d}.log"
        else:
            parts = self._parts()
            path = parts[-1] if parts else self.folder / f"{step:020d}.log"
        if self._handle is None:
            self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._size = self._before = os.fstat(self._handle).st_size
            sync_folder(self.folder)
        return self._handle

    def _close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]*.log"))

    def _cut_torn(self, part: Path) -> None:
        """The end of what was being written when the power went."""
        end = max((end for end, _ in _frames(part, last=True)), default=0)
        with storage(part):
            if part.stat().st_size > end:
                os.truncate(part, end)

    # -- reading -------------------------------------------------------------------------------------------------------

    def since(self, step: int) -> Iterator[Entry]:
        """What was applied beyond a step, in order.

        :raises DamagedFile: a part is not what was written.
        """
        parts = self._parts()
        for place, part in enumerate(parts):
            last = place == len(parts) - 1
            if last or _first(parts[place + 1]) > step:
                yield from (entry for _, entry in _frames(part, last=last) if entry.step > step)

    def of(self, step: int) -> tuple[Entry, ...]:
        """What was applied at a step; none: it is not in the record, or no longer."""
        found = []
        for entry in self.since(step - 1):
            if entry.step > step:
                break
            found.append(entry)
        return tuple(found)

    def of_batch(self, batch: str) -> Entry | None:
        """The step of a batch, or of a round by its name; the newest if it was applied again after the store went back."""
        found = [entry for entry in self.since(-1) if entry.batch == batch]
        return found[-1] if found else None

    def last_state(self) -> Mapping[str, float]:
        """What the rule that combines tasks remembers; empty where none does."""
        for part in reversed(self._parts()):
            states = [entry.state for _, entry in _frames(part, last=True) if entry.state is not None]
            if states:
                return states[-1]
        return {}

    @property
    def first(self) -> int | None:
        """The oldest step that is kept; None: none is."""
        parts = self._parts()
        return next((entry.step for part in parts for _, entry in _frames(part, last=part == parts[-1])), None)

    @property
    def last(self) -> int | None:
        """The newest step; None: none is kept."""
        for part in reversed(self._parts()):
            steps = [entry.step for _, entry in _frames(part, last=True)]
            if steps:
                return steps[-1]
        return None


def _first(part: Path) -> int:
    """The step that a part begins with."""
    return int(part.stem)


def _frames(part: Path, *, last: bool) -> Iterator[tuple[int, Entry]]:
    """Each entry of a part, and where its frame ends.

    :param last: whether it is the newest: its end may be in the making, and is left out.
    :raises DamagedFile: it is not what was written.
    """
    try:
        file = part.open("rb")
    except FileNotFoundError:  # it was pruned since the folder was listed
        return
    with file:
        yield from _read(file, part, last)


def _read(file: BinaryIO, part: Path, last: bool) -> Iterator[tuple[int, Entry]]:
    end = 0
    while start := file.read(_FRAME.size):
        entry = _one(file, start)
        if entry is None:
            if last:
                return
            raise DamagedFile(f"`{part}` should be a record of batches, found something else at byte {end}.")
        end = file.tell()
        yield end, entry


def _one(file: BinaryIO, start: bytes) -> Entry | None:
    if len(start) < _FRAME.size:
        return None
    length, crc = _FRAME.unpack(start)
    left = os.fstat(file.fileno()).st_size - file.tell()
    if length > left:
        return None
    body = file.read(length)
    if zlib.crc32(body) != crc:
        return None
    try:
        return Entry.decode(body)
    except (ValueError, KeyError, TypeError, struct.error):
        return None
