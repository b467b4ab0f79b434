"""What the shared encoder is compared with: each child alone on its own rows, and everything pooled in one place.

Both train in processes of their own through `python -m child.alone`, with the plan of a round's children, but a learning
rate of their own: what is best for ten steps between two fusions is not for a hundred and fifty in one place.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from master.demo.plan import DemoPlan
from master.demo.processes import Processes
from master.demo.samples import SITES, Site, pool
from master.jobs import JobSpec
from trunkline.errors import DeadlineExceeded, FailedError
from trunkline.messages import Plan

SECONDS = 900.0
"""A baseline that takes longer has gone wrong."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Test score and validation curve of each child."""

    test: Mapping[str, float]
    curve: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Orders:
    """What the baselines are asked to do, with the data and the encoder that the rounds had.

    :param data: each child's file.
    :param folder: for whatever the baselines write.
    """

    plan: DemoPlan
    job: JobSpec
    data: Mapping[str, Path]
    encoder: Path
    folder: Path

    def alone(self) -> list[dict[str, Any]]:
        """Five orders: each child by itself, with as many steps as it has in the rounds."""
        return [self._order(site.child, [self._task(site)], {}, 1, self.plan.alone_learning_rate) for site in SITES]

    def pooled(self) -> dict[str, Any]:
        """One order: all rows in one place, one head a task, as many steps as all children have together; scored site by site."""
        tasks, scored = [], {}
        for name in sorted({site.task for site in SITES}):
            sites = [site for site in SITES if site.task == name]
            merged = pool([self.data[site.child] for site in sites], self.folder / f"pooled-{name}.csv")
            tasks.append(self._task(sites[0], merged))
            scored[name] = [self._task(site) for site in sites]
        return self._order("pooled", tasks, scored, len(SITES), self.plan.pooled_learning_rate)

    def _task(self, site: Site, data: Path | None = None) -> dict[str, Any]:
        return site.spec(data or self.data[site.child], self.plan.batch_size, self.plan.max_length)

    def _order(
        self,
        name: str,
        tasks: Sequence[Mapping[str, Any]],
        scored: Mapping[str, Sequence[Mapping[str, Any]]],
        children: int,
        learning_rate: float,
    ) -> dict[str, Any]:
        """In the form that `python -m child.alone` reads; it has the steps of so many children."""
        steps = self.plan.total_steps * children
        warmup = int(self.job.training.warmup * steps)
        schedule = {"steps": steps, "total_steps": steps, "done_steps": 0, "warmup_steps": warmup, "learning_rate": learning_rate}
        whole = self.job.plan(1).model_copy(update=schedule)
        return {
            "name": name,
            "home": str(self.folder / name),
            "encoder": str(self.encoder),
            "plan": Plan.of_table(whole.table()).table(),
            "tasks": list(tasks),
            "scored": dict(scored),
            "every": self.plan.steps * children,
            "threads": 1,
        }


def carry_out(processes: Processes, name: str, orders: Sequence[Mapping[str, Any]]) -> "Running":
    """Start a process that carries out orders one after the other."""
    told = "".join(json.dumps(order) + "\n" for order in orders)
    return Running(name, processes.start(name, [sys.executable, "-P", "-m", "child.alone"], stdin=told.encode()))


@dataclass(frozen=True, slots=True)
class Running:
    """A process that carries out orders."""

    name: str
    process: subprocess.Popen[bytes]

    def answers(self) -> dict[str, dict[str, Any]]:
        """Every answer, by the order's name.

        :raises FailedError: it ended before it was done.
        :raises DeadlineExceeded: it took too long.
        """
        try:
            out, _ = self.process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise DeadlineExceeded(f"waited {SECONDS:g} s for the baseline {self.name}.") from None
        if self.process.returncode != 0:
            raise FailedError(f"the baseline {self.name} should succeed, found exit code {self.process.returncode}.")
        return {answer["name"]: answer for answer in map(json.loads, out.decode().splitlines())}


def alone_outcome(answers: Mapping[str, Mapping[str, Any]]) -> Outcome:
    """Of the five children by themselves."""
    return Outcome(
        {site.child: _score(answers[site.child]["scores"], "test") for site in SITES},
        {site.child: [_score(point["scores"], "validation") for point in answers[site.child]["curve"]] for site in SITES},
    )


def pooled_outcome(answer: Mapping[str, Any]) -> Outcome:
    """Of the pooled training: scores come in the order of tasks, then of sites."""
    order = sorted(SITES, key=lambda site: (site.task, SITES.index(site)))

    def each(scores: Sequence[Mapping[str, Any]], split: str) -> dict[str, float]:
        values = [score["value"] for score in scores if score["split"] == split]
        return {site.child: value for site, value in zip(order, values, strict=True)}

    points = [each(point["scores"], "validation") for point in answer["curve"]]
    return Outcome(each(answer["scores"], "test"), {site.child: [point[site.child] for point in points] for site in SITES})


def _score(scores: Sequence[Mapping[str, Any]], split: str) -> float:
    return next(score["value"] for score in scores if score["split"] == split)
