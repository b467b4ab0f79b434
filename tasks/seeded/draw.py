"""From random words to values: one batch of tiles at a time, and only by operations that every machine rounds alike.

Normal: two picks of a table of quantiles, one from each half of the tile, are turned by 45 degrees: (a + b, a - b) / sqrt 2. Each
of the two has 32 bits behind it and reaches 6 standard deviations, for 16 bits an element. There is no logarithm and no sine, and
nothing is rejected, so an element never depends on how many others were made.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tasks.seeded.bits import Words
from tasks.seeded.grid import TILE
from tasks.seeded.laws import Constant, Normal, Truncated, Uniform
from tasks.seeded.quantiles import normal_table, truncated_table

Block = NDArray[np.float32]
"""Tiles, one a row: (tiles, 4096)."""

_HALF = TILE // 2
_AT_A_TIME = 4  # tiles that are looked up at a time: numpy widens picks to 8 bytes each meanwhile
_FEWER = 2  # where there are twice as many words


@dataclass(frozen=True, slots=True)
class Draw:
    """How values of a distribution are made: standard ones from words, then scaled and moved."""

    words: int  # 64-bit words a tile
    standard: Callable[[Words, Block, Block], None]  # words, where they go, room to work in
    scale: np.float32
    shift: np.float32
    bounds: tuple[np.float32, np.float32] | None = None  # rounding may not step over them


def draw_of(law: Uniform | Normal | Truncated) -> Draw:
    """How this distribution is drawn."""
    if isinstance(law, Normal):
        return Draw(TILE // 4, partial(_normal, normal_table()), np.float32(law.std), np.float32(law.mean))
    if isinstance(law, Uniform):
        scale, shift = np.float32((law.high - law.low) / 2), np.float32((law.high + law.low) / 2)
        return Draw(TILE // 2, _uniform, scale, shift, (np.float32(law.low), np.float32(law.high)))
    table = truncated_table(*law.bounds())
    return Draw(TILE // 2, partial(_truncated, table), np.float32(law.std), np.float32(law.mean), (_up(law.low), _down(law.high)))


def constant_of(law: Constant) -> np.float32:
    """The value, as float32 has it."""
    return np.float32(law.value)


def _normal(table: NDArray[np.float32], words: Words, out: Block, work: Block) -> None:
    picks = words.view("<u2").reshape(out.shape)
    for at in range(0, len(out), _AT_A_TIME):  # `wrap` never wraps here, but is quicker than a check
        table.take(picks[at : at + _AT_A_TIME], out=work[at : at + _AT_A_TIME], mode="wrap")
    first, second = work[:, :_HALF], work[:, _HALF:]
    np.add(first, second, out=out[:, :_HALF])
    np.subtract(first, second, out=out[:, _HALF:])


def _uniform(words: Words, out: Block, _: Block) -> None:
    """Odd multiples of 2^-24 in (-1, 1), each exact."""
    whole = words.view("<u4")
    np.right_shift(whole, 8, out=whole)
    np.copyto(out, whole.view("<i4").reshape(out.shape), casting="same_kind")  # below 2^24, so exact
    np.multiply(out, np.float32(2**-23), out=out)
    np.subtract(out, np.float32(1 - 2**-24), out=out)


def _truncated(table: NDArray[np.float32], words: Words, out: Block, work: Block) -> None:
    """A bin by 16 bits, a place in it by 16 more."""
    halves = words.view("<u2").reshape(*out.shape, 2)
    np.copyto(out, halves[:, :, 0])
    np.add(out, np.float32(0.5), out=out)
    np.multiply(out, np.float32(2**-16), out=out)
    for at in range(0, len(out), _FEWER):
        part = slice(at, at + _FEWER)
        _in_bins(table, halves[part, :, 1].astype(np.intp), out[part], work[part])


def _in_bins(table: NDArray[np.float32], picks: NDArray[np.intp], out: Block, work: Block) -> None:
    np.multiply(out, table[1].take(picks, out=work, mode="wrap"), out=out)
    np.add(out, table[0].take(picks, out=work, mode="wrap"), out=out)


def _up(value: float) -> np.float32:
    """The least float32 that is not below."""
    near = np.float32(value)
    return near if float(near) >= value else np.nextafter(near, np.float32(np.inf))


def _down(value: float) -> np.float32:
    return -_up(-value)
