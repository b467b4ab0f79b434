"""Finished runs, a line of JSON each, so that a study that was killed goes on where it was."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.learning.study import VERSION, Run

FILE = Path(__file__).with_name("results.jsonl")


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run."""

    run: Run
    curve: Sequence[tuple[int, int, float]]  # samples of the small and of the large task that were learned from, score of the small
    rows: Sequence[int]  # 1 where the small task's row is right at the end, else 0
    seconds: float

    @property
    def score(self) -> float:
        """At the end."""
        return self.curve[-1][2]

    @property
    def mean(self) -> float:
        """The same, by the name that progress is told by."""
        return self.score


@dataclass
class Results:
    """The file, read once and appended to: a line counts when it is on the disk whole."""

    path: Path = FILE
    found: dict[str, Result] = field(default_factory=dict)  # by key

    def __post_init__(self) -> None:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        if (whole := data.rfind(b"\n") + 1) < len(data):  # of a process that was killed
            os.truncate(self.path, whole)
        for line in data[:whole].splitlines():
            table = json.loads(line)
            if table["run"]["version"] == VERSION:
                self._take(table)

    def _take(self, table: Mapping[str, Any]) -> None:
        run = Run(**table["run"])
        curve = [(small, large, score) for small, large, score in table["curve"]]
        self.found[run.key] = Result(run, curve, table["rows"], table["seconds"])

    def __contains__(self, run: Run) -> bool:
        return run.key in self.found

    def get(self, run: Run) -> Result | None:
        """None: it was not carried out yet."""
        return self.found.get(run.key)

    @property
    def scores(self) -> dict[str, float]:
        """At the end of each run, by its key."""
        return {key: result.score for key, result in self.found.items()}

    def add(self, run: Run, outcome: Mapping[str, Any]) -> Result:
        """Write a finished run down.

        :param outcome: as a worker answers.
        """
        table = {"run": run.table(), **{name: outcome[name] for name in ("curve", "rows", "seconds")}}
        if run.split == "validation":  # only the score is asked for; rows are for intervals
            table["rows"] = []
        with self.path.open("a", encoding="utf-8") as target:
            target.write(json.dumps(table, separators=(",", ":")) + "\n")
            target.flush()
            os.fsync(target.fileno())
        self._take(table)
        return self.found[run.key]

    def pace(self) -> float | None:
        """Seconds of one step; None: nothing was carried out yet."""
        steps = sum(result.run.cost for result in self.found.values())
        return sum(result.seconds for result in self.found.values()) / steps if steps else None
