"""What several rules do with updates: their rows in float64, how far they moved, and the products of their movements."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from master.rules.rule import Contribution, Matrix, Parameters, Rows
from trunkline.tensors import FLOATS, SLICE_ELEMENTS, Array, from_bf16, row_slices, widen

PIECE = 1 << 14
"""Most elements of a piece: those of several children lie in the caches together."""

WIDE = 1 << 15
"""The same for rules of single coordinates, which do much for each call; nothing they make depends on it, as sums would."""


def floats(spec: Parameters) -> list[str]:
    """Names of the float tensors, in the order of the file."""
    return [name for name, tensor in sorted(spec.spec.items()) if tensor.dtype in FLOATS]


def rows_of(parameters: Parameters, name: str, rows: slice) -> Matrix:
    """Rows of a float tensor in float64, never a scalar."""
    return np.asarray(widen(parameters.read(name, rows), parameters.spec[name].dtype))


def line_of(parameters: Parameters, name: str, rows: slice) -> Array:
    """Rows of a float tensor as one line, in float32 where that holds them exactly, else in float64."""
    values, dtype = parameters.read(name, rows), parameters.spec[name].dtype
    line = (from_bf16(values.astype(np.uint16, copy=False)) if dtype == "BF16" else values).reshape(-1)
    return line.astype(np.float32) if dtype == "F16" else line


def moved(update: Contribution, base: Parameters, name: str, rows: slice) -> Matrix:
    """By how much an update moves rows of a tensor from what it was trained from."""
    return np.asarray(rows_of(update.parameters, name, rows) - rows_of(update.base or base, name, rows))


def pieces(parameters: Parameters, name: str, rows: slice, count: int, most: int = PIECE) -> Iterator[slice]:
    """Cut rows so small that `count` updates of them take no more memory than a few of the usual slices."""
    step = max(1, min(most, 4 * SLICE_ELEMENTS // max(1, count)) // max(1, parameters.spec[name].row))
    for start in range(rows.start, rows.stop, step):
        yield slice(start, min(start + step, rows.stop))


def by_pieces(base: Parameters, updates: Sequence[Contribution], rule: Callable[[Array], Array]) -> Rows:
    """Rows that a rule makes coordinate by coordinate: it is given `(n, d)`, the values of every update, and answers `(d,)`.

    Values are those of the updates moved to the round's base, so one that was trained from an older base counts by its movement.
    They are float32 where that holds every update's values exactly, else float64, and the rule's own to work in.
    """

    def read(name: str, rows: slice) -> Matrix:
        shape = (rows.stop - rows.start, *base.spec[name].shape[1:]) if base.spec[name].shape else ()
        exact = all(update.base is None and update.parameters.spec[name].dtype != "F64" for update in updates)
        found = np.empty((rows.stop - rows.start) * base.spec[name].row)
        done = 0
        for piece in pieces(base, name, rows, len(updates), WIDE):
            size = (piece.stop - piece.start) * base.spec[name].row
            if not size:
                continue
            values = np.empty((len(updates), size), np.float32 if exact else np.float64)
            for row, update in zip(values, updates, strict=True):
                row[:] = _at_base(update, base, name, piece, exact)
            found[done : done + size] = rule(values)
            done += size
        return found.reshape(shape)

    return read


def _at_base(update: Contribution, base: Parameters, name: str, rows: slice, exact: bool) -> Array:
    if exact or update.base is None:
        return line_of(update.parameters, name, rows)
    return (rows_of(base, name, rows) + moved(update, base, name, rows)).reshape(-1)


def gramian(base: Parameters, vectors: Sequence[Callable[[str, slice], Matrix]]) -> Matrix:
    """The inner products `(n, n)` of vectors that are read by rows, over all float tensors; one pass, one slice of each in memory.

    The sum runs over the slices in the order of the file, so it is the same bit for bit whenever it is computed again.
    """
    count = len(vectors)
    total = np.zeros((count, count))
    for name in floats(base):
        for rows in row_slices(base.spec[name]):
            for piece in pieces(base, name, rows, count):
                stacked = np.empty((count, (piece.stop - piece.start) * base.spec[name].row))  # (n, d)
                for line, read in zip(stacked, vectors, strict=True):
                    line[:] = read(name, piece).reshape(-1)
                with np.errstate(over="ignore"):
                    total += stacked @ stacked.T
    return (total + total.T) / 2


def movements(base: Parameters, updates: Sequence[Contribution]) -> list[Callable[[str, slice], Matrix]]:
    """Each update's movement as a vector for `gramian`. They share the rows of the base that were read last."""
    kept: dict[tuple[str, int, int], Matrix] = {}

    def start(name: str, rows: slice) -> Matrix:
        key = (name, rows.start, rows.stop)
        if key not in kept:
            kept.clear()
            kept[key] = rows_of(base, name, rows)
        return kept[key]

    def movement(update: Contribution, name: str, rows: slice) -> Matrix:
        before = start(name, rows) if update.base is None else rows_of(update.base, name, rows)
        line = line_of(update.parameters, name, rows)
        return np.asarray(np.subtract(line, before.reshape(-1), dtype=np.float64).reshape(before.shape))

    return [lambda name, rows, update=update: movement(update, name, rows) for update in updates]


def weighted_movement(base: Parameters, updates: Sequence[Contribution], factors: Mapping[str, float]) -> Rows:
    """`base + sum_c factor_c (update_c - its base)`; a factor of zero leaves a child out altogether."""
    taken = [(update, factors[update.child]) for update in updates if factors[update.child] != 0]

    def read(name: str, rows: slice) -> Matrix:
        start = rows_of(base, name, rows)
        total = np.zeros_like(start)
        for update, factor in taken:
            total += factor * moved(update, base, name, rows)
        return np.where(total == 0, start, start + total)  # what nobody moved stays as it is, also a negative zero

    return read
