"""A TaskQueue in this process: a child trains its local samples through it, with no server at all."""

import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic

from queues.queue import Claim, Counts, Outcome, Sample
from queues.settings import BATCH_LIMIT
from trunkline.clock import Clock, SystemClock
from trunkline.errors import NotFound, SettingsError


@dataclass(slots=True)
class _Line(Generic[Sample]):
    """One task's queue."""

    batch_size: int
    waiting: deque[Sample] = field(default_factory=deque)
    full_since: int | None = None  # the turn in which it last became full
    pushed: int = 0
    applied: int = 0
    leased: int = 0
    dead: list[tuple[Claim[Sample], str]] = field(default_factory=list)


@dataclass(slots=True)
class _Lease(Generic[Sample]):
    claim: Claim[Sample]
    ends: float  # seconds, monotonic


class MemoryQueue(Generic[Sample]):
    """One line a task, in this process.

    :param lease: seconds a worker may be silent.
    :param attempts: how often a batch is handed out before it is dead.
    :param new_id: makes a batch id that is never used again.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        lease: float = 600.0,
        attempts: int = 3,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        if lease <= 0 or attempts < 1:
            raise SettingsError(f"`lease` and `attempts` should be positive, found {lease} and {attempts}.")
        self._clock, self._lease, self._attempts, self._new_id = clock or SystemClock(), lease, attempts, new_id
        self._lines: dict[str, _Line[Sample]] = {}
        self._leases: dict[str, _Lease[Sample]] = {}
        self._applied: set[str] = set()
        self._turn = 0
        self._mutex = threading.Lock()

    def open(self, task: str, batch_size: int) -> None:
        if not 1 <= batch_size <= BATCH_LIMIT:
            raise SettingsError(f"`batch_size` of {task} should be 1 to {BATCH_LIMIT}, found {batch_size}.")
        with self._mutex:
            line = self._lines.setdefault(task, _Line(batch_size))
            line.batch_size = batch_size
            self._note_full(line)

    def push(self, task: str, samples: Sequence[Sample]) -> int:
        with self._mutex:
            line = self._line(task)
            line.waiting.extend(samples)
            line.pushed += len(samples)
            self._note_full(line)
            return len(line.waiting)

    def claim(self) -> Claim[Sample] | None:
        with self._mutex:
            return self._overdue() or self._full()

    def renew(self, claim: Claim[Sample]) -> Outcome:
        with self._mutex:
            lease, outcome = self._held(claim)
            if lease is not None:
                lease.ends = self._clock.monotonic() + self._lease
            return outcome

    def commit(self, claim: Claim[Sample]) -> Outcome:
        with self._mutex:
            if claim.id in self._applied:
                return Outcome.DUPLICATE
            lease, outcome = self._held(claim)
            if lease is not None:
                self._let_go(lease.claim)
                self._lines[claim.task].applied += len(claim.samples)
                self._applied.add(claim.id)
            return outcome

    def nack(self, claim: Claim[Sample], reason: str) -> Outcome:
        with self._mutex:
            lease, outcome = self._held(claim)
            if lease is not None:
                lease.ends = self._clock.monotonic()
                self._bury_if_spent(lease, reason)
            return outcome

    def waiting(self, task: str) -> tuple[Sample, ...]:
        with self._mutex:
            return tuple(self._line(task).waiting)

    def dead(self, task: str) -> tuple[tuple[Claim[Sample], str], ...]:
        """Batches that were put aside, each with its last reason."""
        with self._mutex:
            return tuple(self._line(task).dead)

    def counts(self, task: str) -> Counts:
        with self._mutex:
            line = self._line(task)
            dead = sum(len(claim.samples) for claim, _ in line.dead)
            return Counts(line.pushed, line.applied, len(line.waiting), line.leased, dead=dead)

    # -- under the mutex -----------------------------------------------------------------------------------------------

    def _line(self, task: str) -> _Line[Sample]:
        if task not in self._lines:
            raise NotFound(f"task {task!r} should have a queue, found {', '.join(sorted(self._lines)) or 'none'}.")
        return self._lines[task]

    def _note_full(self, line: _Line[Sample]) -> None:
        if len(line.waiting) < line.batch_size:
            line.full_since = None
        elif line.full_since is None:
            self._turn += 1
            line.full_since = self._turn

    def _overdue(self) -> Claim[Sample] | None:
        now = self._clock.monotonic()
        for lease in sorted(self._leases.values(), key=lambda lease: lease.ends):
            if lease.ends > now:
                return None
            if self._bury_if_spent(lease, "its worker was silent for longer than the lease"):
                continue
            lease.claim = replace(lease.claim, attempt=lease.claim.attempt + 1)
            lease.ends = now + self._lease
            return lease.claim
        return None

    def _full(self) -> Claim[Sample] | None:
        full = [(line.full_since, task) for task, line in self._lines.items() if line.full_since is not None]
        if not full:
            return None
        task = min(full)[1]
        line = self._lines[task]
        samples = tuple(line.waiting.popleft() for _ in range(line.batch_size))
        line.full_since = None
        self._note_full(line)
        claim = Claim(self._new_id(), 1, task, samples)
        line.leased += len(samples)
        self._leases[claim.id] = _Lease(claim, self._clock.monotonic() + self._lease)
        return claim

    def _held(self, claim: Claim[Sample]) -> tuple[_Lease[Sample] | None, Outcome]:
        lease = self._leases.get(claim.id)
        if lease is None:
            return None, Outcome.GONE
        if lease.claim.attempt != claim.attempt:
            return None, Outcome.FENCED
        return lease, Outcome.OK

    def _bury_if_spent(self, lease: _Lease[Sample], reason: str) -> bool:
        if lease.claim.attempt < self._attempts:
            return False
        self._let_go(lease.claim)
        self._lines[lease.claim.task].dead.append((lease.claim, reason))
        return True

    def _let_go(self, claim: Claim[Sample]) -> None:
        del self._leases[claim.id]
        self._lines[claim.task].leased -= len(claim.samples)
