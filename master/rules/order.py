"""Values of many children in order, coordinate by coordinate: what median-like rules are made of.

Each child's values are one long row, and whole rows are compared at once: a sorting network (Batcher, 1968, "Sorting networks and
their applications") names the pairs of rows whose smaller and larger values change places. That is several times as fast as sorting
each coordinate by itself. Floats are compared as whole numbers in the same order, so a negative zero comes before a positive one
and the outcome is the same bits on every machine. Where children have different shares, the child's number is packed beneath the
value, so that equal values stay in the order of the children and each share is found again after its value.

Legend: n children, d coordinates.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from master.rules.rule import Matrix
from trunkline.tensors import Array


def ordered(values: Array, wanted: Sequence[int] | None = None) -> list[Array]:
    """Rows `(d,)` by rank: row k holds the k-th smallest value of each coordinate.

    :param values: `(n, d)` of float32 or float64; it is worked in.
    :param wanted: the ranks that are looked at; None: all. The rows of others make no sense.
    """
    ranks = range(len(values)) if wanted is None else sorted(set(wanted))
    rows = sort(keys_of(values), tuple(ranks))
    return [values_of(row, values.dtype) if rank in ranks else row for rank, row in enumerate(rows)]


def ordered_with(values: Array, shares: Matrix) -> Iterator[tuple[Array, Matrix]]:
    """By rank, rows `(d,)` of values and of the shares of the children that they came from.

    Equal values stand in the order of the children.

    :param values: `(n, d)` of float32 or float64; it is worked in.
    :param shares: `(n,)`.
    """
    keys = keys_of(values)
    if values.dtype != np.float32:  # no room for the child's number
        order = np.argsort(keys, axis=0, kind="stable")
        for ranked in order:
            yield values_of(np.take_along_axis(keys, ranked[None], axis=0)[0], values.dtype), shares[ranked]
        return
    packed = np.empty(keys.shape, np.int64)
    for number, (row, key) in enumerate(zip(packed, keys, strict=True)):
        row[:] = key
        row <<= 32
        row |= number
    for row in sort(packed, tuple(range(len(packed)))):
        theirs = shares.take(row & 0x7FFFFFFF, mode="clip")  # never clips, but is quicker than a check
        row >>= 32
        yield values_of(row.astype(np.int32), values.dtype), theirs


def keys_of(values: Array) -> Array:
    """The same bits as whole numbers in the same order, in place: of a negative float, all bits but the sign are turned over."""
    bits = values.view(np.int32 if values.dtype == np.float32 else np.int64)
    for row in bits:  # one by one they stay in the cache
        _turn(row)
    return bits


def values_of(keys: Array, dtype: np.dtype[np.generic]) -> Array:
    """The floats back, in place."""
    _turn(keys)
    return keys.view(dtype)


def _turn(bits: Array) -> None:
    sign = 8 * bits.itemsize - 1
    signs = bits >> sign
    signs &= (1 << sign) - 1
    bits ^= signs


def sort(keys: Array, wanted: tuple[int, ...]) -> list[Array]:
    """Rows by rank, in the memory of `keys` and one row more; those of ranks that are not wanted make no sense."""
    rows, spare = list(keys), np.empty(keys.shape[1:], keys.dtype)
    for low, high in network(len(rows), wanted):
        np.minimum(rows[low], rows[high], out=spare)
        np.maximum(rows[low], rows[high], out=rows[high])
        rows[low], spare = spare, rows[low]
    return rows


@lru_cache(maxsize=64)
def network(count: int, wanted: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Pairs of rows to compare, in their order, that bring the wanted ranks of `count` rows to their places.

    Batcher's odd-even merge sort for any count (Knuth, The Art of Computer Programming 3, algorithm 5.2.2M), without the pairs that
    no wanted rank depends on.

    >>> network(3, (0, 1, 2))
    ((0, 2), (0, 1), (1, 2))
    """
    pairs: list[tuple[int, int]] = []
    top = 1 << max(0, (count - 1).bit_length() - 1)
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while d > 0:
            pairs += [(i, i + d) for i in range(count - d) if i & p == r]
            d, q, r = q - p, q >> 1, p
        p >>= 1
    needed, kept = set(wanted), list[tuple[int, int]]()
    for low, high in reversed(pairs):
        if low in needed or high in needed:
            kept.append((low, high))
            needed |= {low, high}
    return tuple(reversed(kept))
