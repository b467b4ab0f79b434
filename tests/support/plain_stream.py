"""One stream of queues in plain Python, without a server: what the scripts should do, told once more and slowly.

It keeps where each batch is as one word and counts anew whenever it is asked, where the scripts keep counters, indices and sums.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from queues.queue import Counts, Outcome

STAMP = 8
"""Bytes that a sample costs beside its own."""

Kept = list[tuple[float, bytes]]
"""Samples as they lay in a queue: when they were pushed, and what."""

Place = Literal["waiting", "lease", "submitted", "applied", "dead", "released", "purged"]


@dataclass
class Batch:
    id: str
    queue: str
    samples: list[bytes]
    place: Place = "lease"
    attempt: int = 1
    fails: int = 0
    ends: float = 0.0  # of the lease
    order: int = 0  # by which batches of one moment come
    free: bool = False  # in nobody's hands
    aside: bool = False  # its queue gives no batches
    step: int = 0
    reason: str = ""
    stamps: list[float] = field(default_factory=list)  # when its samples were pushed
    sent: float = 0.0  # when its gradient was submitted
    row: int = 0  # the place in the order of submissions


@dataclass
class Line:
    batch: int
    most: int = 100_000
    weight: float = 1.0
    priority: int = 0
    flush: float = 0.0
    least: int = 1
    out: int = 0
    state: str = "open"
    waiting: list[tuple[float, bytes]] = field(default_factory=list)  # arrival, sample
    pushed: int = 0
    purged: int = 0
    time: float = 0.0
    turn: float | None = None  # stands in line with this

    def holds(self, now: float) -> bool:
        if self.state not in ("open", "draining") or not self.waiting:
            return False
        late = self.flush > 0 and len(self.waiting) >= self.least and self.waiting[0][0] + self.flush <= now
        return self.state == "draining" or len(self.waiting) >= self.batch or late


class PlainStream:
    """:param policy: as in the settings; `power` is what a fair share goes with of the samples pushed."""

    def __init__(self, policy: str, *, power: float = 0.0, lease: float, attempts: int, budget: int, aging: float) -> None:
        self.policy, self.power, self.lease, self.attempts, self.budget, self.aging = policy, power, lease, attempts, budget, aging
        self.lines: dict[str, Line] = {}
        self.batches: dict[str, Batch] = {}
        self.producers: dict[tuple[str, str], int] = {}
        self.now = 0.0
        self.clock = 0.0
        self.turns = 0
        self.bell = False  # whether something happened that nobody looked at since
        self.step = 0  # the last that was committed
        self.released = 0  # the last that was let go
        self.known: dict[str, list[bytes]] = {}  # applied, and not pushed as far as the server of the queues knows

    # -- settings ------------------------------------------------------------------------------------------------------

    def configure(self, queue: str, **settings: Any) -> None:
        line = self.lines.setdefault(queue, Line(settings.get("batch", 1)))
        raised = settings.get("priority", line.priority) - line.priority
        for name, value in settings.items():
            setattr(line, name, value)
        if line.turn is not None and self.policy == "priority":
            line.turn -= raised * self.aging
        self._line_up(queue)
        if line.state in ("open", "draining"):
            for batch in self.batches.values():
                if batch.queue == queue and batch.aside:
                    batch.aside, batch.ends, self.bell = False, 0.0, True

    # -- samples -------------------------------------------------------------------------------------------------------

    def push(self, queue: str, samples: list[bytes], producer: str = "", first: int = 0) -> tuple[str, int]:
        line = self.lines.get(queue)
        if line is None:
            return "UNKNOWN", 0
        depth = len(line.waiting)
        if not samples:
            return "OK", depth
        new = samples
        if producer:
            last = self.producers.get((queue, producer), 0)
            if first > last + 1:
                return "GAP", last
            new = [sample for number, sample in enumerate(samples, first) if number > last]
            if not new:
                return "DUPLICATE", depth
        if line.state not in ("open", "filling"):
            return "PAUSED", depth
        if depth + len(new) > line.most or self.bytes + sum(len(sample) + STAMP for sample in new) > self.budget:
            return "BUSY", depth
        if producer:
            self.producers[queue, producer] = first + len(samples) - 1
            new = [sample for sample in new if not self._applied_before(queue, sample)]
        line.waiting += [(self.now, sample) for sample in new]
        line.pushed += len(new)
        self._line_up(queue)
        return "OK", len(line.waiting)

    def _applied_before(self, queue: str, sample: bytes) -> bool:
        if sample in self.known.get(queue, []):
            self.known[queue].remove(sample)
            return True
        return False

    @property
    def bytes(self) -> int:
        """Of all samples that are kept."""
        kept = [sample for line in self.lines.values() for _, sample in line.waiting]
        kept += [sample for batch in self.batches.values() if batch.place not in ("released", "purged") for sample in batch.samples]
        return sum(len(sample) + STAMP for sample in kept)

    # -- batches -------------------------------------------------------------------------------------------------------

    def claim(self, fresh: str) -> Batch | None:
        while lost := sorted(
            (batch for batch in self.batches.values() if batch.place == "lease" and not batch.aside and batch.ends <= self.now),
            key=lambda batch: (batch.ends, batch.id),
        ):
            batch = lost[0]
            if not batch.free:
                batch.fails += 1
            if batch.fails >= self.attempts:
                self._bury(batch, "its worker was silent for longer than the lease")
            elif self.lines[batch.queue].state not in ("open", "draining"):
                batch.free = batch.aside = True
            else:
                batch.free, batch.attempt, batch.ends = False, batch.attempt + 1, self.now + self.lease
                return batch
        late = [
            (line.waiting[0][0] + line.flush, queue)
            for queue, line in self.lines.items()
            if line.turn is None and self._holds(queue)
        ]
        for _, queue in sorted(late):
            self._line_up(queue)
        ready = [(line.turn, queue) for queue, line in self.lines.items() if line.turn is not None]
        return self._take(min(ready)[1], fresh) if ready else None

    def _take(self, queue: str, fresh: str) -> Batch:
        line = self.lines[queue]
        taken, line.waiting = line.waiting[: line.batch], line.waiting[line.batch :]
        line.turn = None
        if self.policy == "fair":
            self.clock = line.time
            line.time += len(taken) / (line.weight * line.pushed**self.power)
        stamps, samples = [stamp for stamp, _ in taken], [sample for _, sample in taken]
        batch = Batch(fresh, queue, samples, ends=self.now + self.lease, stamps=stamps)
        self.batches[fresh] = batch
        self._line_up(queue)
        return batch

    def renew(self, id: str, attempt: int) -> Outcome:
        outcome, batch = self._held(id, attempt)
        if batch and batch.place == "lease":
            batch.ends = self.now + self.lease
        return outcome

    def submit(self, id: str, attempt: int) -> Outcome:
        outcome, batch = self._held(id, attempt)
        if batch and batch.place == "lease":
            batch.place, batch.sent, batch.row, self.bell = "submitted", self.now, self._next(), True
        return outcome

    def commit(self, id: str, attempt: int, step: int) -> Outcome:
        outcome, batch = self._held(id, attempt)
        if batch:
            batch.place, batch.step = "applied", step
            self.step = max(self.step, step)
            self._in_again(batch.queue)
        return outcome

    def nack(self, id: str, attempt: int, reason: str, counts: bool) -> Outcome:
        outcome, batch = self._held(id, attempt)
        if batch:
            batch.place, batch.free, batch.ends, batch.reason = "lease", True, 0.0, reason
            batch.fails += counts
            if counts and batch.fails >= self.attempts:
                self._bury(batch, reason)
            else:
                self.bell = True
        return outcome

    def _bury(self, batch: Batch, reason: str) -> None:
        batch.place, batch.reason, batch.order = "dead", reason, self._next()
        self._in_again(batch.queue)

    def _held(self, id: str, attempt: int) -> tuple[Outcome, Batch | None]:
        batch = self.batches.get(id)
        if batch and batch.place == "applied":
            return Outcome.DUPLICATE, None
        if batch is None or batch.place not in ("lease", "submitted"):
            return Outcome.GONE, None
        if batch.attempt != attempt or batch.free:
            return Outcome.FENCED, None
        return Outcome.OK, batch

    def release(self, step: int) -> int:
        covered = [batch for batch in self.batches.values() if batch.place == "applied" and batch.step <= step]
        for batch in covered:
            batch.place = "released"
        self.released = max(self.released, min(step, self.step))
        return len(covered)

    # -- the server of the stream --------------------------------------------------------------------------------------

    def submitted(self) -> list[Batch]:
        return sorted((batch for batch in self.batches.values() if batch.place == "submitted"), key=lambda batch: batch.row)

    def claimable(self) -> int:
        lost = sum(batch.place == "lease" and not batch.aside and batch.ends <= self.now for batch in self.batches.values())
        return lost + sum(line.turn is not None or self._holds(queue) for queue, line in self.lines.items())

    def wait(self) -> bool:
        rang, self.bell = self.bell, False
        return rang

    def applied_after(self, step: int) -> list[Batch]:
        found = [batch for batch in self.batches.values() if batch.place == "applied" and batch.step > step]
        return sorted(found, key=lambda batch: (batch.step, batch.id))

    def reopen(self, step: int) -> int:
        back = self.applied_after(step)
        for batch in back:
            batch.place, batch.free, batch.ends, batch.aside = "lease", True, batch.step - 1e12, False
            batch.reason, self.bell = "the store went back to a step before it", True
            self._in_again(batch.queue)
        self.step, self.released = min(self.step, step), min(self.released, step)
        return len(back)

    def adopt(self, queue: str, id: str, step: int, attempt: int, kept: Kept) -> int | None:
        """Stamps and samples of a batch that the store applied."""
        batch = self.batches.get(id)
        if step <= self.released or (batch and batch.place == "applied"):
            return None
        line, found = self.lines[queue], len(kept)
        if batch is None:
            found, stamps, samples = 0, [stamp for stamp, _ in kept], [sample for _, sample in kept]
            batch = Batch(id, queue, samples, attempt=attempt, stamps=stamps)
            for one in kept:
                if one in line.waiting:
                    line.waiting.remove(one)
                    found += 1
                else:
                    self.known.setdefault(queue, []).append(one[1])
            line.pushed += len(kept) - found
            self.batches[id] = batch
            batch.place = "applied"
            self._line_up(queue)
        batch.place, batch.step = "applied", step
        self._in_again(queue)
        self.step = max(self.step, step)
        return found

    # -- what was put aside --------------------------------------------------------------------------------------------

    def dead(self, queue: str) -> list[Batch]:
        found = [batch for batch in self.batches.values() if batch.queue == queue and batch.place == "dead"]
        return sorted(found, key=lambda batch: batch.order)

    def retry(self, queue: str, ids: list[str] | None) -> int:
        chosen = [batch for batch in self.dead(queue) if ids is None or batch.id in ids]
        for batch in chosen:
            batch.place, batch.fails, batch.free, batch.ends = "lease", 0, True, 0.0
            batch.aside, self.bell = False, True
            self._in_again(queue)
        return len(chosen)

    def purge_dead(self, queue: str, ids: list[str] | None) -> int:
        chosen = [batch for batch in self.dead(queue) if ids is None or batch.id in ids]
        for batch in chosen:
            batch.place = "purged"
        return sum(len(batch.samples) for batch in chosen)

    def purge_waiting(self, queue: str) -> int:
        line = self.lines[queue]
        gone, line.waiting = len(line.waiting), []
        line.purged += gone
        self._line_up(queue)
        return gone

    def counts(self, queue: str) -> Counts:
        line = self.lines[queue]

        def at(*places: Place) -> int:
            return sum(len(batch.samples) for batch in self.batches.values() if batch.queue == queue and batch.place in places)

        return Counts(
            pushed=line.pushed,
            applied=at("applied", "released"),
            queued=len(line.waiting),
            leased=at("lease"),
            submitted=at("submitted"),
            dead=at("dead"),
            purged=line.purged + at("purged"),
        )

    # -- turns ---------------------------------------------------------------------------------------------------------

    def _next(self) -> int:
        self.turns += 1
        return self.turns

    def _holds(self, queue: str) -> bool:
        line = self.lines[queue]
        away = sum(batch.queue == queue and batch.place in ("lease", "submitted") for batch in self.batches.values())
        return line.holds(self.now) and not 0 < line.out <= away

    def _in_again(self, queue: str) -> None:
        if self.lines[queue].out:
            self._line_up(queue)

    def _line_up(self, queue: str) -> None:
        line = self.lines[queue]
        if not self._holds(queue):
            line.turn = None
        elif line.turn is None:
            self.bell = True
            if self.policy == "fair":
                line.turn = line.time = max(line.time, self.clock)
            elif self.policy == "priority":
                line.turn = self.now - line.priority * self.aging
            else:
                line.turn = self._next()
