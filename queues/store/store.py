"""The seam between those who compute gradients and the one who applies them.

A *reader* takes parameters, all of them of the same step, and hands in gradients; a *writer*, of which there is one, applies them
in the order in which the queues know them as submitted. Kinds: `memory` (one process), `file` (one host), `http` (anywhere).

Parameters are named `shared/NAME` (the encoder's) and `head/TASK/NAME`, as `queues.stream.model.Learner.parameters` has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a gradient whose other rows are zero, as an embedding's is."""

    index: Tensor  # (R,) int64, ascending, different
    values: Tensor  # (R, ...) float32


@dataclass(frozen=True, slots=True)
class Sent:
    """A gradient on its way. A tensor that the batch did not touch has no entry; zeros are never filled in."""

    batch: str
    attempt: int
    task: str
    base: int  # the step of the parameters that it was computed on
    samples: int
    loss: float
    tensors: Mapping[str, Tensor | Rows] = field(repr=False)  # float32


class Verdict(StrEnum):
    """What became of a gradient."""

    APPLIED = "applied"
    STALE = "stale"  # its base is too old by now: the batch comes back to be computed again
    REFUSED = "refused"  # not finite, of another shape, damaged: the batch comes back, and it counts against it


class StoreReader(Protocol):
    """The worker's side."""

    def step(self) -> int:
        """The step that `read` would give now; cheap."""
        ...

    def read(self, into: Mapping[str, Tensor]) -> int:
        """Copy parameters, all of one step, into tensors of their names; tell the step.

        :param into: any of the parameters; in place.
        :raises DeadlineExceeded, Unreachable, StorageFailed: the store cannot be read.
        """
        ...

    def send(self, gradient: Sent) -> None:
        """Lay a gradient down, whole, where the writer finds it; the caller then tells the queues that it is submitted.

        :raises QueueFull: there is no room for it now.
        :raises StorageFailed: the disk refused.
        """
        ...

    def verdict(self, batch: str, attempt: int, seconds: float) -> Verdict | None:
        """Wait for what becomes of a gradient; None: nothing within this time."""
        ...

    def withdraw(self, batch: str, attempt: int) -> None:
        """Take back a gradient that was laid down and not submitted."""
        ...


class StoreWriter(Protocol):
    """The server's side. One process has it, by the stream's lock."""

    @property
    def step(self) -> int:
        """Of the parameters as they are now."""
        ...

    def received(self, batch: str, attempt: int) -> Sent | None:
        """A gradient that was laid down; None: it is not there, or not whole.

        Its tensors may lie in a memory map that is valid until `done`.
        """
        ...

    def applied(self, batch: str) -> int | None:
        """The step at which a batch was applied, if it is among those since the oldest checkpoint kept; None: it was not."""
        ...

    def apply(self, gradients: tuple[Sent, ...], combined: Mapping[str, Tensor] | None = None) -> int:
        """One step: all parameters of the gradients move, visible to readers at once; tell the new step.

        :param gradients: one; or one of each task, whose shared parts were combined.
        :param combined: the shared part, where it is not the gradients' own.
        """
        ...

    def add(self, delta: Mapping[str, Tensor], name: str) -> int:
        """One step that adds to shared parameters what a round came to; done once a name, as a batch is; tell the step."""
        ...

    def put(self, values: Mapping[str, Tensor], name: str, *, fresh: bool = False) -> int:
        """One step that sets shared parameters to those that a round begins with; done once a name; tell the step.

        :param fresh: whether their moments begin anew; else they stay.
        """
        ...

    def added(self) -> Mapping[str, int]:
        """The rounds that were added or put, by name, and at which step each was."""
        ...

    def done(self, batch: str, attempt: int, verdict: Verdict) -> None:
        """Tell the reader what became of its gradient, and let the gradient go."""
        ...

    def checkpoint(self) -> int:
        """Make all steps up to now survive a power cut; tell the step that is covered."""
        ...

    def checkpointed(self) -> int:
        """The newest step that is covered."""
        ...

    def close(self) -> None:
        """Let go of files."""
