"""What a job asks for: the file behind `trunkline job start job.toml`."""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from master.rules import Buffers, Rule, find_rule
from master.sharing.gains import MARGIN
from trunkline.errors import SpecError
from trunkline.messages import Plan
from trunkline.values import Codec, Decay, Finite, Moments, Name, Optimizer, Precision, Section, Split, Transfer

MOST = 2**31 - 1
"""The largest whole number that every ledger has room for."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Strength = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=1, le=MOST)]
Share = Annotated[float, Field(gt=0, le=1)]


def _canonical(word: str) -> str:
    try:
        return str(find_rule(word))
    except SpecError as error:
        raise ValueError(str(error)) from None


RuleWord = Annotated[str, AfterValidator(_canonical)]
"""A fuse rule as `trunkline rule list` explains it, such as `clip:norm=1+median`."""


class Children(Section):
    """Which children make a round, and how long they are waited for."""

    wanted: Whole | None = None  # confirmations to start with at once; None: wait for every child's answer
    least: Whole = 1  # confirmations without which a round does not start
    least_updates: Whole | None = None  # updates without which nothing is fused; None: `least`
    close_at: Whole | None = None  # updates that close a round early; None: wait for every member
    confirm_seconds: Positive = 60.0
    update_seconds: Positive = 3600.0
    report_seconds: Positive = 600.0
    wait_seconds: Positive = 3600.0  # how long rounds are tried again when too few children are there
    max_share: Share = 1.0  # of the weight, for any one child

    @property
    def fewest(self) -> int:
        """Updates without which nothing is fused."""
        return self.least_updates or self.least

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.wanted is not None and self.least > self.wanted:
            raise ValueError(f"`least` should be at most `wanted` ({self.wanted}), found {self.least}")
        if self.wanted is not None and (self.least_updates or 0) > self.wanted:
            raise ValueError(f"`least_updates` should be at most `wanted` ({self.wanted}), found {self.least_updates}")
        if self.close_at is not None and self.close_at < self.fewest:
            raise ValueError(f"`close_at` should be at least `least_updates`, found {self.close_at}")
        return self


class Stop(Section):
    """When no further round follows, besides the number of rounds. Read from the validation scores that the children report."""

    target: dict[Name, Finite] = Field(default_factory=dict)  # task, or `mean`: a validation score that is good enough
    patience: Whole | None = None  # rounds without a better mean
    seconds: Positive | None = None  # wall time of the job


class Training(Section):
    """How children train in a round; the fields of `Plan` that a person chooses. Defaults are what did best in docs/value.md."""

    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 4
    head_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0  # of these, at first, move the heads alone
    settle_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0  # after the last round, which fit the heads to what came out
    optimizer: Optimizer = "adamw"
    moments: Moments = "kept"  # of the shared layers, at the start of a round
    learning_rate: Positive = 1e-3
    head_learning_rate: Positive = 1e-2
    weight_decay: Strength = 0.01
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.1  # share of the whole job's steps
    decay: Decay = "linear"
    clip_norm: Strength = 1.0
    prox: Strength = 0.0
    batch_size: Annotated[int, Field(ge=1, le=4096)] | None = None
    micro_batch: Whole | None = None
    max_length: Whole | None = None
    precision: Precision = "float32"
    threads: Whole | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.head_steps >= self.steps:
            raise ValueError(f"`head_steps` should be fewer than `steps` ({self.steps}), found {self.head_steps}")
        return self


class Alarm(Section):
    """When a loss against training alone is told as an alarm; see docs/transfer.md."""

    margin: Annotated[float, Field(ge=0, le=1)] = MARGIN  # smallest loss that counts: of the metric, for errors a share of it


class JobSpec(Section):
    """A job as a person writes it. Unknown keys are refused, each value is checked when it is read."""

    encoder: Name
    rounds: Annotated[int, Field(ge=1, le=100_000)] = 24
    rule: RuleWord = "mean_by_task"
    codec: Codec = "float32"
    transfer: Transfer = "blob"
    tasks: tuple[Name, ...] = ()  # empty: all of the encoder's type
    stream: Name | None = None  # of the master, which trains the encoder too: rounds start from what it has learned, and go into it
    report: tuple[Split, ...] = ("validation",)  # after every round
    final_report: tuple[Split, ...] = ("validation", "test")  # after the last one
    keep_rounds: Annotated[int, Field(ge=0, le=MOST)] = 2  # rounds whose recorded updates are kept
    seed: Annotated[int, Field(ge=0, lt=2**53)] = 0
    training: Training = Training()
    children: Children = Children()
    stop: Stop = Stop()
    alarm: Alarm = Alarm()
    buffers: Buffers = Buffers()

    @property
    def fuse_rule(self) -> Rule:
        """The rule itself."""
        return find_rule(self.rule)

    @model_validator(mode="after")
    def _check(self) -> Self:
        rule, fewest = self.fuse_rule, self.children.fewest
        for part in rule.parts:
            if (objection := part.objection(self)) is not None:
                raise ValueError(objection)
        if rule.least > fewest:
            raise ValueError(
                f"`children.least_updates` should be at least {rule.least} for the rule {self.rule}, found {fewest}: "
                "with fewer it cannot keep what it promises"
            )
        return self

    def plan(self, number: int) -> Plan:
        """What a child is told in round `number` (from 1)."""
        total = self.rounds * self.training.steps
        fields: dict[str, Any] = self.training.model_dump(exclude={"warmup", "settle_steps"})
        return Plan(
            **fields,
            total_steps=total,
            done_steps=(number - 1) * self.training.steps,
            warmup_steps=int(self.training.warmup * total),
            seed=self.seed,
            corrected=self.fuse_rule.corrects,
        )

    def settling(self) -> Plan | None:
        """How a child fits its heads to the last target: at a constant rate, in the order of samples where its training ended."""
        steps = self.training.settle_steps
        if not steps:
            return None
        last = self.plan(self.rounds)
        done = last.done_steps + last.steps
        changes = {"steps": steps, "head_steps": steps, "done_steps": done, "total_steps": done + steps}
        return last.model_copy(update=changes | {"warmup_steps": 0, "decay": "none", "corrected": False})
