"""By how much the children of each task moved, on average: the vectors that tasks are compared by."""

from collections.abc import Mapping, Sequence

import numpy as np

from master.rules import weights
from master.rules.deltas import moved, rows_of
from master.rules.rule import Contribution, Matrix, Parameters, Rows

Shares = Mapping[str, Mapping[str, float]]
"""task -> child -> share of the task's movement; of each task they sum to 1. Tasks in the order of names."""


def shares_by_task(updates: Sequence[Contribution], most: float = 1.0) -> dict[str, dict[str, float]]:
    """The shares of each task's children, by their samples of it; nobody is in it who has none."""
    return {task: weights.within_task(updates, task, most) for task in weights.tasks_of(updates)}


def task_movement(base: Parameters, updates: Sequence[Contribution], shares: Mapping[str, float]) -> Rows:
    """The weighted mean movement of one task's children, as a vector that is read by rows. Others' updates are not read."""
    taken = [(update, share) for update in updates if (share := shares.get(update.child, 0.0)) > 0]

    def read(name: str, rows: slice) -> Matrix:
        total = np.zeros_like(rows_of(base, name, rows))
        for update, share in taken:
            total += share * moved(update, base, name, rows)
        return total

    return read
