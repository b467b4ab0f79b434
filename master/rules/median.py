"""The median of each coordinate."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from master.rules.deltas import by_pieces
from master.rules.robust import Robust
from master.rules.rule import Combined, Contribution, Matrix, Parameters


class Median(Robust):
    """Weighted coordinate-wise median (Yin et al., 2018, arXiv:1803.01498, definition 1, with weights): half of the weight lies on
    either side. Children with less than half of a task's weight cannot move a coordinate beyond what the others sent.
    """

    name: ClassVar[str] = "median"

    def among(self, base: Parameters, updates: Sequence[Contribution], shares: Mapping[str, float]) -> Combined:
        share = np.array([shares[update.child] for update in updates])
        return Combined(by_pieces(base, updates, lambda values: weighted_median(values, share)), dict(shares))


def weighted_median(values: Matrix, shares: Matrix) -> Matrix:
    """Of each row of `values` `(d, n)` with the shares `(n,)`: the lower and the upper weighted median, averaged; `(d,)`.

    With equal shares that is the usual median: for an even count the mean of the two in the middle.

    >>> weighted_median(np.array([[1.0, 2.0, 10.0], [1.0, 2.0, 10.0]]), np.array([0.2, 0.2, 0.6])).tolist()
    [10.0, 10.0]
    """
    order = np.argsort(values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1)
    below = np.cumsum(shares[order], axis=1)  # weight up to and with each value
    half = shares.sum() / 2
    slack = 1e-12 * half  # sums of shares that come to a half but for rounding
    lower = np.argmax(below >= half - slack, axis=1)
    upper = np.argmax(below > half + slack, axis=1)
    at = np.arange(len(values))
    low, high = ordered[at, lower], ordered[at, upper]
    return np.where(low == high, low, low + (high - low) / 2)  # equal values as they are, also a negative zero
