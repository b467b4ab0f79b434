"""One step of a stream's parameters: what was submitted is examined, recorded, applied, committed, and told."""

import logging
import math
from collections.abc import Callable

from queues.queue import Outcome
from queues.store.store import Sent, StoreWriter, Verdict
from queues.stream.conflicts import Conflicts
from queues.stream.record import Entry
from queues.stream.recording import RecordWriter
from queues.stream.rounds import Rounds
from queues.stream.seeds import dropout_seed
from queues.stream.spec import StreamSpec
from queues.stream.tally import Tally
from queues.stream.together import Joined
from queues.writer import QueueWriter, Submitted
from trunkline.clock import Clock
from trunkline.errors import Conflict, RefusedValue, StorageFailed

log = logging.getLogger(__name__)

Ready = tuple[Submitted, Sent, int]
"""A batch that may be applied, its gradient, and how stale that is."""


class Applier:
    """Makes steps. After each, `known` is the last step that the queues know of; None: they were set back, and are to be mended.

    :param rounds: they may take no batch now, and are told of each step.
    :param conflicts: is shown the gradients of each step.
    :param wrong: why a gradient cannot be applied, beside what holds for all; None: it can.
    """

    def __init__(
        self,
        spec: StreamSpec,
        queues: QueueWriter,
        store: StoreWriter,
        record: RecordWriter,
        tally: Tally,
        clock: Clock,
        rounds: Rounds,
        conflicts: Conflicts,
        wrong: Callable[[Sent], str | None] = lambda _: None,
    ) -> None:
        self.spec, self.queues, self.store, self.record, self.tally, self.clock = spec, queues, store, record, tally, clock
        self._rounds, self._conflicts, self._also_wrong = rounds, conflicts, wrong
        self.known: int | None = None

    def examined(self, one: Submitted) -> Ready | None:
        """A batch whose gradient may be applied; None: it may not, and it was said what becomes of it."""
        claim = one.claim
        step = self.store.applied(claim.id)
        if step is not None:  # by a server that was killed, or before the queues were set back
            self._commit(one, step)
            return None
        sent = self.store.received(claim.id, claim.attempt)
        if sent is None:
            self.tally.back("lost")
            self.queues.nack(claim, "its gradient is gone", counts=False)
            return None
        staleness = self.store.step - sent.base
        if not 0 <= staleness <= self.spec.store.staleness:
            self.tally.back("stale")
            self.store.done(claim.id, claim.attempt, Verdict.STALE)
            self.queues.nack(claim, f"its gradient was {staleness} steps old", counts=False)
            return None
        if closed := self._rounds.closed(claim.task, sent.base):
            self.tally.back("round")
            self._rounds.came_early()
            self.store.done(claim.id, claim.attempt, Verdict.STALE)
            self.queues.nack(claim, closed, counts=False)
            return None
        if why := self._wrong(one, sent):
            self._refuse(one, why)
            return None
        return one, sent, staleness

    def _wrong(self, one: Submitted, sent: Sent) -> str | None:
        claim = one.claim
        if self.spec.task(claim.task) is None or sent.task != claim.task:
            return f"a gradient of task {claim.task!r} should be handed in, found one of {sent.task[:80]!r}"
        if sent.samples != len(claim.samples):
            return f"a gradient of {len(claim.samples)} samples should be handed in, found one of {sent.samples}"
        if not math.isfinite(sent.loss):
            return f"the loss should be finite, found {sent.loss}"
        return self._also_wrong(sent)

    def _refuse(self, one: Submitted, why: str) -> None:
        claim = one.claim
        log.warning("a gradient of task %s is refused (attempt %d): %s", claim.task, claim.attempt, why)
        self.tally.back("refused", task=claim.task, batch=claim.id, attempt=claim.attempt, worker=one.worker, reason=why)
        self.store.done(claim.id, claim.attempt, Verdict.REFUSED)
        self.queues.nack(claim, why)

    def apply(self, ready: tuple[Ready, ...], joined: Joined | None = None) -> bool:
        """One step of the store; false: it refused."""
        self._rounds.ahead()
        entries = [self._entry(*of) for of in ready]
        if joined is not None:
            entries[-1] = joined.noted(entries[-1])
        self.record.append(entries)
        try:
            gradients, combined = ((ready[0][1],), None) if joined is None else (joined.gradients, joined.combined)
            step = self.store.apply(gradients, combined)
        except RefusedValue as error:
            self.record.undo()
            for one, _, _ in ready:
                self._refuse(one, str(error))
            return False
        except BaseException:
            self.record.undo()
            raise
        self._look(ready, joined, step)
        for one, sent, staleness in ready:
            self.tally.applied(one.claim.task, sent.samples, sent.loss, staleness)
        for one, _, _ in ready:
            self._commit(one, step)
        self._rounds.look()
        return True

    def _look(self, ready: tuple[Ready, ...], joined: Joined | None, step: int) -> None:
        """While the gradients are there. The step was made, so a full disk does not stop it here."""
        try:
            self._conflicts.one(ready[0][1], step) if joined is None else self._conflicts.together(joined.cosines)
        except StorageFailed as error:
            log.warning("how the tasks' gradients go together is not kept: %s", error)

    def _entry(self, one: Submitted, sent: Sent, staleness: int) -> Entry:
        claim = one.claim
        return Entry(
            step=self.store.step + 1,
            batch=claim.id,
            task=claim.task,
            attempt=claim.attempt,
            base=sent.base,
            staleness=staleness,
            seed=dropout_seed(self.spec.learning.seed, claim.task, claim.id),
            loss=sent.loss,
            worker=one.worker,
            at=round(self.clock.now(), 3),
            samples=claim.samples,
            stamps=one.stamps,
        )

    def _commit(self, one: Submitted, step: int) -> None:
        claim = one.claim
        try:
            outcome = self.queues.commit(claim, step, self.known)
            if outcome in (Outcome.FENCED, Outcome.GONE):  # its worker, which did not hear that it was submitted, gave it back
                self.queues.adopt(claim, step, one.stamps)
            self.known = max(step, self.known or 0)
        except Conflict as error:
            log.warning("%s", error)
            self.known = None
        self.store.done(claim.id, claim.attempt, Verdict.APPLIED)
