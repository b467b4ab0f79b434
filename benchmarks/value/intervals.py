"""Paired bootstrap over seeds and test rows: how far a difference between two ways of training can be trusted.

A sample draws seeds with replacement and, child by child, test rows with replacement; every way of training is scored on the same
draw, so what they have in common (an easy test row, a lucky draw of training rows) cancels. Percentile intervals (Efron and
Tibshirani, An Introduction to the Bootstrap, 1993, sections 13.3 and 8.3 on data with two sources of variation).

Shapes: B samples, S seeds, N test rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.value.data import truths
from benchmarks.value.results import Result
from benchmarks.value.study import PLACES, TASKS, Place

Floats = NDArray[np.float64]
Number = TypeVar("Number", float, Floats)

LEVEL = 0.95
MEAN = "mean"
"""The name of the mean over tasks, beside the tasks' own."""

CHILDREN = "children"
"""The name of the mean over children, in which a task counts as often as it has children."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its interval."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether 0 is outside."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Sampled:
    """Scores of one way of training: what was found, and what each bootstrap sample would have found."""

    found: Mapping[str, float]  # by child, by task, and their mean
    drawn: Mapping[str, Floats]  # the same, each (B,)

    def minus(self, other: "Sampled", what: str) -> Estimate:
        """The difference of a child's, a task's or the mean score from another way's."""
        return _estimate(self.found[what] - other.found[what], self.drawn[what] - other.drawn[what])


def _estimate(value: float, drawn: Floats) -> Estimate:
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high))


def bootstrap(ways: Mapping[str, Sequence[Result]], samples: int, seed: int = 0) -> dict[str, Sampled]:
    """Score each way of training on the same draws.

    :param ways: results by name, those of one way in the order of the seeds, which all ways have in common.
    :raises ValueError: they have not the same seeds.
    """
    seeds = {name: tuple(result.run.seed for result in results) for name, results in ways.items()}
    if len(set(seeds.values())) != 1:
        raise ValueError(f"all ways should have the same seeds in the same order, found {seeds}.")
    generator = np.random.default_rng(seed)
    count = len(next(iter(seeds.values())))
    weights = generator.multinomial(count, [1 / count] * count, samples) / count  # (B, S)
    drawn: dict[str, dict[str, Floats]] = {name: {} for name in ways}
    found: dict[str, dict[str, float]] = {name: {} for name in ways}
    for place in PLACES:
        size = len(next(iter(ways.values()))[0].children[place.child]["rows"])
        times = generator.multinomial(size, [1 / size] * size, samples).astype(np.float64)  # (B, N)
        for name, results in ways.items():
            answers = np.array([result.children[place.child]["rows"] for result in results], dtype=np.float64)  # (S, N)
            sizes = results[0].children[place.child].get("sizes")
            drawn[name][place.child] = (scores(place, answers, times, sizes) * weights).sum(1)
            found[name][place.child] = float(scores(place, answers, np.ones((1, size)), sizes).mean())
    return {name: Sampled(_with_means(found[name]), _with_means(drawn[name])) for name in ways}


def scores(place: Place, answers: Floats, times: Floats, sizes: Sequence[int] | None = None) -> Floats:
    """A child's metric, each test row counted so many times.

    :param answers: (S, N), see `benchmarks.value.answers`.
    :param times: (B, N).
    :param sizes: (N,) labelled tokens of each row, for tokens.
    :return: (B, S)
    """
    if place.head == "regression":
        return _pearson(answers / 100.0, np.array(truths(place)), times)
    whole = times @ (np.ones(times.shape[1]) if sizes is None else np.array(sizes, dtype=np.float64))  # (B,)
    return (times @ answers.T) / whole[:, None]


def _pearson(found: Floats, wanted: Floats, times: Floats) -> Floats:
    """Correlation of each of (S, N) with (N,), rows weighted by (B, N)."""
    found, wanted = found - found.mean(1, keepdims=True), wanted - wanted.mean()  # sums of squares stay small
    total = times.sum(1, keepdims=True)  # (B, 1)
    x, y = times @ found.T / total, (times @ wanted)[:, None] / total
    xx, yy = times @ (found**2).T / total, (times @ wanted**2)[:, None] / total
    xy = times @ (found * wanted).T / total
    return (xy - x * y) / np.sqrt(np.maximum((xx - x * x) * (yy - y * y), 1e-12))


def _with_means(children: Mapping[str, Number]) -> dict[str, Number]:
    """Beside the children the tasks, each the mean of its children, the mean of these, and the mean of all children."""
    of = {task: [children[place.child] for place in PLACES if place.task == task] for task in TASKS}
    tasks = {task: sum(values[1:], start=values[0]) / len(values) for task, values in of.items()}
    of |= {MEAN: list(tasks.values()), CHILDREN: [children[place.child] for place in PLACES]}
    return {**children, **{name: sum(values[1:], start=values[0]) / len(values) for name, values in of.items()}}
