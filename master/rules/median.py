"""The median of each coordinate."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from master.rules.deltas import by_pieces
from master.rules.half import around_half
from master.rules.order import ordered
from master.rules.robust import Robust
from master.rules.rule import Combined, Contribution, Matrix, Parameters
from trunkline.tensors import Array


class Median(Robust):
    """Weighted coordinate-wise median (Yin et al., 2018, arXiv:1803.01498, definition 1, with weights): half of the weight lies on
    either side. Children with less than half of a task's weight cannot move a coordinate beyond what the others sent.
    """

    name: ClassVar[str] = "median"

    def among(self, base: Parameters, updates: Sequence[Contribution], shares: Mapping[str, float]) -> Combined:
        share = np.array([shares[update.child] for update in updates])
        return Combined(by_pieces(base, updates, lambda values: weighted_median(values, share)), dict(shares))


def weighted_median(values: Array, shares: Matrix) -> Matrix:
    """Of each column of `values` `(n, d)` with the shares `(n,)`: the lower and the upper weighted median, averaged; `(d,)`.

    With equal shares that is the usual median: for an even count the mean of the two in the middle.

    :param values: float32 or float64; it is worked in.

    >>> weighted_median(np.array([[1.0, 1.0], [2.0, 2.0], [10.0, 10.0]]), np.array([0.2, 0.2, 0.6])).tolist()
    [10.0, 10.0]
    """
    if (shares == shares[0]).all():
        middle = ((len(shares) - 1) // 2, len(shares) // 2)
        rows = ordered(values, middle)
        low, high = rows[middle[0]], rows[middle[1]]
    else:
        low, high = around_half(values, shares)
    first = low.astype(np.float64)
    if high is low:
        return first
    last = high.astype(np.float64)
    return np.where(low == high, first, first + (last - first) / 2)  # equal values as they are, also a negative zero
