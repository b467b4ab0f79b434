"""What came out, and how far it can be trusted: a paired bootstrap over seeds and test rows.

A sample draws seeds and, cell by cell, test rows with replacement, the same for each variant, so what they have in common cancels.
Percentile intervals (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3).

Shapes: B samples, S seeds, N test rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning.results import Result, Results
from benchmarks.learning.study import CELLS, SEEDS, VARIANTS, Run, Variant, chosen
from benchmarks.value.intervals import LEVEL, Estimate

Floats = NDArray[np.float64]

MEAN = len(CELLS)
"""The place of the mean over cells, behind the cells'."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What was found."""

    rates: Mapping[Variant, int]
    seeds: Sequence[int]  # that every variant of every cell has
    runs: Mapping[tuple[int, Variant], Sequence[Result]]  # by cell, in the order of the seeds
    drawn: Mapping[Variant, Floats]  # (B, cells + 1)

    def score(self, cell: int, variant: Variant) -> float:
        """Mean over seeds; over cells, too, where `cell` is MEAN."""
        cells = range(len(CELLS)) if cell == MEAN else (cell,)
        return fmean(result.score for place in cells for result in self.runs[place, variant])

    def minus(self, cell: int, variant: Variant, other: Variant) -> Estimate:
        """The difference of two variants."""
        apart = self.drawn[variant][:, cell] - self.drawn[other][:, cell]
        low, high = np.quantile(apart, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return Estimate(self.score(cell, variant) - self.score(cell, other), float(low), float(high))

    def interval(self, cell: int, variant: Variant) -> tuple[float, float]:
        """Of a variant's score."""
        low, high = np.quantile(self.drawn[variant][:, cell], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(low), float(high)

    def curve(self, cell: int, variant: Variant) -> list[tuple[float, float]]:
        """Samples that were learned from, of both tasks, and the score of the small one; means over seeds."""
        looks = zip(*(result.curve for result in self.runs[cell, variant]), strict=True)
        return [(fmean(small + large for small, large, _ in of), fmean(score for _, _, score in of)) for of in looks]


@dataclass(frozen=True, slots=True)
class Claim:
    """What should come out, and what did."""

    what: str
    met: bool
    found: Estimate


def figures(results: Results, samples: int) -> Figures | None:
    """All cells; None: the rates are not chosen, or no seed has every run."""
    rates = chosen(results.scores)
    if rates is None:
        return None

    best = rates

    def found(seed: int) -> dict[tuple[int, Variant], Result] | None:
        runs = {
            (cell, variant): results.get(Run(variant, cell, seed, best[variant]))
            for cell in range(len(CELLS))
            for variant in VARIANTS
        }
        return None if None in runs.values() else {place: result for place, result in runs.items() if result is not None}

    whole = {seed: of for seed in SEEDS if (of := found(seed)) is not None}
    if not whole:
        return None
    runs = {(cell, variant): [of[cell, variant] for of in whole.values()] for cell in range(len(CELLS)) for variant in VARIANTS}
    return Figures(best, tuple(whole), runs, bootstrap(runs, samples))


def bootstrap(runs: Mapping[tuple[int, Variant], Sequence[Result]], samples: int, seed: int = 0) -> dict[Variant, Floats]:
    """Scores of each variant, in each cell and in their mean, on so many draws: (B, cells + 1)."""
    generator = np.random.default_rng(seed)
    count = len(next(iter(runs.values())))
    weights = generator.multinomial(count, [1 / count] * count, samples) / count  # (B, S)
    drawn: dict[Variant, list[Floats]] = {variant: [] for variant in VARIANTS}
    for cell in range(len(CELLS)):
        size = len(runs[cell, VARIANTS[0]][0].rows)
        times = generator.multinomial(size, [1 / size] * size, samples) / size  # (B, N)
        for variant in VARIANTS:
            right = np.array([result.rows for result in runs[cell, variant]], dtype=np.float64)  # (S, N)
            drawn[variant].append(((times @ right.T) * weights).sum(1))
    return {variant: np.stack([*cells, np.mean(cells, axis=0)], axis=1) for variant, cells in drawn.items()}


def claims(found: Figures) -> list[Claim]:
    """What the queues are for, in the mean over cells."""
    gain, longer, mixed = (found.minus(MEAN, "stream", other) for other in ("alone", "longer", "mixed"))
    return [
        Claim("the small task beats its own training alone on the same samples, as often", gain.low > 0, gain),
        Claim("and its own training alone with as many steps as the stream makes", longer.low > 0, longer),
        Claim("it is not worse than where each batch is of both tasks, beyond noise", mixed.high >= 0, mixed),
    ]
