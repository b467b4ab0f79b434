"""SCAFFOLD: the drift of children whose samples differ is corrected by control variates."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field

from master.rules.deltas import moved, rows_of
from master.rules.memory import earlier, remembered
from master.rules.rule import Combined, Contribution, Matrix, Parameters, Rows, State, Step

if TYPE_CHECKING:
    from master.jobs import JobSpec


class Scaffold(Step):
    """SCAFFOLD (Karimireddy et al., 2020, arXiv:1910.06378, algorithm 1, option II): each child corrects every gradient by the
    difference between the server's control variate and its own, which is kept at the child.

    The update tells both sides alike what the child's variate becomes: `c_i + (base - update) / (steps x rate) - c`. So nothing
    more travels upwards; the server's variate, as large as the set, travels down. Needs plain SGD at a constant rate.
    """

    name: ClassVar[str] = "scaffold"
    weighs: ClassVar[str] = "equal"
    corrects: ClassVar[bool] = True
    rate: Annotated[float, Field(gt=0, allow_inf_nan=False, description="Learning rate of the server.")] = 1.0

    def objection(self, job: "JobSpec") -> str | None:
        training = job.training
        wanted = {"optimizer": "sgd", "warmup": 0, "decay": "none", "clip_norm": 0}
        wrong = [
            f"`training.{key}` should be {value}, found {getattr(training, key)}"
            for key, value in wanted.items()
            if getattr(training, key) != value
        ]
        if job.transfer != "blob":  # the variates travel beside the sets
            wrong.append(f"`transfer` should be blob, found {job.transfer}")
        return f"for the rule scaffold {'; '.join(wrong)}" if wrong else None

    def remember(self, base: Parameters, updates: Sequence[Contribution], combined: Combined, state: State | None) -> State:
        """The server's variate: moved by the mean of how the children's moved, over all children that ever took part."""
        known = sorted({*(state.notes.get("children", ()) if state else ()), *(update.child for update in updates)})
        told = [(update, update.distance) for update in updates if update.distance]

        def read(letter: str, name: str, rows: slice) -> Matrix:
            variate = earlier(state, base, letter, name, rows)
            total = np.zeros_like(variate)
            for update, distance in told:
                total -= moved(update, base, name, rows) / distance + variate
            return np.asarray(variate + total / len(known))

        return State(remembered(base, "c", read), {"children": known})

    def move(self, base: Parameters, combined: Combined, state: Parameters) -> Rows:
        if self.rate == 1.0:
            return combined.read

        def read(name: str, rows: slice) -> Matrix:
            start = rows_of(base, name, rows)
            return np.asarray(start + self.rate * (combined.read(name, rows) - start))

        return read
