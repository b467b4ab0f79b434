"""The samples of a run: which rows each task has, and the order in which they come."""

import csv
import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from statistics import fmean, pstdev

from benchmarks.learning.study import PASSES, SKEW, SMALL, Run, Source

Row = Mapping[str, str]
Arrival = tuple[str, Row]
"""A task, and a row of it."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Of both tasks."""

    small: Sequence[Row]
    large: Sequence[Row]


def rows(source: Source) -> list[Row]:
    """The training rows of a task's files."""
    found: list[Row] = []
    for name in source.files:
        text = files("tasks.data").joinpath(name).read_text(encoding="utf-8")
        found += [row for row in csv.DictReader(io.StringIO(text, newline="")) if row["split"] == "train"]
    return found


def draw(small: Source, large: Source, seed: int) -> Drawn:
    """What each task holds: the same rows for each variant of a seed."""
    rng = random.Random(f"{seed}/{small.name}/{large.name}")
    return Drawn(rng.sample(rows(small), SMALL), rng.sample(rows(large), SKEW * SMALL))


def arrivals(run: Run, drawn: Drawn) -> list[Arrival]:
    """All samples of a run in the order in which they come, each pass in an order of its own."""
    rng, found = random.Random(f"order/{run.seed}"), list[Arrival]()
    passes = PASSES * (1 + SKEW) if run.variant == "longer" else PASSES
    for _ in range(passes):
        one: list[Arrival] = [("small", row) for row in drawn.small]
        if run.variant in ("stream", "mixed"):
            one += [("large", row) for row in drawn.large]
        rng.shuffle(one)
        found += one
    return found


def scale(source: Source, drawn: Sequence[Row]) -> tuple[float, float]:
    """Mean and deviation of a regression's targets."""
    if source.head != "regression":
        return (0.0, 1.0)
    targets = [float(row[source.label]) for row in drawn]
    return (fmean(targets), pstdev(targets))
