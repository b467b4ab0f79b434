"""What the defaults of a job should be: local steps and weighting, tried one at a time on the validation rows of draws that the
study does not use, with the rates that were found for the usual number of rounds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.value.results import Result, Results
from benchmarks.value.study import TUNING_SEED, Cell, Rates, Run, make

SEEDS = (TUNING_SEED, TUNING_SEED + 1)
ROUNDS = (2, 3, 12, 24)  # beside the usual number; a child's steps in all stay as they are
WEIGHTINGS = ("mean:by=sqrt", "mean:by=equal", "mean_by_task")


def wanted(cell: Cell, shared: Rates) -> list[Run]:
    """The usual job and each change of it, seed by seed."""
    return [run for seed in SEEDS for run in _changes(make("shared", cell, seed, shared, "validation"))]


def _changes(usual: Run) -> Iterator[Run]:
    yield usual
    for rule in WEIGHTINGS:
        yield replace(usual, rule=rule)
    for rounds in ROUNDS:
        if usual.steps % rounds == 0:
            yield replace(usual, rounds=rounds)


@dataclass(frozen=True, slots=True)
class Tried:
    """One job against the usual one."""

    run: Run  # of the first seed
    results: Sequence[Result]

    @property
    def mean(self) -> float:
        """Over the seeds, of the mean over tasks."""
        return sum(result.mean for result in self.results) / len(self.results)

    def task(self, name: str) -> float:
        return sum(result.tasks[name] for result in self.results) / len(self.results)


def tried(results: Results, cell: Cell, shared: Rates) -> list[Tried]:
    """What has a result for every seed, the usual job first."""
    found: dict[tuple[str | None, int | None], list[Result]] = {}
    first: dict[tuple[str | None, int | None], Run] = {}
    for run in wanted(cell, shared):
        first.setdefault((run.rule, run.rounds), run)
        if (result := results.get(run)) is not None:
            found.setdefault((run.rule, run.rounds), []).append(result)
    return [Tried(first[way], of) for way, of in found.items() if len(of) == len(SEEDS)]
