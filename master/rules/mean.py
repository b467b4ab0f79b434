"""The weighted mean of the updates.

The sum runs over the children in the order of their ids, slice by slice, and is rounded once: the result does not depend on who
answered first, bit for bit, and is within one unit in the last place of the float64 mean.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from master.rules import weights
from master.rules.deltas import rows_of
from master.rules.rule import Combine, Combined, Contribution, Matrix, Parameters, Rows


class Mean(Combine):
    """Federated averaging (McMahan et al., 2017, arXiv:1602.05629, algorithm 1): the mean of the children's parameters."""

    name: ClassVar[str] = "mean"
    by: Annotated[weights.Weighting, Field(description="What a child counts by: samples, sqrt (of them), equal, or tasks.")] = (
        "samples"
    )

    def combine(self, base: Parameters, updates: Sequence[Contribution], most: float) -> Combined:
        shares = weights.share_out(updates, self.by, most)
        return Combined(weighted(updates, shares), shares)


class MeanByTask(Combine):
    """Every task counts the same, and within it every child by its samples of that task. The same as `mean:by=tasks`."""

    name: ClassVar[str] = "mean_by_task"

    def combine(self, base: Parameters, updates: Sequence[Contribution], most: float) -> Combined:
        return Mean(by="tasks").combine(base, updates, most)


def weighted(updates: Sequence[Contribution], shares: Mapping[str, float]) -> Rows:
    """The mean with the shares given; a share of zero leaves a child out altogether."""
    taken = [(update.parameters, shares[update.child]) for update in updates if shares[update.child] > 0]

    def read(name: str, rows: slice) -> Matrix:
        total: Matrix | None = None
        for theirs, share in taken:
            part = rows_of(theirs, name, rows)
            part *= share
            total = part if total is None else np.add(total, part, out=total)
        assert total is not None, "shares sum to 1, so somebody has one"
        return total

    return read
