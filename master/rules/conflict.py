"""What the conflict-averse rules share: tasks are weighed by whether their movements pull against each other.

A task's movement is the mean movement of its children, by their samples of it. The rule is told the inner products of these
movements and answers a weight for each; what comes out is their weighted sum, made as long as the plain mean of the tasks. So such
a rule turns the step but does not lengthen it, and learning rates that were chosen for the mean fit.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np

from master.rules import weights
from master.rules.by_task import shares_by_task, task_products
from master.rules.deltas import weighted_movement
from master.rules.mean import Mean
from master.rules.rule import Combine, Combined, Contribution, Matrix, Parameters
from tasks import conflict
from trunkline.errors import TooFewChildren

NOWHERE = 1e-6
"""A sum that is shorter than this share of the lengths it is made of is rounding: no direction suits all tasks."""


class ConflictAverse(Combine):
    """A rule over what each task moved by."""

    def check_installed(self) -> None:
        conflict.check_installed()

    @abstractmethod
    def weigh(self, products: Matrix) -> Matrix:
        """A weight for each task `(T,)`, from the inner products of their movements `(T, T)`; no movement is zero, T is at least
        2.
        """

    def combine(self, base: Parameters, updates: Sequence[Contribution], most: float) -> Combined:
        shares = shares_by_task(updates, most)
        if len(shares) <= 1:
            return Mean().combine(base, updates, most)
        self.check_installed()
        products = task_products(base, updates, shares)
        if not np.isfinite(products).all():
            raise TooFewChildren("the movements of tasks should be small enough to be multiplied, found some that are not.")
        factors, stretch = self._factors(dict(zip(shares, products, strict=True)))
        of_child = {
            update.child: sum(factors[task] * of_task.get(update.child, 0.0) for task, of_task in shares.items())
            for update in updates
        }
        notes = {"tasks": {task: _short(factor) for task, factor in factors.items()}, "stretch": _short(stretch)}
        return Combined(weighted_movement(base, updates, of_child), _told(of_child, updates), notes)

    def _factors(self, products: Mapping[str, Matrix]) -> tuple[dict[str, float], float]:
        """What each task's movement is multiplied by, so that the sum is as long as the plain mean of the tasks that moved; and how
        much longer that made it. A task that did not move is left out: some rules would stop all for it.
        """
        moving = [place for place, row in enumerate(products.values()) if row[place] > 0]
        factors = dict.fromkeys(products, 0.0)
        if not moving:
            return factors, 1.0
        chosen = np.stack(list(products.values()))[np.ix_(moving, moving)]
        lengths = np.sqrt(np.diag(chosen))
        cosines = chosen / np.outer(lengths, lengths)
        found = self.weigh(chosen) if len(moving) > 1 else np.ones(1)
        length, of_mean = _length(found * lengths, cosines), _length(lengths / len(lengths), cosines)
        if length <= NOWHERE * float(np.abs(found * lengths).sum()):
            return factors, 0.0
        names = [list(products)[place] for place in moving]
        told = dict(zip(names, (found * (of_mean / length)).tolist(), strict=True))
        return factors | told, of_mean / length


def _length(along: Matrix, cosines: Matrix) -> float:
    """Of a sum that goes so far along each of some unit vectors."""
    return sqrt(max(0.0, float(along @ cosines @ along)))


def _told(factors: dict[str, float], updates: Sequence[Contribution]) -> dict[str, float]:
    """Shares of the children. Who is gone against has none; where nobody has any, every task counts alike."""
    ahead = {child: max(0.0, factor) for child, factor in factors.items()}
    if not any(ahead.values()):
        return weights.share_out(updates, "tasks")
    return weights.shares(ahead)


def _short(number: float) -> float:
    """For people."""
    return float(f"{number:.6g}")
