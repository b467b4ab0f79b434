"""Robust rules work within a task and then combine across tasks.

A child whose task nobody else has differs from the others for a good reason: taken over all children it would be the outlier that a
robust rule throws out. So the rule runs among the children of each task, with their samples of that task as weights, and what the
tasks come to is averaged. A breakdown point therefore holds for each task: fewer than half of *its* children, say.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from master.rules import weights
from master.rules.mean import weighted
from master.rules.rule import Combine, Combined, Contribution, Matrix, Parameters, Rows
from trunkline.errors import TooFewChildren


class Robust(Combine):
    """A rule that bears children who send nonsense."""

    within: Annotated[
        Literal["task", "round"], Field(description="Whether it works among the children of each task, or among all of the round.")
    ] = "task"
    across: Annotated[Literal["samples", "equal"], Field(description="Whether tasks count by their samples, or all alike.")] = (
        "samples"
    )
    few: Annotated[
        Literal["mean", "leave_out"],
        Field(description="What a task with fewer children than the rule needs gets: their mean, or no say."),
    ] = "mean"

    @abstractmethod
    def among(self, base: Parameters, updates: Sequence[Contribution], shares: Mapping[str, float]) -> Combined:
        """The rule itself, among children who all have a share.

        :param updates: in the order of the child ids, at least `least`.
        :param shares: of each of them, summing to 1.
        """

    def combine(self, base: Parameters, updates: Sequence[Contribution], most: float) -> Combined:
        if self.within == "round":
            shares = weights.share_out(updates, "samples", most)
            return self._group("the round", base, updates, shares)
        totals = weights.tasks_of(updates)
        found: dict[str, Combined] = {}
        for task in totals:
            shares = weights.within_task(updates, task, most)
            try:
                found[task] = self._group(f"task {task}", base, updates, shares)
            except TooFewChildren:
                if self.few == "leave_out":
                    continue
                taken = [update for update in updates if update.child in shares]
                found[task] = Combined(weighted(base, taken, shares), shares, {"few": len(taken)})
        if not found:
            raise TooFewChildren(
                f"a task should have at least {self.least} children for `{self.name}`, found none that has.",
                hint="Let `few=mean`, or choose a rule for fewer children.",
            )
        return _across(
            found, weights.shares({task: float(totals[task]) if self.across == "samples" else 1.0 for task in found}), updates
        )

    def _group(self, where: str, base: Parameters, updates: Sequence[Contribution], shares: Mapping[str, float]) -> Combined:
        taken = [update for update in updates if shares.get(update.child, 0.0) > 0]
        if len(taken) < self.least:
            raise TooFewChildren(f"`{self.name}` should have at least {self.least} children in {where}, found {len(taken)}.")
        return self.among(base, taken, {update.child: shares[update.child] for update in taken})


def _across(found: Mapping[str, Combined], shares: Mapping[str, float], updates: Sequence[Contribution]) -> Combined:
    """The mean of what the tasks came to."""

    def read(name: str, rows: slice) -> Matrix:
        return np.asarray(sum(shares[task] * combined.read(name, rows) for task, combined in found.items()))

    children = {
        update.child: sum(shares[task] * combined.weights.get(update.child, 0.0) for task, combined in found.items())
        for update in updates
    }
    notes: dict[str, Any] = {task: dict(combined.notes) for task, combined in found.items() if combined.notes}
    one = next(iter(found.values()))
    rows: Rows = one.read if len(found) == 1 else read
    return Combined(rows, children, notes)
