"""What is compared: seven children with five tasks, three variants, four cells, and every run as a value."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

from tasks.specs import Head, TaskSpec
from trunkline.values import Decay, Moments, Optimizer

VERSION = 2
"""Counts up whenever a figure of before does not compare with one of after; older results are left aside, not deleted."""

BATCH, LENGTH, LAYERS = 8, 24, 2  # samples a step, tokens at most, layers of MiniLM's six
STEPS, ROUNDS = 96, 24  # of a child, in every variant and cell; of the shared one
RULE, CODEC = "mean_by_task", "float32"  # of the shared variant

Variant = Literal["alone", "shared", "pooled"]
Start = Literal["pretrained", "scratch"]
Split = Literal["validation", "test"]

VARIANTS: Sequence[Variant] = ("alone", "shared", "pooled")
SEEDS = (0, 1, 2, 3, 4)
OTHER_SEEDS = (0, 1, 2)  # of the other rules and codecs
TUNING_SEED = 100  # draws other rows, so that what was tuned has not seen the study's draws


@dataclass(frozen=True, slots=True)
class Place:
    """One child and its only task."""

    child: str
    task: str
    head: Head
    file: str  # below the repository's root
    field: str = "text"
    label: str = "label"

    def spec(self, data: str) -> TaskSpec:
        """The task as a child declares it."""
        return TaskSpec(
            name=self.task, head=self.head, data=data, fields=(self.field,), label=self.label, batch_size=BATCH, max_length=LENGTH
        )

    @property
    def metric(self) -> str:
        return "Pearson" if self.head == "regression" else "accuracy"


PLACES: Sequence[Place] = (
    Place("shop-amazon", "sentiment", "single", "tasks/data/reviews_amazon.csv"),
    Place("shop-imdb", "sentiment", "single", "tasks/data/reviews_imdb.csv"),
    Place("shop-yelp", "sentiment", "single", "tasks/data/reviews_yelp.csv"),
    Place("tweets", "valence", "regression", "tasks/data/tweets_valence.csv", label="score"),
    Place("mail", "spam", "single", "tasks/data/mail_spam.csv"),
    Place("glosses", "supersense", "single", "tests/data/gloss_supersense.csv"),
    Place("addresses", "address", "tokens", "tests/data/address_tokens.jsonl", field="tokens", label="labels"),
)

TASKS = tuple(sorted({place.task for place in PLACES}))
SEVERAL = tuple(task for task in TASKS if sum(place.task == task for place in PLACES) > 1)
"""The tasks that several children have."""


@dataclass(frozen=True, slots=True)
class Cell:
    """How the encoder starts, and the share of its training rows that each child holds."""

    start: Start
    rows: float

    @property
    def poor(self) -> bool:
        return self.rows < 1.0

    def __str__(self) -> str:
        return f"{'pretrained' if self.start == 'pretrained' else 'from scratch'}, {self.rows:.0%} of the rows"


POOR = 0.1  # of the rows
CELLS: Sequence[Cell] = tuple(Cell(start, rows) for rows in (POOR, 1.0) for start in ("pretrained", "scratch"))
OTHERS = CELLS[0]
"""The cell of the other rules and codecs."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Learning rates of the encoder and of the heads."""

    encoder: float
    head: float


@dataclass(frozen=True, slots=True)
class Run:
    """One training of all seven children: everything that its result depends on."""

    variant: Variant
    start: Start
    rows: float
    seed: int  # draws the rows, the heads, their order and the dropout; from scratch the encoder too
    split: Split  # what is scored
    steps: int  # a child, over the whole run
    learning_rate: float
    head_learning_rate: float
    decay: Decay = "linear"
    optimizer: Optimizer = "adamw"
    rounds: int | None = None  # this and the next ones: of the shared variant
    rule: str | None = None
    codec: str | None = None
    moments: Moments | None = None
    settle_steps: int = 0  # after the last round, heads alone
    version: int = VERSION

    @property
    def key(self) -> str:
        """The same for the same run, whatever the order of the fields."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def cell(self) -> Cell:
        return Cell(self.start, self.rows)

    @property
    def cost(self) -> float:
        """Expected work, in steps; scoring counts a little."""
        return len(PLACES) * (self.steps + 8.0)

    def table(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_table(cls, table: dict[str, Any]) -> Self:
        return cls(**table)

    def __str__(self) -> str:
        settled = f", {self.settle_steps} steps of heads" if self.settle_steps else ""
        how = f" {self.rule} {self.codec}, {self.rounds} rounds, moments {self.moments}{settled}" if self.rounds else ""
        rates = f"{self.learning_rate:g}/{self.head_learning_rate:g}"
        return f"{self.variant}{how}, {self.optimizer}, {self.cell}, {rates}, seed {self.seed} ({self.split})"


def make(variant: Variant, cell: Cell, seed: int, rates: Rates, split: Split = "test") -> Run:
    """A run of the study's main part."""
    run = Run(variant, cell.start, cell.rows, seed, split, STEPS, rates.encoder, rates.head)
    return replace(run, rounds=ROUNDS, rule=RULE, codec=CODEC, moments="kept") if variant == "shared" else run


OTHER_RULES = (
    "mean",
    "mean:by=sqrt",
    "mean:by=equal",
    "median",  # within each task, then across tasks
    "median:within=round",  # over all children
    "trimmed_mean:within=round,trim=0.2",
    "geometric_median:within=round",
    "krum:within=round,faulty=1",
    "multi_krum:within=round,faulty=1",
    "bulyan:within=round,faulty=1",
    f"clip:norm=1+{RULE}",
    f"zero_outliers+{RULE}",
    f"{RULE}+momentum:beta=0.5",
    f"{RULE}+adam:rate=0.001",
    f"{RULE}+yogi:rate=0.001",
    f"{RULE}+adagrad:rate=0.001",
    "fedbuff:size=7",
    "upgrad",
    "pcgrad",
    "cagrad",
    "imtl_g",
)
"""As `--rule` takes them. A rule that this version does not have is left out and told; it is run once it is there."""

SGD_RULES = (RULE, "scaffold")
"""SCAFFOLD needs plain SGD at a constant rate, so it is to be compared with the usual rule under the same."""

SGD_RATES = Rates(0.1, 0.1)

OTHER_CODECS = ("bf16", "int8", "int4", "topk:share=0.05", "lowrank:rank=4")


def others(shared: Rates) -> Iterator[Run]:
    """Every other rule with float32, and every other codec with the usual rule, in the one cell."""
    for seed in OTHER_SEEDS:
        usual, plain = (make("shared", OTHERS, seed, rates) for rates in (shared, SGD_RATES))
        yield from (replace(usual, codec=codec) for codec in OTHER_CODECS)
        yield from (replace(usual, rule=rule) for rule in OTHER_RULES)
        yield from (replace(plain, rule=rule, optimizer="sgd", decay="none") for rule in SGD_RULES)
