"""Any part of a tensor, as numpy."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import numpy as np

from tasks.seeded.bits import Bits, Mode, key_of, source
from tasks.seeded.draw import Block, Draw, constant_of, draw_of
from tasks.seeded.grid import BATCH, BATCH_OF_SEVERAL, TILE, Grid, Index, Places, Rectangle, grid_of, places, rectangles
from tasks.seeded.laws import Constant, Law
from trunkline.errors import UsageError
from trunkline.tensors import DTYPES, FLOATS, Array, to_bf16


@dataclass(frozen=True)
class SeededTensor:
    """A tensor that is nowhere, and of which any part can be had.

    :param seed: of everything that is made together, 0 … 2^63 - 1.
    :param name: tells it from the other tensors of that seed.
    :param shape: of the whole tensor.
    :param law: what its elements are distributed as.
    :param dtype: as safetensors names it. Values are made as float32 and then rounded; bfloat16 is held as uint16.
    :param mode: see `tasks.seeded.bits`.
    :param zero_rows: places along the first axis where all is zero, such as an embedding's padding.
    :raises UsageError: one of these cannot be.
    """

    seed: int
    name: str
    shape: tuple[int, ...]
    law: Law
    dtype: str = "F32"
    mode: Mode = "portable"
    zero_rows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"`seed` should be 0 or more and below 2^63, found {self.seed}.")
        if self.dtype not in FLOATS:
            raise UsageError(f"`dtype` should be one of {', '.join(sorted(FLOATS))}, found {self.dtype!r}.")
        if self.mode not in ("portable", "fast"):
            raise UsageError(f"`mode` should be portable or fast, found {self.mode!r}.")
        if not all(self.shape and 0 <= row < self.shape[0] for row in self.zero_rows):
            raise UsageError(f"`zero_rows` should be places of the first axis of {self.shape}, found {self.zero_rows}.")

    def read(self, *index: Index, threads: int = 1) -> Array:
        """A part: `read(slice(0, 10), slice(None, None, 2))`.

        :param index: for each axis a slice, or rising places; axes that nothing is said for are whole. No axis is dropped.
        :param threads: how many make it; no value depends on it.
        :returns: as many elements along each axis as were said, in `dtype`.
        :raises UsageError: places that are not there, or do not rise.
        """
        where = places(index, self.shape)
        out = np.empty(tuple(map(len, where)), DTYPES[self.dtype])
        self._fill(out, where, threads)
        return out

    def fill(self, out: Array, *index: Index, threads: int = 1) -> None:
        """Write a part into an array that is there, of the part's shape and of `dtype`, in place. Arguments as of `read`.

        :raises UsageError: the array is not so, or its axes cannot be merged without a copy.
        """
        where = places(index, self.shape)
        wanted = tuple(map(len, where))
        if out.shape != wanted or out.dtype != DTYPES[self.dtype]:
            raise UsageError(f"`out` should be {self.dtype} {wanted}, found {out.dtype} {out.shape}.")
        self._fill(out, where, threads)

    def rows(self, ids: Sequence[int] | Array, threads: int = 1) -> Array:
        """Rows by their numbers, in any order and as often as wanted: those of an embedding that nobody holds whole."""
        wanted, back = np.unique(np.asarray(ids, dtype=np.int64), return_inverse=True)
        return self.read(wanted, threads=threads)[back.reshape(-1)]

    # -- how -----------------------------------------------------------------------------------------------------------

    def _fill(self, out: Array, where: tuple[Places, ...], threads: int) -> None:
        if isinstance(self.law, Constant):
            value = np.asarray(constant_of(self.law))
            out[...] = to_bf16(value) if self.dtype == "BF16" else value
        elif out.size:
            self._draw(out, draw_of(self.law), where, threads)
        for row in self.zero_rows:
            out[np.asarray(where[0]) == row] = 0

    def _draw(self, out: Array, draw: Draw, where: tuple[Places, ...], threads: int) -> None:
        grid = grid_of(self.shape)
        view = _matrices(out, grid)
        batch = min(BATCH if threads <= 1 else BATCH_OF_SEVERAL, grid.down * grid.across)  # all are of one matrix
        todo = _Shared(rectangles(grid, where, batch))
        put = _rounded if self.dtype == "BF16" else _as_it_is

        def work() -> None:
            bits = source(self.mode, key_of(self.seed, self.name), draw.words, batch)
            _Worker(grid, draw, bits, put, batch).work(todo, view)

        if threads <= 1:
            return work()
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(work) for _ in range(threads)]:
                done.result()
        return None


def _matrices(out: Array, grid: Grid) -> Array:
    """The part as (matrices, rows, columns), without a copy.

    :raises UsageError: it cannot be had without one.
    """
    first, second = grid.axes
    shape = out.shape
    merged = (_size(shape[:first]), _size(shape[first:second]), _size(shape[second:]))
    view = out.reshape(merged)
    if not np.may_share_memory(view, out):
        raise UsageError(f"`out` should have axes that can be merged to {merged}, found strides {out.strides} of {shape}.")
    return view


def _size(shape: Iterable[int]) -> int:
    return int(np.prod(tuple(shape), dtype=np.int64))


def _as_it_is(target: Array, values: Array) -> None:
    target[...] = values


def _rounded(target: Array, values: Array) -> None:
    target[...] = to_bf16(values)


class _Shared:
    """Rectangles that several threads take from, one at a time."""

    def __init__(self, rectangles: Iterator[Rectangle]) -> None:
        self._rectangles, self._lock = rectangles, Lock()

    def __iter__(self) -> Iterator[Rectangle]:
        while True:
            with self._lock:
                found = next(self._rectangles, None)
            if found is None:
                return
            yield found


class _Worker:
    """Makes rectangles, in buffers of its own."""

    def __init__(self, grid: Grid, draw: Draw, bits: Bits, put: Callable[[Array, Array], None], batch: int) -> None:
        self.grid, self.draw, self.bits, self.put = grid, draw, bits, put
        self._block = np.empty((batch, TILE), np.float32)
        self._work = np.empty((batch, TILE), np.float32)

    def work(self, todo: Iterable[Rectangle], view: Array) -> None:
        for one in todo:
            tiles = self._tiles(one)
            self._finish(*self._cropped(tiles, one, view[one.put, one.rows.put, one.columns.put]))

    def _tiles(self, one: Rectangle) -> Block:
        """Standard values: (down, rows, across, columns), so that flat it is what lies on the sheet."""
        down, across, grid = one.rows.tiles, one.columns.tiles, self.grid
        runs = [(grid.tile(one.matrix, one.rows.first + i, one.columns.first), across) for i in range(down)]
        block = self._block[: down * across]
        self.draw.standard(self.bits.words(runs), block, self._work[: down * across])
        return block.reshape(down, across, grid.rows, grid.columns).transpose(0, 2, 1, 3)

    def _cropped(self, tiles: Block, one: Rectangle, target: Array) -> tuple[Block, Array]:
        """What is wanted of the tiles, and where it goes, in one shape."""
        if target.size == tiles.size:  # all of them
            return tiles, target.reshape(tiles.shape)
        down, rows, across, columns = tiles.shape
        sheet = self._work[: down * across].reshape(down * rows, across * columns)
        np.copyto(sheet.reshape(tiles.shape), tiles)
        return sheet[one.rows.take][:, one.columns.take], target

    def _finish(self, values: Block, target: Array) -> None:
        draw = self.draw
        plain = target.dtype == np.float32
        scaled = np.multiply(values, draw.scale, out=target if plain else values)
        if draw.shift:
            np.add(scaled, draw.shift, out=scaled)
        if draw.bounds is not None:
            np.clip(scaled, *draw.bounds, out=scaled)
        if not plain:
            self.put(target, scaled)
