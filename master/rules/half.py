"""The values of each coordinate between which half of the weight is passed, without sorting the weights along.

Only the values are put in order, and of them only the ranks that can be meant: the heaviest children alone or the lightest alone
say how few and how many values can come to half. Among these ranks the value is found by halving. What lies up to a value is the
sum of the shares of those children who sent no more; eight of them at a time are the bits of a byte, which says their sum by a
table.

Legend: n children, d coordinates, m ranks that can be meant.
"""

from collections.abc import Sequence

import numpy as np

from master.rules.order import keys_of, sort, values_of
from master.rules.rule import Matrix
from trunkline.tensors import Array

_BYTE = 8


def around_half(values: Array, shares: Matrix) -> tuple[Array, Array]:
    """The smallest values `(d,)` up to which at least half of the weight lies, and those up to which more than half does.

    They differ where the weight comes to a half exactly, but for rounding.

    :param values: `(n, d)` of float32 or float64; it is worked in.
    :param shares: `(n,)`, positive.
    """
    half = shares.sum() / 2
    least, most = half * (1 - 1e-12), half * (1 + 1e-12)  # sums between them are a half
    rising = np.sort(shares)
    first = int(np.searchsorted(np.cumsum(rising[::-1]), least))
    last = int(np.searchsorted(np.cumsum(rising), most))
    keys, size = keys_of(values), values.shape[1]
    rows = np.stack(sort(keys.copy(), tuple(range(first, last + 1)))[first : last + 1])  # (m, d)
    tables = [_sums(shares[at : at + _BYTE]) for at in range(0, len(shares), _BYTE)]
    at, among = np.arange(size), len(rows)  # places in `rows` as one line: it is one of so many ranks from there
    tied = np.zeros(size, np.bool_)
    while among > 1:
        step = among // 2
        looked = rows[step - 1] if among == len(rows) else rows.take(at + (step - 1) * size)
        weight = _up_to(looked, keys, tables)
        less = weight < least
        tied |= less ^ (weight < most)
        at += less * (step * size)
        among -= step
    low = rows.take(at)
    high, again = low, tied
    while again.any():  # more than once where values are equal
        at += again * size
        high = rows.take(at)
        again = tied & (high == low)
    first = values_of(low, values.dtype)
    return first, first if high is low else values_of(high, values.dtype)


def _sums(shares: Matrix) -> Matrix:
    """The sum of each subset of up to eight shares; of the bits of its number the highest is the first child's.

    >>> _sums(np.array([0.25, 0.5])).tolist()
    [0.0, 0.5, 0.25, 0.75]
    """
    sums = np.zeros(1)
    for share in shares:
        sums = (sums[:, None] + [0.0, share]).reshape(-1)
    return sums


def _up_to(limits: Array, keys: Array, tables: Sequence[Matrix]) -> Matrix:
    """How much of the weight `(d,)` lies up to a value of each coordinate, and with it."""
    total, theirs = np.zeros(len(limits)), np.empty(len(limits), np.bool_)
    for number, table in enumerate(tables):
        subset = np.zeros(len(limits), np.uint8)
        for row in keys[_BYTE * number : _BYTE * (number + 1)]:
            np.less_equal(row, limits, out=theirs)
            subset += subset
            subset |= theirs.view(np.uint8)
        total += table.take(subset, mode="clip")
    return total
