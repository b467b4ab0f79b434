"""What is compared: values, and nothing that computes. Two related tasks, one with ten times the samples of the other.

stream   both tasks' samples, shuffled, pushed into the queues one by one; each batch is of one task, and is a step by itself
mixed    a plain loop over the same samples in the same order, each batch of both tasks: how several tasks are usually trained
alone    the small task by itself, as often as `stream` sees it
longer   the small task by itself, its samples again and again, as many steps as `stream` makes
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

VERSION = 1
"""Counts up when a run would come out otherwise, so that old results are not taken for new ones."""

Variant = Literal["stream", "mixed", "alone", "longer"]
VARIANTS: Sequence[Variant] = ("stream", "mixed", "alone", "longer")

BATCH, SMALL, SKEW, PASSES = 8, 64, 10, 2
"""Samples of a batch; of the small task; times as many of the large one; how often each sample comes."""

LAYERS, LENGTH = 2, 64
"""Of MiniLM, its embeddings frozen; tokens."""

LOOKS = 8
"""Times that the small task is scored on the way, the end included."""

SEEDS = tuple(range(5))
TUNING = 100
"""The seed of the runs that rates are chosen by."""

RATES: Sequence[tuple[float, float]] = ((1e-4, 2e-3), (3e-4, 5e-3), (1e-3, 1e-2))
"""Of the encoder and of the heads."""

STEPS = PASSES * SMALL * (1 + SKEW) // BATCH
"""Of `stream` and of `mixed`."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a task's rows come from: files that come with Trunkline."""

    name: str
    files: Sequence[str]
    head: Literal["single", "regression"] = "single"

    @property
    def label(self) -> str:
        """The column that is learned."""
        return "label" if self.head == "single" else "score"


@dataclass(frozen=True, slots=True)
class Cell:
    """Who is small, and who is large."""

    name: str
    small: Source
    large: Source

    def __str__(self) -> str:
        return self.name


def _shop(name: str) -> Source:
    return Source(name, (f"reviews_{name}.csv",))


SHOPS = ("amazon", "imdb", "yelp")

CELLS: Sequence[Cell] = (
    *(
        Cell(
            f"{shop} beside two other shops",
            _shop(shop),
            Source("others", [f"reviews_{other}.csv" for other in SHOPS if other != shop]),
        )
        for shop in SHOPS
    ),
    Cell("imdb beside tweets", _shop("imdb"), Source("tweets", ("tweets_valence.csv",), "regression")),
)
"""The same question asked of other shops' goods, and another question (how positive, from -4 to 4) asked of tweets."""


@dataclass(frozen=True, slots=True)
class Run:
    """One training."""

    variant: Variant
    cell: int  # place in CELLS
    seed: int  # of rows, order, heads and dropout
    rate: int  # place in RATES
    split: Literal["validation", "test"] = "test"
    version: int = VERSION

    @property
    def key(self) -> str:
        """Tells runs apart."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def steps(self) -> int:
        """That it makes."""
        return STEPS if self.variant != "alone" else PASSES * SMALL // BATCH

    @property
    def cost(self) -> int:
        """What its time goes by: steps, and looks at held-out rows."""
        return self.steps + 10 * self.looks

    @property
    def looks(self) -> int:
        """Times that the small task is scored, the end included."""
        return LOOKS if self.split == "test" else 1

    def table(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.variant}, {CELLS[self.cell]}, seed {self.seed}, rates {RATES[self.rate]}, {self.split}"


def tuning() -> list[Run]:
    """What rates are chosen by: one draw of each cell, scored on validation rows."""
    return [
        Run(variant, cell, TUNING, rate, "validation")
        for rate in range(len(RATES))
        for cell in range(len(CELLS))
        for variant in VARIANTS
    ]


def chosen(scores: Mapping[str, float]) -> dict[Variant, int] | None:
    """The rates of each variant that do best in the mean of all cells; None: not all were tried.

    :param scores: of runs, by key.
    """
    if any(run.key not in scores for run in tuning()):
        return None
    total: dict[Variant, list[float]] = {variant: [0.0] * len(RATES) for variant in VARIANTS}
    for run in tuning():
        total[run.variant][run.rate] += scores[run.key] / len(CELLS)
    return {variant: max(range(len(RATES)), key=lambda rate: values[rate]) for variant, values in total.items()}


def main_part(rates: Mapping[Variant, int]) -> list[Run]:
    """Seed by seed, so that a study that is stopped early has every cell with fewer seeds."""
    return [Run(variant, cell, seed, rates[variant]) for seed in SEEDS for cell in range(len(CELLS)) for variant in VARIANTS]
