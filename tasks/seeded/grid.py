"""Which tiles a part of a tensor needs, and where each goes.

A tensor is seen as L matrices of R rows and C columns: trailing axes are merged into the columns until there are 256 or more, the
next ones into the rows until there are 256 or more, the rest are the L. So a shard by rows, by columns, by experts (E, R, C) or by
channels of a kernel (O, I, 3, 3) needs few tiles that it does not fill. A tile has 4096 elements: 64 x 64 where there are more than
32 rows, else as many rows as the next power of two. All of it follows from the whole tensor's shape, never from the part's.

Letters: L, R, C as above; i, j count tiles down and across; a window is a run of tiles along one axis.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from trunkline.errors import UsageError

TILE = 4096
"""Elements of a tile."""

BATCH = 8
"""Tiles that are made at a time; no value depends on it."""

BATCH_OF_SEVERAL = 32
"""The same for each of several threads: of small batches the interpreter's lock is taken so often that they wait for each other."""

_SIDE, _ENOUGH = 64, 256

Places = range | NDArray[np.int64]
"""Places along an axis that a part has, rising: a range wherever there is one, since it takes no memory."""

Index = slice | range | Sequence[int] | NDArray[np.int64]
"""What a caller may say for an axis."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The tiles of a tensor."""

    shape: tuple[int, ...]
    axes: tuple[int, int]  # where the rows and where the columns begin
    rows: int  # of a tile
    columns: int  # of a tile
    down: int  # tiles of one matrix
    across: int

    def tile(self, matrix: int, i: int, j: int) -> int:
        """The number of a tile in its tensor."""
        return (matrix * self.down + i) * self.across + j


@dataclass(frozen=True, slots=True)
class Window:
    """A run of tiles along one axis, and what a part takes of it."""

    first: int  # tile
    tiles: int
    take: slice | NDArray[np.int64]  # places within the run
    put: slice  # where they lie in the part


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Tiles that are made at a time."""

    matrix: int
    put: int  # which matrix of the part it is
    rows: Window
    columns: Window


def grid_of(shape: tuple[int, ...]) -> Grid:
    """The tiles of a tensor of this shape.

    >>> grid_of((512, 256, 3, 3))
    Grid(shape=(512, 256, 3, 3), axes=(0, 1), rows=64, columns=64, down=8, across=36)
    """
    second = _merged(shape, len(shape))
    first = _merged(shape, second)
    rows, columns = prod(shape[first:second]), prod(shape[second:])
    side = min(_SIDE, 1 << max(0, rows - 1).bit_length())
    return Grid(shape, (first, second), side, TILE // side, -(-rows // side), -(-columns // (TILE // side)))


def _merged(shape: tuple[int, ...], end: int) -> int:
    """Where the axes begin that are merged up to `end`."""
    begin = end
    while begin and prod(shape[begin:end]) < _ENOUGH:
        begin -= 1
    return begin


def places(index: Sequence[Index], shape: tuple[int, ...]) -> tuple[Places, ...]:
    """What was said for each axis, as places; axes that nothing was said for are whole.

    :raises UsageError: more axes than there are, a place outside, or places that do not rise.
    """
    if len(index) > len(shape):
        raise UsageError(f"`index` should have at most {len(shape)} axes, found {len(index)}.")
    whole = [slice(None)] * (len(shape) - len(index))
    return tuple(_axis(said, length) for said, length in zip([*index, *whole], shape, strict=True))


def _axis(said: Index, length: int) -> Places:
    found = range(length)[said] if isinstance(said, slice) else said if isinstance(said, range) else _regular(said)
    if not len(found):
        return range(0)
    rising = found.step > 0 if isinstance(found, range) else bool((np.diff(found) > 0).all())
    if not rising or found[0] < 0 or found[-1] >= length:
        raise UsageError(f"`index` should be rising places below {length}, found {_shown(said)}.")
    return found


def _regular(said: Sequence[int] | NDArray[np.int64]) -> Places:
    """As a range where the places are evenly apart."""
    array = np.asarray(said, dtype=np.int64).reshape(-1)
    steps = np.diff(array)
    if not array.size or (steps != steps[:1]).any() or (steps[:1] <= 0).any():
        return array
    step = int(steps[0]) if steps.size else 1
    return range(int(array[0]), int(array[-1]) + 1, step)


def _shown(said: object) -> str:
    text = repr(said)
    return text if len(text) < 80 else f"{text[:77]}…"


def rectangles(grid: Grid, index: tuple[Places, ...], batch: int) -> Iterator[Rectangle]:
    """Cover a part by rectangles of at most `batch` tiles; no two of them put anything in the same place."""
    if not all(len(axis) for axis in index):
        return
    first, second = grid.axes
    matrices = _flat(index[:first], grid.shape[:first])
    rows, columns = _flat(index[first:second], grid.shape[first:second]), _flat(index[second:], grid.shape[second:])
    for put, matrix in enumerate(matrices):
        for across in _windows(columns, grid.columns, batch):
            for down in _windows(rows, grid.rows, max(1, batch // across.tiles)):
                yield Rectangle(int(matrix), put, down, across)


def _flat(index: tuple[Places, ...], shape: tuple[int, ...]) -> Places:
    """Places along merged axes, as one axis; none of them is empty."""
    flat: Places = range(1)
    for axis, length in zip(index, shape, strict=True):
        if isinstance(axis, range) and len(flat) == 1:
            base = int(flat[0]) * length
            flat = range(base + axis.start, base + axis.stop, axis.step)
        elif len(axis) == length and isinstance(flat, range) and flat.step == 1:
            flat = range(flat.start * length, flat.stop * length)
        else:
            flat = (np.asarray(flat, np.int64)[:, None] * length + np.asarray(axis, np.int64)).reshape(-1)
    return flat


def _windows(index: Places, tile: int, most: int) -> Iterator[Window]:
    """Runs of neighbouring tiles, each of at most `most`, that hold all these places, and no tile between that holds none."""
    at = 0
    while at < len(index):
        first = int(index[at]) // tile
        end = _below(index, (first + most) * tile, at)
        if (isinstance(index, range) and index.step > tile) or not isinstance(index, range):
            end = _gap(index, tile, at, end)
        last = int(index[end - 1]) // tile
        yield Window(first, last - first + 1, _within(index, at, end, first * tile), slice(at, end))
        at = end


def _below(index: Places, limit: int, at: int) -> int:
    """How many places lie below `limit`."""
    if isinstance(index, range):
        return min(len(index), -((index.start - limit) // index.step))
    return int(np.searchsorted(index[at:], limit)) + at


def _gap(index: Places, tile: int, at: int, end: int) -> int:
    """Where the first tile ends that the next place's is no neighbour of."""
    numbers = np.asarray(index[at:end], np.int64) // tile
    gaps = np.flatnonzero(np.diff(numbers) > 1)
    return at + int(gaps[0]) + 1 if gaps.size else end


def _within(index: Places, at: int, end: int, base: int) -> slice | NDArray[np.int64]:
    if isinstance(index, range):
        return slice(index[at] - base, index[end - 1] - base + 1, index.step)
    return index[at:end] - base
