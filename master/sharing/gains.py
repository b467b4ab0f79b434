"""What a task gains or loses by sharing, against what its children reached training alone, and when that is an alarm.

A child tells the scores of its run of `trunkline-child alone` together with those of a round's target set. Both are on the same
samples; what the master has of them is two means and a count. So the noise that is allowed for is that of two independent means,
which is more than there is: an alarm says more than it must to be right, a small loss may go without one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from typing import Any

Row = Mapping[str, Any]
"""A report, or a score in it, as JSON data."""

MARGIN = 0.02
"""Where a job does not say it: a loss smaller than this is no alarm, however sure. Of the metric itself, for errors a share of the
reference.
"""

MOST = 1e100
"""A score beyond is none: its square, or the sum of a few, would be no number."""

SURE = 1.645
"""Standard errors that a loss must exceed: one in twenty, since only losses are asked about."""


@dataclass(frozen=True, slots=True)
class Gain:
    """One task on one split, over the children that told both scores, weighted by their samples."""

    task: str
    split: str
    metric: str
    shared: float
    alone: float
    gain: float  # turned so that more is better
    noise: float | None  # standard error of the gain; None: not known for this metric
    samples: int
    children: int
    higher_is_better: bool
    margin: float = MARGIN

    def told(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"allowed": self.allowed}

    def event(self) -> dict[str, Any]:
        """What an event says of a loss."""
        return {key: getattr(self, key) for key in ("task", "metric", "split", "samples", "alone", "shared", "gain")}

    @property
    def allowed(self) -> float:
        """A loss up to here is not told from noise, or does not matter."""
        margin = self.margin if self.higher_is_better else self.margin * abs(self.alone)
        return max(margin, SURE * (self.noise or 0.0))


def gains(reports: Iterable[Row], split: str = "validation", margin: float = MARGIN) -> list[Gain]:
    """By task, in the order of names. A task without a reference, or with several metrics, is not in it, nor is a score that is
    none.

    :param margin: see `MARGIN`.
    """
    found: dict[str, list[tuple[Row, Row]]] = {}
    for report in reports:
        alone = {(one["task"], one["metric"]): one for one in report.get("alone", ()) if one["split"] == split}
        for score in report.get("scores", ()):
            reference = alone.get((score["task"], score["metric"]))
            if score["split"] == split and score["samples"] and reference is not None and _believed(score) and _believed(reference):
                found.setdefault(score["task"], []).append((score, reference))
    comparable = {task: pairs for task, pairs in sorted(found.items()) if len({one["metric"] for one, _ in pairs}) == 1}
    return [_gain(task, split, pairs, margin) for task, pairs in comparable.items()]


def _believed(score: Row) -> bool:
    return abs(float(score["value"])) <= MOST


def _gain(task: str, split: str, pairs: Sequence[tuple[Row, Row]], margin: float) -> Gain:
    first, total = pairs[0][0], sum(score["samples"] for score, _ in pairs)
    shares = [score["samples"] / total for score, _ in pairs]
    shared = sum(share * score["value"] for share, (score, _) in zip(shares, pairs, strict=True))
    alone = sum(share * reference["value"] for share, (_, reference) in zip(shares, pairs, strict=True))
    higher = bool(first["higher_is_better"])
    variances = [
        share**2 * (one + two)
        for share, (score, reference) in zip(shares, pairs, strict=True)
        if (one := variance(score)) is not None and (two := variance(reference)) is not None
    ]
    return Gain(
        task=task,
        split=split,
        metric=first["metric"],
        shared=shared,
        alone=alone,
        gain=shared - alone if higher else alone - shared,
        noise=sqrt(sum(variances)) if len(variances) == len(pairs) else None,
        samples=total,
        children=len(pairs),
        higher_is_better=higher,
        margin=margin,
    )


def variance(score: Row) -> float | None:
    """Of a metric over n samples, in the normal approximation; None where none is known, or where no such metric can be so large.

    - shares of samples (accuracy, recall, and F1 as if it were one): `p (1 - p) / n`
    - correlations: `(1 - r^2)^2 / (n - 1)`
    - the mean squared error, errors being normal: `2 mse^2 / n`
    """
    value, samples, metric = float(score["value"]), int(score["samples"]), str(score["metric"])
    if metric in ("pearson", "spearman") and abs(value) <= 1 + 1e-6:  # by rounding
        return (1 - value**2) ** 2 / max(1, samples - 1)
    if metric == "mse":
        return 2 * value**2 / max(1, samples)
    if (metric in ("accuracy", "f1") or metric.startswith("recall@")) and 0 <= value <= 1:
        middle = (value * samples + 1) / (samples + 2)  # never 0 or 1: a perfect score on five samples is not certain
        return middle * (1 - middle) / max(1, samples)
    return None


def hurt(history: Sequence[Sequence[Gain]]) -> list[Gain]:
    """The tasks that sharing hurts, told from the last rounds, oldest first: those that have lost on average, and in the newest of
    them, more than is allowed. What is returned is their mean over these rounds.
    """
    found = []
    for newest in history[-1] if history else ():
        line = [gain for of_round in history for gain in of_round if (gain.task, gain.metric) == (newest.task, newest.metric)]
        shared, gain = (sum(values) / len(line) for values in ([one.shared for one in line], [one.gain for one in line]))
        if gain < -newest.allowed and newest.gain < -newest.allowed / 2:
            found.append(replace(newest, shared=shared, gain=gain))
    return found
