"""What became of the last gradients: a ring that one writes and any number of readers look at without asking anybody."""

import hashlib
import mmap
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from queues.store.store import Verdict

RING = 4096
"""Verdicts that are remembered."""

_ENTRY = np.dtype([("high", "<u8"), ("low", "<u8"), ("number", "<u8"), ("verdict", "<u4"), ("check", "<u4")])
_BODY = struct.Struct("<16sQI")
_CHECK = struct.Struct("<I")

RING_BYTES = RING * _ENTRY.itemsize

_CODES = {Verdict.APPLIED: 1, Verdict.STALE: 2, Verdict.REFUSED: 3}
_MEANINGS = {code: verdict for verdict, code in _CODES.items()}


class Verdicts:
    """The ring in a file.

    :param start: where it begins.
    :param told: (1,) how many were ever told; in the same file.
    """

    def __init__(self, data: mmap.mmap, start: int, told: NDArray[np.uint64]) -> None:
        self._data, self._start, self._told = data, start, told
        self._ring = np.frombuffer(data, _ENTRY, RING, start)

    @property
    def told(self) -> int:
        """How many were ever told; a reader that knows this number has nothing new to look for."""
        return int(self._told[0])

    def tell(self, batch: str, attempt: int, verdict: Verdict) -> None:
        """Add one; the oldest goes."""
        number = self.told
        body = _BODY.pack(_key(batch, attempt), number, _CODES[verdict])
        at = self._start + (number % RING) * _ENTRY.itemsize
        self._data[at : at + _ENTRY.itemsize] = body + _CHECK.pack(zlib.crc32(body))
        self._told[0] = number + 1

    def find(self, batch: str, attempt: int) -> Verdict | None:
        """The newest on this gradient; None: nothing, or so long ago that it is forgotten."""
        high, low = struct.unpack("<QQ", _key(batch, attempt))
        found: tuple[int, Verdict] | None = None
        for place in np.flatnonzero((self._ring["low"] == low) & (self._ring["high"] == high)):
            at = self._start + int(place) * _ENTRY.itemsize
            entry = self._data[at : at + _ENTRY.itemsize]
            _, number, code = _BODY.unpack_from(entry)
            whole = zlib.crc32(entry[: _BODY.size]) == _CHECK.unpack_from(entry, _BODY.size)[0]  # else it is being written
            if whole and code in _MEANINGS and (found is None or number > found[0]):
                found = (number, _MEANINGS[code])
        return found[1] if found else None


def _key(batch: str, attempt: int) -> bytes:
    return hashlib.sha256(f"{attempt}/{batch}".encode()).digest()[:16]
