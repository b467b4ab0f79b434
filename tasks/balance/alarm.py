"""An alarm for tasks that harm each other: cosines that stay negative, and held-out scores that fall.

Pure functions: a state goes in and out, numbers for JSON. An alarm is told once, when it starts; it is over when the cause is, and
may then start again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Annotated

from pydantic import Field

from tasks.balance.matrix import Row
from trunkline.values import Section

State = Mapping[str, float]
"""`cosine/WHAT/ONE/OTHER` and `score/WHAT/TASK`."""


class Watch(Section):
    """When to tell."""

    cosine: Annotated[float, Field(ge=-1, lt=0)] = -0.1  # of gradients that are against each other; estimates are off by 0.016
    rows: Annotated[int, Field(ge=1)] = 20  # of a pair with such a cosine, one after the other
    margin: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.02  # below a task's best score
    looks: Annotated[int, Field(ge=1)] = 2  # at such a score, one after the other


@dataclass(frozen=True, slots=True)
class Alarm:
    """What is told."""

    step: int
    since: int  # the step of the first row, or of the best score
    tasks: tuple[str, ...]  # two, whose gradients are against each other; or one, whose score fell
    value: float  # the cosine; or how far the score is below the best

    def __str__(self) -> str:
        if len(self.tasks) == 2:
            one, other = self.tasks
            return f"the gradients of {one} and {other} are against each other since step {self.since} (cosine {self.value:.2f})"
        return f"the score of {self.tasks[0]} is {self.value:.3g} below its best of step {self.since}"


def heard(watch: Watch, state: State, rows: Iterable[Row]) -> tuple[State, list[Alarm]]:
    """Cosines were measured. One between `watch.cosine` and zero neither counts nor ends a count."""
    alarms = []
    for row in rows:
        state, alarm = _heard(watch, state, row)
        alarms += [alarm] if alarm else []
    return state, alarms


def _heard(watch: Watch, state: State, row: Row) -> tuple[State, Alarm | None]:
    pair = f"{row.one}/{row.other}"
    if row.cosine >= 0:
        return _without(state, f"cosine/count/{pair}", f"cosine/since/{pair}"), None
    if row.cosine > watch.cosine:
        return state, None
    count = state.get(f"cosine/count/{pair}", 0.0) + 1
    since = state.get(f"cosine/since/{pair}", float(row.step))
    after = {**state, f"cosine/count/{pair}": count, f"cosine/since/{pair}": since}
    told = Alarm(row.step, int(since), (row.one, row.other), row.cosine) if count == watch.rows else None
    return after, told


def scored(watch: Watch, state: State, task: str, step: int, score: float) -> tuple[State, Alarm | None]:
    """A task was tested.

    :param score: the more, the better; one that is not finite counts as below the best.
    """
    best = state.get(f"score/best/{task}")
    if best is None and not isfinite(score):
        return state, None
    if best is None or (score > best and isfinite(score)):
        cleared = _without(state, f"score/below/{task}")
        return {**cleared, f"score/best/{task}": score, f"score/step/{task}": float(step)}, None
    if isfinite(score) and best - score <= watch.margin:
        return _without(state, f"score/below/{task}"), None
    below = state.get(f"score/below/{task}", 0.0) + 1
    after = {**state, f"score/below/{task}": below}
    since = int(state[f"score/step/{task}"])
    return after, Alarm(step, since, (task,), best - score) if below == watch.looks else None


def ringing(watch: Watch, state: State) -> list[tuple[str, ...]]:
    """The tasks, or pairs of tasks, of every alarm that is not over."""
    pairs = [key.split("/")[2:] for key, count in state.items() if key.startswith("cosine/count/") and count >= watch.rows]
    single = [key.split("/")[2:] for key, count in state.items() if key.startswith("score/below/") and count >= watch.looks]
    return sorted(tuple(names) for names in pairs + single)


def _without(state: State, *keys: str) -> State:
    return {key: value for key, value in state.items() if key not in keys}
