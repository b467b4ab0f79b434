"""The point that is closest to all updates at once."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from master.rules.deltas import gramian, movements
from master.rules.distances import squared
from master.rules.mean import weighted
from master.rules.robust import Robust
from master.rules.rule import Combined, Contribution, Matrix, Parameters


class GeometricMedian(Robust):
    """Geometric median (RFA: Pillutla et al., 2022, arXiv:1912.13445, algorithm 2, the smoothed Weiszfeld algorithm): the point
    whose weighted sum of distances to all updates is least. Children with less than half of a task's weight cannot move it far,
    whatever they send, and unlike a median of coordinates it does not depend on the axes.

    Every step of the algorithm is a weighted mean of the updates, so it runs on the weights alone, from the inner products of the
    movements, and the updates are read twice however many steps it takes. Where half of the weight lies in one point, that is it.
    """

    name: ClassVar[str] = "geometric_median"
    smooth: Annotated[
        float,
        Field(gt=0, le=1, description="Distance below which an update pulls no harder, of the distance within which half lies."),
    ] = 1e-6
    turns: Annotated[int, Field(ge=1, le=100_000, description="Most steps of the algorithm.")] = 1000

    def among(self, base: Parameters, updates: Sequence[Contribution], shares: Mapping[str, float]) -> Combined:
        share = np.array([shares[update.child] for update in updates])
        found, turns = coefficients(gramian(base, movements(base, updates)), share, self.smooth, self.turns)
        counted = {update.child: float(weight) for update, weight in zip(updates, found, strict=True)}
        return Combined(weighted(base, updates, counted), counted, {"turns": turns})


def coefficients(products: Matrix, shares: Matrix, smooth: float, turns: int) -> tuple[Matrix, int]:
    """The weights `(n,)`, which sum to 1, whose mean is the geometric median, and how many turns it took.

    :param products: inner products `(n, n)` of what the updates moved by.
    :param shares: `(n,)`, which sum to 1.
    """
    away = np.sqrt(squared(products))
    reach = [_half(row, shares) for row in away]  # distance from each update within which half of the weight lies
    center = int(np.argmin(reach))
    if reach[center] == 0:
        there = np.where(away[center] == 0, shares, 0.0)
        return there / there.sum(), 0
    least = smooth * reach[center]
    found = shares
    for turn in range(1, turns + 1):
        pull = shares / np.maximum(least, _distances(products, found))
        before, found = found, pull / pull.sum()
        if (np.abs(found - before) <= 1e-12 * found).all():  # also of the smallest weight: what it is multiplied by may be huge
            return found, turn
    return found, turns


def _half(distances: Matrix, shares: Matrix) -> float:
    order = np.argsort(distances, kind="stable")
    return float(distances[order][np.argmax(np.cumsum(shares[order]) >= 0.5 * (1 - 1e-12))])


def _distances(products: Matrix, weights: Matrix) -> Matrix:
    """Of each update from the mean with these weights: `|m_i - sum_j w_j m_j|`, as the length of a sum of movements.

    Written so, what a wild update adds is multiplied by its small weight before it is summed.
    """
    count = len(weights)
    off = np.eye(count) - weights  # (n, n): row i holds the weights of that sum
    return np.asarray(np.sqrt(np.maximum(0.0, ((off @ products) * off).sum(axis=1))))
