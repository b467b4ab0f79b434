"""What the owner of a site decides: `child.toml`, environment `TRUNKLINE_CHILD_*`, flags."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trunkline import settings
from trunkline.values import CodecName, Name, Precision, Section, Transfer

PREFIX = "TRUNKLINE_CHILD"
"""Of the environment variables, such as `TRUNKLINE_CHILD_POLL`."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
TimeOfDay = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]


class Policy(Section):
    """Which instructions this site accepts; empty lists accept all. A refusal says which line refused."""

    encoders: tuple[Name, ...] = ()
    types: tuple[Name, ...] = ()
    jobs: tuple[str, ...] = ()  # names, or patterns such as `nightly-*`
    tasks: tuple[Name, ...] = ()  # tasks that may be trained
    codecs: tuple[CodecName, ...] = ()  # whatever their options
    transfers: tuple[Transfer, ...] = ()
    hours: tuple[TimeOfDay, TimeOfDay] | None = None  # local time, from and up to; may cross midnight
    most_steps: Annotated[int, Field(ge=1)] | None = None
    report: bool = True  # whether scores are told to the master

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.hours is not None and self.hours[0] == self.hours[1]:
            raise ValueError(f"`hours` should be two different times, found {self.hours[0]} twice; leave it out for the whole day")
        return self


class ChildSettings(Section):
    """Everything a site may set."""

    threads: Annotated[int, Field(ge=1)] | None = None  # of torch; None: all cores
    memory: Annotated[int, Field(ge=1 << 20)] = 256 << 20  # bytes that reading samples may take
    precision: Precision | None = None  # overrides what a job asks for
    device: str = "cpu"  # cpu, cuda, cuda:1
    keep_sets: Annotated[int, Field(ge=1)] = 3
    heartbeat: Annotated[float, Field(ge=10, le=1800)] = 10.0  # seconds
    poll: Positive = 0.02  # seconds between looks while a job runs
    idle_poll: Positive = 2.0  # seconds between looks when nothing happens
    away: Positive = 60.0  # longest pause between attempts to reach the master, seconds
    batch_lease: Positive = 3600.0  # seconds a training step may take
    stream_seconds: Positive = 600.0  # that workers of a stream may take for a round; then what came of it is the update
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    policy: Policy = Policy()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.idle_poll < self.poll:
            raise ValueError(f"`idle_poll` should be at least `poll` ({self.poll}), found {self.idle_poll}")
        return self


def load(path: Path | None, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> ChildSettings:
    """What is set at a site: flags, environment, file, defaults.

    :raises SettingsError: something is wrong, named with its source.
    """
    return settings.load(ChildSettings, path, PREFIX, flags, environ)
