"""Philox and a seeded tensor's values in plain Python integers, one element at a time: slow, and read beside the papers.

Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011), section 3.3, with the constants of Random123.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from math import prod

WIDTHS = {
    32: ((0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)),
    64: ((0xD2E7470EE14C6C93, 0xCA5A826395121157), (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)),
}


def philox4x(width: int, counter: Sequence[int], key: Sequence[int], rounds: int = 10) -> tuple[int, ...]:
    """Four words of 32 or 64 bits from a counter of four and a key of two."""
    (m0, m1), (w0, w1) = WIDTHS[width]
    mask = (1 << width) - 1
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        high0, low0 = divmod(m0 * c0, 1 << width)
        high1, low1 = divmod(m1 * c2, 1 << width)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + w0) & mask, (k1 + w1) & mask
    return c0, c1, c2, c3


@cache
def block(seed: int, name: str, count: int) -> tuple[int, ...]:
    """Four 64-bit words of a tensor's stream."""
    key = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16, person=b"trunkline/seeded").digest()
    words = (int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little"))
    return philox4x(64, (count % 2**64, count >> 64, 0, 0), words)


def bits(seed: int, name: str, tile: int, place: int, width: int) -> int:
    """The bits (16 or 32 of them) of an element of a tile of 4096."""
    a_word = 64 // width
    word, part = divmod(place, a_word)
    count, at = divmod(word, 4)
    blocks = 4096 // a_word // 4
    return block(seed, name, tile * blocks + count + 1)[at] >> (width * part) & ((1 << width) - 1)


def tile_and_place(shape: Sequence[int], at: Sequence[int]) -> tuple[int, int]:
    """Which tile an element is in, and where."""
    axes = list(shape)
    columns = rows = 1
    while axes and columns < 256:
        columns *= axes.pop()
    while axes and rows < 256:
        rows *= axes.pop()
    flat = 0
    for length, place in zip(shape, at, strict=True):
        flat = flat * length + place
    matrix, within = divmod(flat, rows * columns)
    row, column = divmod(within, columns)
    high = 1
    while high < rows and high < 64:
        high *= 2
    wide = 4096 // high
    down, across = (rows + high - 1) // high, (columns + wide - 1) // wide
    assert matrix < max(1, prod(axes))
    return (matrix * down + row // high) * across + column // wide, row % high * wide + column % wide
