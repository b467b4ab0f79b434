"""The seam of the inner loop: one queue of samples a task, from which exactly a batch is taken when it is full.

A *delivery* is one visit of one sample. `push` adds deliveries, `claim` takes exactly `batch_size` of them, all of one task and in
order of arrival, under a lease; `commit` says that they changed the parameters. A worker that is silent for longer than its lease
loses the batch: the same deliveries are handed out again, in the same order, under the next attempt number, and what the old worker
says about them is `FENCED`. So at any moment, for every task:

    pushed = applied + queued + leased + submitted + dead + purged
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

Sample = TypeVar("Sample")


@dataclass(frozen=True, slots=True)
class Claim(Generic[Sample]):
    """A batch in the hands of one worker."""

    id: str  # random, never used again
    attempt: int  # counted from 1; the fencing token
    task: str
    samples: tuple[Sample, ...]  # exactly the task's batch size, oldest first


class Outcome(StrEnum):
    """What a commit or nack did."""

    OK = "ok"
    DUPLICATE = "duplicate"  # committed before; nothing happened now
    FENCED = "fenced"  # another attempt holds the batch
    GONE = "gone"  # no such batch is out


@dataclass(frozen=True, slots=True)
class Counts:
    """Where a task's deliveries are."""

    pushed: int = 0
    applied: int = 0
    queued: int = 0
    leased: int = 0
    submitted: int = 0  # the store has their gradient
    dead: int = 0
    purged: int = 0

    @property
    def conserved(self) -> bool:
        return self.pushed == self.applied + self.queued + self.leased + self.submitted + self.dead + self.purged


class TaskQueue(Protocol[Sample]):
    """First in, first out, one line a task. Safe for many producers and workers."""

    def open(self, task: str, batch_size: int) -> None:
        """Make a task known, or change its batch size from the next claim on."""
        ...

    def push(self, task: str, samples: Sequence[Sample]) -> int:
        """Append deliveries; return how many wait now.

        :raises NotFound: the task was not opened.
        """
        ...

    def claim(self) -> Claim[Sample] | None:
        """Take the batch that is longest overdue (a lost lease first), or None where no queue is full."""
        ...

    def renew(self, claim: Claim[Sample]) -> Outcome:
        """Extend the lease of a long step."""
        ...

    def commit(self, claim: Claim[Sample]) -> Outcome:
        """Say that the batch changed the parameters."""
        ...

    def nack(self, claim: Claim[Sample], reason: str) -> Outcome:
        """Give the batch back at once; after too many attempts it is put aside as dead, with the reason."""
        ...

    def waiting(self, task: str) -> tuple[Sample, ...]:
        """The deliveries that wait, oldest first."""
        ...

    def counts(self, task: str) -> Counts:
        """Where the task's deliveries are."""
        ...
