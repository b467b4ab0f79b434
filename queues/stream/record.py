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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from trunkline.errors import DamagedFile

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
    """The record of one stream, in a folder, to be read; its server may be writing meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def parts(self) -> list[Path]:
        """Its files, oldest first."""
        return sorted(self.folder.glob("[0-9]*.log"))

    def since(self, step: int) -> Iterator[Entry]:
        """What was applied beyond a step, in order.

        :raises DamagedFile: a part is not what was written.
        """
        parts = self.parts
        for place, part in enumerate(parts):
            last = place == len(parts) - 1
            if last or first_of(parts[place + 1]) > step:
                yield from (entry for _, entry in frames(part, last=last) if entry.step > step)

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
        for part in reversed(self.parts):
            states = [entry.state for _, entry in frames(part, last=True) if entry.state is not None]
            if states:
                return states[-1]
        return {}

    @property
    def first(self) -> int | None:
        """The oldest step that is kept; None: none is."""
        parts = self.parts
        return next((entry.step for part in parts for _, entry in frames(part, last=part == parts[-1])), None)

    @property
    def last(self) -> int | None:
        """The newest step; None: none is kept."""
        for part in reversed(self.parts):
            steps = [entry.step for _, entry in frames(part, last=True)]
            if steps:
                return steps[-1]
        return None


def first_of(part: Path) -> int:
    """The step that a part begins with."""
    return int(part.stem)


def frames(part: Path, *, last: bool) -> Iterator[tuple[int, Entry]]:
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
