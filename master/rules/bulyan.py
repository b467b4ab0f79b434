"""Krum to choose, then a trimmed mean around the median."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from master.rules.deltas import by_pieces
from master.rules.distances import krum_scores, squared_distances
from master.rules.krum import Faulty
from master.rules.order import ordered
from master.rules.robust import Robust
from master.rules.rule import Combined, Contribution, Matrix, Parameters
from trunkline.tensors import Array


class Bulyan(Robust):
    """Bulyan (El Mhamdi et al., 2018, arXiv:1802.07927, section 4): `n - 2 faulty` updates are chosen by Krum, one after the other
    among those left, and of each coordinate the `n - 4 faulty` values closest to their median are averaged, so that no child can
    hide one wild coordinate in an update that is else like the others'. It needs `4 faulty + 3` children. All chosen children count
    alike.

    Of equal scores the first child's counts, of values equally far from the median the smaller.
    """

    name: ClassVar[str] = "bulyan"
    faulty: Faulty = 1

    @property
    def least(self) -> int:
        return 4 * self.faulty + 3

    def among(self, base: Parameters, updates: Sequence[Contribution], shares: Mapping[str, float]) -> Combined:
        chosen = select(squared_distances(base, updates), self.faulty)
        taken = [updates[at] for at in chosen]
        near = len(taken) - 2 * self.faulty
        counted = {update.child: float(at in chosen) / len(chosen) for at, update in enumerate(updates)}
        rows = by_pieces(base, taken, lambda values: near_median(values, near))
        return Combined(rows, counted, {"chosen": [update.child for update in taken]})


def select(squared_distances: Matrix, faulty: int) -> list[int]:
    """Choose all but `2 faulty` updates, the best of those left each time; their numbers, smallest first."""
    left = list(range(len(squared_distances)))
    chosen: list[int] = []
    while len(chosen) < len(squared_distances) - 2 * faulty:
        scores = krum_scores(squared_distances[np.ix_(left, left)], faulty)
        chosen.append(left.pop(int(np.argmin(scores))))
    return sorted(chosen)


def near_median(values: Array, near: int) -> Matrix:
    """Of each column of `values` `(n, d)`: the mean of the `near` values closest to the median; `(d,)`.

    In order these are neighbours. Their first is found by moving on from the smallest value as long as the one that comes in is
    closer than the one that falls out, which is so up to some point and not after it.

    :param values: float32 or float64; it is worked in.

    >>> near_median(np.array([[0.0], [1.0], [3.0], [4.0], [90.0]]), 3).tolist()
    [2.6666666666666665]
    """
    rows = [row.astype(np.float64) for row in ordered(values)]
    middle = rows[(len(rows) - 1) // 2] / 2 + rows[len(rows) // 2] / 2
    more = len(rows) - near  # how far the first may move on
    first = np.zeros(middle.shape, np.int64)
    for out, into in zip(rows[:more], rows[near:], strict=True):
        first += into - middle < middle - out
    total = np.full(middle.shape, -0.0)  # adding to which changes nothing, not even a negative zero
    for rank, row in enumerate(rows):
        if rank < more:
            row = np.where(first <= rank, row, -0.0)
        if rank >= near:
            row = np.where(rank < first + near, row, -0.0)
        total += row  # those in the middle are among the closest wherever these begin
    return total / near
