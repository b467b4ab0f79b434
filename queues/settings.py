"""How a queue and a stream are set up: values, checked at the border."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trunkline.values import Section

BATCH_LIMIT = 4096
"""Samples in a batch at most: what a Redis script can hand out, so that every kind of queue accepts the same settings."""

Weight = Annotated[float, Field(ge=0.001, le=1000, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0.001, le=1e6, allow_inf_nan=False)]  # the server counts milliseconds
Many = Annotated[int, Field(ge=1, le=2**53)]  # a script's numbers are whole up to here

Policy = Literal["arrival", "equal", "proportional", "temperature", "priority"]

State = Literal["open", "paused", "draining", "stopped", "filling"]
"""Takes samples and gives batches; neither; gives what is left and takes none; neither, and its head is frozen; takes samples and
gives no batches, between two rounds."""


class Limits(Section):
    """What holds for one queue, whatever its batch size."""

    most: Many = 100_000  # samples that wait at most; more are refused
    weight: Weight = 1.0  # share of the turns, where turns are fair
    priority: Annotated[int, Field(ge=-100, le=100)] = 0  # higher comes first, where turns go by priority
    flush_seconds: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0  # a sample waits so long at most; 0: for ever
    flush_least: Annotated[int, Field(ge=1, le=BATCH_LIMIT)] = 1  # samples without which nothing is flushed
    out: Annotated[int, Field(ge=0, le=100_000)] = 0  # batches that may be out at once; 0: any number


class QueueSettings(Limits):
    """One queue."""

    batch_size: Annotated[int, Field(ge=1, le=BATCH_LIMIT)]

    @model_validator(mode="after")
    def _check(self) -> "QueueSettings":
        if self.most < self.batch_size:
            raise ValueError(f"`most` should be at least `batch_size` ({self.batch_size}), found {self.most}")
        if self.flush_least > self.batch_size:
            raise ValueError(f"`flush_least` should be at most `batch_size` ({self.batch_size}), found {self.flush_least}")
        return self


class StreamSettings(Section):
    """All queues of one stream."""

    lease_seconds: Seconds = 60.0  # a worker may be silent so long
    attempts: Annotated[int, Field(ge=1, le=1000)] = 3  # failures after which a batch is dead
    budget: Many = 1 << 30  # bytes of samples in all queues together
    policy: Policy = "arrival"
    temperature: Annotated[float, Field(ge=1, le=1e6, allow_inf_nan=False)] = (
        2.0  # of the policy `temperature`: 1 is proportional, much is equal
    )
    aging_seconds: Seconds = 10.0  # of waiting that count as one step of priority
