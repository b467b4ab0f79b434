"""Fuse rules written out plainly in float64, one coordinate or one pair at a time: what ours must equal.

Values are one vector `(d,)` a child, in the order of the child ids; weights are one positive number a child. Slow, and
independent of ours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Vectors = Sequence[Vector]
Weights = Sequence[float]


def each(values: Vectors, rule: Callable[[list[float]], float]) -> Vector:
    """A rule of numbers, coordinate by coordinate."""
    return np.array([rule([float(vector[at]) for vector in values]) for at in range(len(values[0]))])


# -- ways to combine -----------------------------------------------------------------------------------------------------


def mean(values: Vectors, weights: Weights) -> Vector:
    total = sum(weights)
    return each(values, lambda line: sum(weight * value for weight, value in zip(weights, line, strict=True)) / total)


def median(values: Vectors, weights: Weights) -> Vector:
    """Where half of the weight lies on either side; between two values, where it lies between them, their mean."""

    def middle(line: list[float]) -> float:
        half, below = sum(weights) / 2, 0.0
        pairs = sorted(zip(line, weights, strict=True))
        for at, (value, weight) in enumerate(pairs):
            below += weight
            if abs(below - half) < 1e-9 * half:
                return (value + pairs[at + 1][0]) / 2
            if below > half:
                return value
        raise AssertionError("half of the weight is passed before its end")

    return each(values, middle)


def trimmed_mean(values: Vectors, weights: Weights, trim: float) -> Vector:
    """Lay the values on a line of length 1, each as long as its share; cut off both ends; the mean of what is left."""

    def inner(line: list[float]) -> float:
        start, kept = 0.0, 0.0
        for value, weight in sorted(zip(line, weights, strict=True)):
            end = start + weight / sum(weights)
            kept += value * max(0.0, min(end, 1 - trim) - max(start, trim))
            start = end
        return kept / (1 - 2 * trim)

    return each(values, inner)


def geometric_median(values: Vectors, weights: Weights, turns: int = 20_000) -> Vector:
    """Weiszfeld's algorithm in the space of the values themselves, from their mean, until it stands still."""
    at = mean(values, weights)
    for _ in range(turns):
        pull = [weight / max(1e-12, float(np.linalg.norm(vector - at))) for vector, weight in zip(values, weights, strict=True)]
        before, at = at, np.asarray(sum(one * vector for one, vector in zip(pull, values, strict=True)) / sum(pull))
        if float(np.abs(at - before).max()) < 1e-13:
            break
    return at


def krum_scores(values: Vectors, faulty: int) -> list[float]:
    """Of each child: the sum of the squared distances to those that are closest, `n - faulty - 2` of them, at least one."""
    scores = []
    for one in range(len(values)):
        away = sorted(float(((values[one] - values[other]) ** 2).sum()) for other in range(len(values)) if other != one)
        scores.append(sum(away[: max(1, len(values) - faulty - 2)]))
    return scores


def krum(values: Vectors, weights: Weights, faulty: int) -> Vector:
    scores = krum_scores(values, faulty)
    return values[scores.index(min(scores))]


def multi_krum(values: Vectors, weights: Weights, faulty: int, keep: int) -> Vector:
    scores = krum_scores(values, faulty)
    best = sorted(range(len(values)), key=lambda at: (scores[at], at))[:keep]
    return mean([values[at] for at in best], [weights[at] for at in best])


def bulyan(values: Vectors, weights: Weights, faulty: int) -> Vector:
    """Choose by Krum, one after the other, each time among those left; then near the median of the chosen."""
    left, chosen = list(values), []
    for _ in range(len(values) - 2 * faulty):
        scores = krum_scores(left, faulty) if len(left) > 1 else [0.0]
        chosen.append(left.pop(scores.index(min(scores))))
    near = len(chosen) - 2 * faulty

    def inner(line: list[float]) -> float:
        ordered = sorted(line)
        middle = (ordered[(len(line) - 1) // 2] + ordered[len(line) // 2]) / 2
        return sum(sorted(ordered, key=lambda value: abs(value - middle))[:near]) / near

    return each(chosen, inner)


# -- filters -------------------------------------------------------------------------------------------------------------


def clip(base: Vector, values: Vectors, norm: float) -> list[Vector]:
    lengths = [sqrt(float(((value - base) ** 2).sum())) for value in values]
    return [
        value if length <= norm else base + (value - base) * (norm / length) for value, length in zip(values, lengths, strict=True)
    ]


def zero_outliers(base: Vector, values: Vectors, times: float) -> list[Vector]:
    lengths = [sqrt(float(((value - base) ** 2).sum())) for value in values]
    ordered = sorted(lengths)
    middle = (ordered[(len(lengths) - 1) // 2] + ordered[len(lengths) // 2]) / 2
    return [base if length > times * middle else value for value, length in zip(values, lengths, strict=True)]


# -- steps ---------------------------------------------------------------------------------------------------------------


@dataclass
class Server:
    """An optimiser at the server, with its moments."""

    first: Any = None
    second: Any = field(default=None)

    def momentum(self, base: Vector, combined: Vector, rate: float, beta: float) -> Vector:
        moved = combined - base
        self.first = moved if self.first is None else beta * self.first + moved
        return base + rate * self.first

    def adaptive(self, kind: str, base: Vector, combined: Vector, rate: float, beta1: float, beta2: float, tau: float) -> Vector:
        """Reddi et al., 2021, algorithm 2."""
        moved = combined - base
        if self.first is None:
            self.first, self.second = np.zeros_like(base), np.full_like(base, tau**2)
        self.first = beta1 * self.first + (1 - beta1) * moved
        square = moved * moved
        if kind == "adagrad":
            self.second = self.second + square
        elif kind == "adam":
            self.second = beta2 * self.second + (1 - beta2) * square
        elif kind == "yogi":
            self.second = np.array(
                [old - (1 - beta2) * new * float(np.sign(old - new)) for old, new in zip(self.second, square, strict=True)]
            )
        return base + rate * self.first / (np.sqrt(self.second) + tau)
