"""Finished runs, a line of JSON each, so that a study that was killed goes on where it was.

A line is appended and flushed to the disk whole before it counts; half a line at the end, of a process that was killed, is cut off
by the next one that writes.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.value.study import PLACES, TASKS, VERSION, Run

FILE = Path(__file__).with_name("results.jsonl")


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run."""

    run: Run
    children: Mapping[str, Mapping[str, Any]]  # by child: score, and for test rows the answers, see `benchmarks.value.answers`
    seconds: float
    bytes_up: int
    own: Mapping[str, Mapping[str, Any]] | None = None  # see `benchmarks.value.variants.Outcome`

    @property
    def tasks(self) -> dict[str, float]:
        """The score of each task: the mean of the children that have it."""
        found: dict[str, list[float]] = {task: [] for task in TASKS}
        for place in PLACES:
            found[place.task].append(self.children[place.child]["score"])
        return {task: sum(scores) / len(scores) for task, scores in found.items()}

    @property
    def mean(self) -> float:
        """Over the tasks."""
        scores = self.tasks.values()
        return sum(scores) / len(scores)


@dataclass
class Results:
    """The file, read once and appended to."""

    path: Path = FILE
    found: dict[str, Result] = field(default_factory=dict)  # by key

    def __post_init__(self) -> None:
        self._mend()
        for table in self._lines():
            if table["run"]["version"] == VERSION:
                self._take(table)

    def _mend(self) -> None:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self.path, whole)

    def _lines(self) -> Iterator[dict[str, Any]]:
        if self.path.exists():
            with self.path.open(encoding="utf-8") as lines:
                yield from map(json.loads, lines)

    def _take(self, table: Mapping[str, Any]) -> None:
        run = Run.of_table(table["run"])
        self.found[run.key] = Result(run, table["children"], table["seconds"], table["bytes_up"], table.get("own"))

    def __contains__(self, run: Run) -> bool:
        return run.key in self.found

    def get(self, run: Run) -> Result | None:
        return self.found.get(run.key)

    def score(self, run: Run) -> float | None:
        """The mean over tasks; None: it was not run yet."""
        found = self.get(run)
        return None if found is None else found.mean

    def add(self, run: Run, outcome: Mapping[str, Any]) -> Result:
        """Write a finished run down.

        :param outcome: as a worker answers.
        """
        table = {"run": run.table()} | dict(outcome)
        if run.split == "validation":  # only the score is asked for; rows are for intervals
            for kind in {"children", "own"} & set(outcome):
                table[kind] = {child: {"score": found["score"]} for child, found in outcome[kind].items()}
        with self.path.open("a", encoding="utf-8") as target:
            target.write(json.dumps(table, separators=(",", ":")) + "\n")
            target.flush()
            os.fsync(target.fileno())
        self._take(table)
        return self.found[run.key]

    def pace(self) -> float | None:
        """Seconds of one unit of a run's cost; None: nothing was run yet."""
        cost = sum(result.run.cost for result in self.found.values())
        return sum(result.seconds for result in self.found.values()) / cost if cost else None
