"""The parameters of one step as bytes that stay as they are while they travel, however slowly, and while the store goes on.

head  magic, form, bytes of a number (4: float32; 2: bfloat16), step, numbers, CRC-32 of the numbers, CRC-32 of the head before it
data  the values of all parameters, in the order and on the places of `queues.store.layout`

A snapshot is made when somebody asks for a step that there is none of, and shared by all who ask for the same. It is kept for a
while after its last use, so that a transfer that broke goes on where it stopped; what is in use is never let go of.
"""

import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from queues.store.layout import Layout
from queues.store.store import StoreReader
from trunkline.clock import Clock
from trunkline.errors import DamagedFile, QueueFull

MAGIC, FORM = b"TRUNKPAR", 1
_HEAD = struct.Struct("<8sIIQQII")
HEAD_BYTES = 64

KEPT, SECONDS = 4, 30.0
"""Snapshots that are kept though nobody uses them, and for how long each."""

ROOM, FEWEST = 2 << 30, 4
"""Bytes that all snapshots may have, also those on their way; and how many there may be however large they are."""


class Front(NamedTuple):
    """What the head of a snapshot says."""

    width: int
    step: int
    count: int
    check: int


def pack_head(front: Front) -> bytes:
    """HEAD_BYTES bytes."""
    told = _HEAD.pack(MAGIC, FORM, front.width, front.step, front.count, front.check, 0)[:-4]
    return (told + struct.pack("<I", zlib.crc32(told))).ljust(HEAD_BYTES, b"\0")


def read_head(head: bytes, width: int, count: int) -> Front:
    """The head of what should hold so many numbers of this width.

    :raises DamagedFile: it is none, or of something else.
    """
    magic, form, *told, own = _HEAD.unpack(head[: _HEAD.size])
    front = Front(*told)
    if own != zlib.crc32(head[: _HEAD.size - 4]):
        raise DamagedFile("the parameters should begin with their head, found another one, or a damaged one.")
    if (magic, form, front.width, front.count) != (MAGIC, FORM, width, count) or front.step >= 1 << 53:
        raise DamagedFile(f"the parameters should be {count} numbers of {width} bytes, found {front.count} of {front.width}.")
    return front


@dataclass
class Snapshot:
    """One step."""

    step: int
    tag: str  # of HTTP; no two steps of any server have the same
    buffer: Tensor  # (HEAD_BYTES + bytes of all numbers,) uint8
    half: bool
    users: int = 0
    used: float = 0.0

    @property
    def data(self) -> memoryview:
        """What travels."""
        return self.buffer.numpy().data


class Snapshots:
    """The snapshots of one store, for the server that lets workers elsewhere have them. Any thread may use it.

    :param reader: of the store.
    :param incarnation: of the server: after a crash a step may come a second time, and be another one.
    :param kept: how many are kept that nobody uses.
    :param room: bytes that all may have.
    :param seconds: for which one is kept that nobody uses.
    """

    def __init__(
        self,
        reader: StoreReader,
        layout: Layout,
        incarnation: int,
        clock: Clock,
        *,
        kept: int = KEPT,
        room: int = ROOM,
        seconds: float = SECONDS,
    ) -> None:
        self._reader, self._layout, self._incarnation, self._clock = reader, layout, incarnation, clock
        self._kept, self._seconds = kept, seconds
        self._most = max(FEWEST, room // (HEAD_BYTES + 4 * layout.part))
        self._lock = threading.Lock()
        self._held: list[Snapshot] = []  # newest last

    def tag(self, step: int, half: bool) -> str:
        """What a step is called in HTTP."""
        return f'"{self._incarnation}-{step}-{16 if half else 32}"'

    def current(self, half: bool) -> str:
        """The tag of the parameters as they are now, without making a snapshot of them."""
        return self.tag(self._reader.step(), half)

    @contextmanager
    def using(self, half: bool, tag: str | None = None) -> Iterator[Snapshot]:
        """A snapshot that stays as it is until the block ends.

        :param tag: the one of this tag, if it is still there; else the newest step.
        :raises QueueFull: too many are in use.
        """
        found = self.take(half, tag)
        try:
            yield found
        finally:
            self.let_go(found)

    def take(self, half: bool, tag: str | None = None) -> Snapshot:
        """As `using`; the caller lets go of it."""
        with self._lock:
            self._sweep()
            found = next((one for one in self._held if one.tag == tag), None) or self._newest(half)
            found.users += 1
            return found

    def let_go(self, snapshot: Snapshot) -> None:
        """A transfer ended, or broke."""
        with self._lock:
            snapshot.users -= 1
            snapshot.used = self._clock.monotonic()

    def look(self) -> None:
        """Let go of what nobody has used for a while. Called every now and then."""
        with self._lock:
            self._sweep()

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        self._held = [one for one in self._held if one.users or now - one.used < self._seconds]

    def _newest(self, half: bool) -> Snapshot:
        tag = self.current(half)
        for one in reversed(self._held):
            if one.tag == tag:
                return one
        made = self._made(half, self._spare(half))
        # The store may have made a step since it was asked, to one that there is a snapshot of already: both are the same.
        self._held = [*(one for one in self._held if one.tag != made.tag or one.users), made]
        return made

    def _spare(self, half: bool) -> Tensor | None:
        """Room of one that is let go of for a new one; None: fresh room.

        :raises QueueFull: all are in use.
        """
        idle = [one for one in self._held if not one.users]
        if len(self._held) < self._most and len(idle) < self._kept:
            return None
        if not idle:
            raise QueueFull(
                f"at most {self._most} steps should be on their way to workers, found as many.", hint="Ask again in a moment."
            )
        oldest = idle[0]
        self._held.remove(oldest)
        return oldest.buffer if oldest.half == half else None

    @torch.no_grad()
    def _made(self, half: bool, buffer: Tensor | None) -> Snapshot:
        count, width = self._layout.part, 2 if half else 4
        if buffer is None:
            buffer = torch.zeros(HEAD_BYTES + width * count, dtype=torch.uint8)
        data = buffer[HEAD_BYTES:]
        flat = torch.zeros(count) if half else data.view(torch.float32)
        step = self._reader.read(views(self._layout, flat))
        if half:
            data.view(torch.bfloat16).copy_(flat)
        front = Front(width, step, count, zlib.crc32(data.numpy().data))
        buffer[:HEAD_BYTES] = torch.frombuffer(bytearray(pack_head(front)), dtype=torch.uint8)
        return Snapshot(step, self.tag(step, half), buffer, half, used=self._clock.monotonic())


def views(layout: Layout, flat: Tensor) -> dict[str, Tensor]:
    """All parameters by name in the values of a slot.

    :param flat: (layout.part,)
    """
    found = {}
    for name, start in layout.starts().items():
        shape = layout.shapes[name]
        found[name] = flat[start : start + torch.Size(shape).numel()].view(shape)
    return found
