"""What a stream is declared to be: the file behind `trunkline stream create stream.toml`. No torch here."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from queues.settings import Limits, QueueSettings, StreamSettings
from tasks.specs import Positive, Seed, TaskSpec, Texts
from trunkline.settings import build
from trunkline.values import Count, Decay, Finite, Name, Optimizer, Precision, Section

STREAM = "stream"
"""What messages call the place that a stream's samples come from."""

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Strength = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0.01, le=1e6, allow_inf_nan=False)]


class StreamTask(TaskSpec):
    """One task of a stream. Its labels are all named: a stream has no end at which they would be known."""

    data: Annotated[str, Field(min_length=1)] = STREAM  # its samples come through its queue, from no file
    queue: Limits = Limits()
    heldout: str | None = None  # a file of labelled rows that its scores are of; relative to the declaration
    scale: Annotated[tuple[Finite, Annotated[Finite, Field(gt=0)]], Field(strict=False)] = (0.0, 1.0)
    """Mean and deviation of a regression's targets, as far as they are known."""

    @property
    def task(self) -> TaskSpec:
        """The task itself."""
        return TaskSpec.model_validate({name: getattr(self, name) for name in TaskSpec.model_fields})

    @property
    def settings(self) -> QueueSettings:
        """Its queue."""
        return build(QueueSettings, {"batch_size": self.batch_size, **self.queue.model_dump()}, f"`tasks.queue` of {self.name}")

    @model_validator(mode="after")
    def _of_a_stream(self) -> Self:
        if self.head in ("single", "multi", "tokens") and self.labels is None:
            raise ValueError("`labels` should name all labels of a task that learns from a queue, found none named")
        if self.data != STREAM:
            raise ValueError(
                "`data` should be left out: the samples come through the queue; labelled rows to score go in `heldout`"
            )
        return self


class Learning(Section):
    """How a gradient moves the parameters."""

    optimizer: Optimizer = "adamw"
    learning_rate: Rate = 1e-4
    head_learning_rate: Rate = 1e-3
    momentum: Share = 0.0  # of `sgd`
    beta1: Share = 0.9  # of `adamw`; staleness acts like more of it, so 0.5 does better with many workers
    weight_decay: Strength = 0.01  # on matrices
    clip_norm: Strength = 1.0  # of each batch's gradient; 0 switches it off
    warmup_steps: Count = 100
    decay: Decay = "none"
    total_steps: Positive | None = None  # where `decay` ends
    lazy: bool = False  # moments of an embedding move only in rows that a batch has; not what AdamW is, but quicker
    seed: Seed = 0  # of heads and dropout
    micro_batch: Positive | None = None  # samples a forward pass; None: the batch
    precision: Precision = "float32"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.decay != "none" and self.total_steps is None:
            raise ValueError("`total_steps` should say where the decay ends, found nothing")
        return self


class Keeping(Section):
    """How the store keeps what it has."""

    kind: Literal["file", "memory"] = "file"
    staleness: Annotated[int, Field(ge=0, le=1000)] = (
        2  # steps between a gradient's base and its turn; beyond, it is computed again
    )
    damping: Literal["none", "sqrt"] = "none"  # of a stale gradient's step: 1 / sqrt(1 + staleness)
    checkpoint_steps: Positive = 200
    checkpoint_seconds: Seconds = 300.0
    checkpoints: Annotated[int, Field(ge=1, le=1000)] = 2  # that are kept
    record_bytes: Annotated[int, Field(ge=0, le=2**53)] = 1 << 30  # of applied batches, for `replay`; 0: none


class Together(Section):
    """Whether each batch moves the parameters by itself, or one of every task together."""

    mode: Literal["each", "together"] = "each"
    rule: str = "equal"  # how gradients become one; see `tasks.balance`
    wait_seconds: Seconds = 60.0  # for the batch of a task; then the step is made without it


class StreamSpec(Section):
    """A stream as a person writes it. Unknown keys are refused."""

    name: Name
    encoder: Name  # of the encoder that it trains
    tasks: Annotated[tuple[StreamTask, ...], Field(min_length=1)]
    feeds: dict[Name, Texts] = Field(default_factory=dict)  # a name to push under -> the tasks that each sample goes to
    queues: StreamSettings = StreamSettings()
    learning: Learning = Learning()
    store: Keeping = Keeping()
    together: Together = Together()
    conflict_steps: Annotated[int, Field(ge=0)] = 10  # batches of a task from one look at its gradient to the next; 0: none
    evaluate_steps: Annotated[int, Field(ge=0)] = 200  # between two looks at the held-out rows; 0: none

    def task(self, name: str) -> StreamTask | None:
        """The task of a name."""
        return next((task for task in self.tasks if task.name == name), None)

    def fed_by(self, name: str) -> tuple[str, ...]:
        """The tasks that a sample pushed under a name goes to; none: nobody knows the name."""
        return self.feeds.get(name) or ((name,) if self.task(name) else ())

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [task.name for task in self.tasks]
        if len(set(names)) != len(names):
            raise ValueError(f"`tasks` should have different names, found {', '.join(names)}")
        for feed, tasks in self.feeds.items():
            if feed in names:
                raise ValueError(f"`feeds.{feed}` should have a name that no task has")
            if unknown := sorted(set(tasks) - set(names)):
                raise ValueError(f"`feeds.{feed}` should name tasks of {', '.join(names)}, found {', '.join(unknown)}")
            if not tasks or len(set(tasks)) != len(tasks):
                raise ValueError(f"`feeds.{feed}` should name each of its tasks once, found {', '.join(tasks) or 'none'}")
        for task in self.tasks:
            _ = task.settings  # does `most` hold a batch?
        return self
