"""The weighted mean of the updates.

The sum runs over the children in the order of their ids, slice by slice, and is rounded once: the result does not depend on who
answered first, bit for bit, and is within one unit in the last place of the float64 mean.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from master.rules import weights
from master.rules.deltas import line_of, weighted_movement
from master.rules.rule import Combine, Combined, Contribution, Matrix, Parameters, Rows

PIECE = 1 << 16
"""Elements that are added at a time: in float64 they stay in a core's cache."""


class Mean(Combine):
    """Federated averaging (McMahan et al., 2017, arXiv:1602.05629, algorithm 1): the mean of the children's parameters."""

    name: ClassVar[str] = "mean"
    by: Annotated[weights.Weighting, Field(description="What a child counts by: samples, sqrt (of them), equal, or tasks.")] = (
        "samples"
    )

    def combine(self, base: Parameters, updates: Sequence[Contribution], most: float) -> Combined:
        shares = weights.share_out(updates, self.by, most)
        return Combined(weighted(base, updates, shares), shares)


class MeanByTask(Combine):
    """Every task counts the same, and within it every child by its samples of that task. The same as `mean:by=tasks`."""

    name: ClassVar[str] = "mean_by_task"

    def combine(self, base: Parameters, updates: Sequence[Contribution], most: float) -> Combined:
        return Mean(by="tasks").combine(base, updates, most)


def weighted(base: Parameters, updates: Sequence[Contribution], shares: Mapping[str, float]) -> Rows:
    """The mean with the shares given; a share of zero leaves a child out altogether.

    An update that was trained from an older base counts by its movement from there. The others' rows are added piece by piece, so
    small that products in float64 never leave the cache.
    """
    counted = [update for update in updates if shares[update.child] > 0]
    assert counted, "shares sum to 1, so somebody has one"
    if any(update.base is not None for update in counted):
        return weighted_movement(base, counted, shares)
    taken = [(update.parameters, shares[update.child]) for update in counted]

    def read(name: str, rows: slice) -> Matrix:
        tensor = taken[0][0].spec[name]
        total = np.empty((rows.stop - rows.start) * tensor.row)
        part = np.empty(min(PIECE, total.size))
        for number, (theirs, share) in enumerate(taken):
            line = line_of(theirs, name, rows)
            for start in range(0, total.size, PIECE):
                piece = total[start : start + PIECE]
                product = piece if number == 0 else part[: piece.size]
                product[:] = line[start : start + PIECE]
                product *= share
                if number:
                    piece += product
        return total.reshape((rows.stop - rows.start, *tensor.shape[1:]) if tensor.shape else ())

    return read
