"""By how much the children of each task moved, on average: the vectors that tasks are compared by.

Legend: n children, T tasks, d elements of a row slice.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from master.rules import weights
from master.rules.deltas import floats, line_of
from master.rules.rule import Contribution, Matrix, Parameters
from trunkline.tensors import Array, row_slices

Shares = Mapping[str, Mapping[str, float]]
"""task -> child -> share of the task's movement; of each task they sum to 1. Tasks in the order of names."""

AT_ONCE = 1 << 17
"""Elements that are worked on at a time, of all children together: 0.5 or 1 MB, which caches hold."""


def shares_by_task(updates: Sequence[Contribution], most: float = 1.0) -> dict[str, dict[str, float]]:
    """The shares of each task's children, by their samples of it; nobody is in it who has none."""
    return {task: weights.within_task(updates, task, most) for task in weights.tasks_of(updates)}


def sharers(updates: Sequence[Contribution], shares: Shares) -> tuple[list[Contribution], Matrix]:
    """The children that have a share in some task, and their shares as a table `(T, n)`."""
    taken = [update for update in updates if any(of_task.get(update.child) for of_task in shares.values())]
    return taken, np.array([[of_task.get(update.child, 0.0) for update in taken] for of_task in shares.values()])


def blocks(base: Parameters, updates: Sequence[Contribution], kind: type[np.floating]) -> Iterator[tuple[str, slice, Array, Array]]:
    """Pass over all float tensors in the order of the file: name, rows, the base there `(d,)`, and what each child moved `(n, d)`.

    :param kind: numpy's type of the movements, float32 or float64.
    """
    for name in floats(base):
        for rows in row_slices(base.spec[name], AT_ONCE // (len(updates) + 1)):
            start = line_of(base, name, rows)
            moved = np.empty((len(updates), len(start)), kind)
            for line, update in zip(moved, updates, strict=True):
                before = start if update.base is None else line_of(update.base, name, rows)
                np.subtract(line_of(update.parameters, name, rows), before, line, dtype=kind, casting="same_kind")
            yield name, rows, start, moved


def task_products(base: Parameters, updates: Sequence[Contribution], shares: Shares) -> Matrix:
    """The inner products `(T, T)` of what each task's children moved on average. One pass; done again, the same bits."""
    taken, table = sharers(updates, shares)
    total = np.zeros((len(shares), len(shares)))
    with np.errstate(over="ignore", invalid="ignore"):
        for _, _, _, moved in blocks(base, taken, np.float64):
            tasks = table @ moved  # (T, d)
            total += tasks @ tasks.T
    return (total + total.T) / 2
