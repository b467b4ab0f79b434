"""Random words by position: the words of tile t are a function of (seed, name, t), whatever was asked for before.

Both kinds count: a keyed permutation is applied to numbers that never repeat, so nothing is used twice within a tensor, and two
tensors differ in a key of 128 bits. Philox is that of Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011), section
3.3.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Mode = Literal["portable", "fast"]
"""`portable` is the same on every machine and in every later version. `fast` is AES, which processors have built in; it is promised
within one installation only."""

Words = NDArray[np.uint64]  # little-endian

BLOCK = 4
"""Words that one count of Philox4x64 gives."""

_LOW = 2**64 - 1


def key_of(seed: int, name: str) -> bytes:
    """16 bytes that tell one tensor of one seed from all others.

    >>> key_of(7, "layer.weight").hex()
    '2da4a9e191f7324f5da27af8f73dd243'
    """
    return hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16, person=b"trunkline/seeded").digest()


class Bits(Protocol):
    """A source of words. It may keep a place or buffers, so each thread has its own."""

    def words(self, runs: Sequence[tuple[int, int]]) -> Words:
        """The words of runs of tiles, each `(first tile, count)`, one after another; flat, the caller's own until the next call."""
        ...


class Philox:
    """Philox4x64-10. Tile t has the counts `t * size / 4 + 1` onwards (numpy counts up before it draws).

    :param size: words a tile, a multiple of 4.
    """

    def __init__(self, key: bytes, size: int) -> None:
        self.size = size
        self._key = [int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")]
        self._source = np.random.Philox(key=self._key)
        self._next: int | None = None  # the tile that comes next without a jump

    def words(self, runs: Sequence[tuple[int, int]]) -> Words:
        parts = [self._run(first, count) for first, count in runs]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _run(self, first: int, count: int) -> Words:
        if first != self._next:
            self._jump(first * (self.size // BLOCK))
        self._next = first + count
        return self._source.random_raw(count * self.size).astype("<u8", copy=False)

    def _jump(self, counts: int) -> None:
        state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": [counts & _LOW, counts >> 64, 0, 0], "key": self._key},
            "buffer": (0, 0, 0, 0),
            "buffer_pos": BLOCK,  # nothing is left of an earlier count
            "has_uint32": 0,
            "uinteger": 0,
        }
        self._source.state = state


class Aes:
    """AES-128 of (tile, place in the tile), each 64 bits, little-endian.

    :param size: words a tile, an even number.
    :param most: tiles in one call at most.
    """

    def __init__(self, key: bytes, size: int, most: int) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        # ECB is no mistake here: the blocks are numbers that never repeat, and nothing is kept secret.
        self._encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305
        self.size = size
        self._numbers = np.empty((most, size // 2, 2), "<u8")
        self._numbers[:, :, 1] = np.arange(size // 2)
        self._out = np.empty(most * size * 8 + 16, np.uint8)  # the library wants room for one block more

    def words(self, runs: Sequence[tuple[int, int]]) -> Words:
        done = 0
        for first, count in runs:
            self._numbers[done : done + count, :, 0] = np.arange(first, first + count)[:, None]
            done += count
        self._encryptor.update_into(self._numbers[:done].reshape(-1).view(np.uint8).data, self._out.data)
        return self._out[: done * self.size * 8].view("<u8")


def source(mode: Mode, key: bytes, size: int, most: int) -> Bits:
    """What gives the words of a tensor in this mode; the meanings are those of `Philox` and `Aes`."""
    return Philox(key, size) if mode == "portable" else Aes(key, size, most)
