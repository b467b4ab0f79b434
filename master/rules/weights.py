"""How much each child counts. Weights are shares: they sum to 1, and they are told in `trunkline round show`."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite, sqrt
from typing import Literal

from master.rules.rule import Contribution
from trunkline.errors import TooFewChildren

Weighting = Literal["samples", "sqrt", "equal", "tasks"]
"""Who counts how much: by distinct samples applied, by their square root, every child alike, or every task alike."""


def share_out(updates: Sequence[Contribution], way: Weighting, most: float = 1.0) -> dict[str, float]:
    """The share of each child, none above `most` where that is possible.

    - `samples`: `n_c / sum n` (McMahan et al., 2017, arXiv:1602.05629, eq. 1).
    - `sqrt`: as the square roots of the samples, so that a large child leads without drowning the others.
    - `equal`: every child that has applied a sample alike.
    - `tasks`: every task alike, and within a task by samples of it, `1/T sum_t n_ct / n_t`: a task with many samples does not drown
      one with few.

    :raises TooFewChildren: nobody has applied a sample.
    """
    if way == "tasks":
        return capped(shares(_by_task(updates)), most)
    scale: Callable[[int], float] = {"samples": float, "sqrt": sqrt, "equal": lambda count: float(count > 0)}[way]
    return capped(shares({update.child: scale(sum(update.samples.values())) for update in updates}), most)


def within_task(updates: Sequence[Contribution], task: str, most: float = 1.0) -> dict[str, float]:
    """The shares of those who have applied samples of one task, by these samples; others are not in it."""
    return capped(shares({update.child: float(count) for update in updates if (count := update.samples.get(task, 0))}), most)


def tasks_of(updates: Sequence[Contribution]) -> dict[str, int]:
    """Samples applied in all, by task, in the order of names; a task without any is left out."""
    totals: dict[str, int] = {}
    for update in updates:
        for task, count in update.samples.items():
            totals[task] = totals.get(task, 0) + count
    return {task: total for task, total in sorted(totals.items()) if total}


def _by_task(updates: Sequence[Contribution]) -> dict[str, float]:
    totals = tasks_of(updates)
    return {update.child: sum(update.samples.get(task, 0) / total for task, total in totals.items()) for update in updates}


def shares(weights: Mapping[str, float]) -> dict[str, float]:
    """Scale weights so that they sum to 1.

    :raises TooFewChildren: none is positive, or one is negative or not finite.
    """
    wrong = [child for child, weight in weights.items() if not isfinite(weight) or weight < 0]
    total = sum(weights[child] for child in sorted(weights))
    if wrong or total <= 0:
        found = f"{weights[wrong[0]]} for {wrong[0]}" if wrong else "none"
        raise TooFewChildren(f"the weights of a round should be positive numbers, found {found}.")
    return {child: weight / total for child, weight in weights.items()}


def capped(weights: Mapping[str, float], most: float) -> dict[str, float]:
    """No child has more than a share of `most`; what is cut off goes to the others in proportion.

    With too few children for that (`1 / most` of them), all that have a share count the same. Who has none gets none.

    >>> {child: round(share, 6) for child, share in capped({"a": 0.9, "b": 0.06, "c": 0.04}, 0.5).items()}
    {'a': 0.5, 'b': 0.3, 'c': 0.2}
    """
    shared = {child: weight for child, weight in shares(weights).items() if weight > 0}
    if most >= 1.0:
        return dict(shares(weights))
    if most * len(shared) <= 1.0:
        return dict.fromkeys(weights, 0.0) | dict.fromkeys(shared, 1.0 / len(shared))
    full: set[str] = set()
    while over := {child for child, weight in shared.items() if weight > most and child not in full}:
        full |= over
        rest = {child: weight for child, weight in shared.items() if child not in full}
        left, total = 1.0 - most * len(full), sum(rest.values())
        shared = dict.fromkeys(shared, most) | {child: left * weight / total for child, weight in rest.items()}
    return dict.fromkeys(weights, 0.0) | shared
