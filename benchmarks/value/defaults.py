"""What the defaults of a job should be: local steps, moments, weighting and decay, changed one or two at a time, on the validation
rows of draws that the study does not use. A child's steps in all stay as they are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.value.results import Result, Results
from benchmarks.value.study import TUNING_SEED, Cell, Rates, Run, make

SEEDS = (TUNING_SEED, TUNING_SEED + 1, TUNING_SEED + 2)


def wanted(cell: Cell, shared: Rates) -> list[Run]:
    """The usual job and each change of it, seed by seed."""
    return [run for seed in SEEDS for run in _changes(make("shared", cell, seed, shared, "validation"))]


def _changes(usual: Run) -> Iterator[Run]:
    """What looks most promising comes first, for a study that is stopped early."""
    yield usual
    yield replace(usual, moments="fresh")
    yield replace(usual, rounds=12)
    yield replace(usual, rounds=12, moments="fresh")
    yield replace(usual, rounds=6, moments="fresh")
    yield replace(usual, rule="mean")
    yield replace(usual, rule="mean:by=sqrt")
    yield replace(usual, rule="mean:by=equal")
    yield replace(usual, rounds=48)
    yield replace(usual, decay="none")
    yield replace(usual, rounds=23, settle_steps=4)


def _way(run: Run) -> tuple[object, ...]:
    return run.rule, run.rounds, run.moments, run.decay, run.settle_steps


@dataclass(frozen=True, slots=True)
class Tried:
    """One job against the usual one, on the same seeds."""

    run: Run  # of the first seed
    results: Sequence[Result]
    usual: Sequence[Result]

    @property
    def mean(self) -> float:
        """Over the seeds, of the mean over tasks."""
        return sum(result.mean for result in self.results) / len(self.results)

    @property
    def change(self) -> float:
        return self.mean - sum(result.mean for result in self.usual) / len(self.usual)

    def task(self, name: str) -> float:
        return sum(result.tasks[name] for result in self.results) / len(self.results)


def tried(results: Results, cell: Cell, shared: Rates) -> list[Tried]:
    """What has a result for a seed at least, the usual job first."""
    found: dict[tuple[object, ...], dict[int, Result]] = {}
    first: dict[tuple[object, ...], Run] = {}
    for run in wanted(cell, shared):
        first.setdefault(_way(run), run)
        if (result := results.get(run)) is not None:
            found.setdefault(_way(run), {})[run.seed] = result
    usual = found.get(_way(make("shared", cell, TUNING_SEED, shared)), {})
    pairs = {way: sorted(set(of) & set(usual)) for way, of in found.items()}
    return [Tried(first[way], [found[way][s] for s in seeds], [usual[s] for s in seeds]) for way, seeds in pairs.items() if seeds]
