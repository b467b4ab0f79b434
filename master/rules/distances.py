"""How far updates lie from each other, from the inner products of their movements; and who lies among the others."""

from collections.abc import Sequence

import numpy as np

from master.rules.deltas import gramian, movements
from master.rules.rule import Contribution, Matrix, Parameters

NEAR = 1e-13
"""Squared distance, of the squared lengths, that is taken for none: inner products of long vectors are not known to more digits."""


def squared_distances(base: Parameters, updates: Sequence[Contribution]) -> Matrix:
    """`(n, n)`, in one pass over the updates; zero between updates that differ by no more than rounding."""
    return squared(gramian(base, movements(base, updates)))


def squared(products: Matrix) -> Matrix:
    """Squared distances `(n, n)` from inner products.

    >>> squared(np.array([[1.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.0, 5.0], [5.0, 0.0]]
    """
    lengths = np.diagonal(products)
    with np.errstate(over="ignore", invalid="ignore"):
        both = lengths[:, None] + lengths[None, :]
        found = both - 2 * products
    found[~np.isfinite(found)] = np.inf  # values whose squares float64 does not hold
    found[found <= NEAR * both] = 0.0
    np.fill_diagonal(found, 0.0)
    return found


def krum_scores(squared_distances: Matrix, faulty: int) -> Matrix:
    """Of each update `(n,)`: the sum of the squared distances to the `n - faulty - 2` closest others, at least one of them.

    Sums run from the smallest on, so that updates in the same position have the same score to the last bit.
    """
    count = len(squared_distances)
    closest = max(1, count - faulty - 2)
    others = np.sort(squared_distances + np.diag(np.full(count, np.inf)), axis=1)[:, : min(closest, count - 1)]
    scores = np.zeros(count)
    for column in others.T:
        scores += column
    return scores
