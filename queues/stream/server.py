"""The parameter server of a stream: applies, in the order of submission, what workers computed, each batch once.

Every step goes through the same places, and a process that is killed between any two of them is gone on from by the next:

    submitted     the store has the gradient, the queues know
    recorded      the batch and its samples stand in the record; cut off again at the start where the store did not move
    applied       the store moved and knows the batch by its id
    committed     the queues know that it moved; found out at the start where they do not (see `mending`)
    told          the worker hears of it
    checkpointed  the step survives a power cut
    released      the queues let the samples go
"""

import hashlib
import logging
import math
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from queues.queue import Outcome
from queues.store.store import Sent, Verdict
from queues.stream.home import StreamHome
from queues.stream.mending import mend
from queues.stream.record import Entry
from queues.stream.recording import RecordWriter
from queues.stream.seeds import dropout_seed
from queues.stream.spec import StreamSpec
from queues.stream.tally import Tally
from queues.stream.together import Joined, Joiner, Store
from queues.writer import Marks, QueueWriter, Submitted
from trunkline.clock import Clock, Deadline
from trunkline.errors import AlreadyRunning, Conflict, RefusedValue, StorageFailed, TrunklineError

log = logging.getLogger(__name__)

HOLD = 15.0
"""Seconds that a server holds the stream without saying so again."""

SWEEP = 1.0
"""Seconds between two looks though nobody rang: leases end without a sound, and a server of queues may have been away."""

MOST = 16
"""Submitted batches of one look."""

PAUSE = 1.0
"""Seconds before the next try where the server of the queues, or the disk, refused."""

Ready = tuple[Submitted, Sent, int]
"""A batch that may be applied, its gradient, and how stale that is."""


class ParameterServer:
    """Applies the gradients of one stream. The caller holds the folder's lock, and has made the queues.

    :param store: whose parameters move; opened before, closed by the caller.
    :param incarnation: counts the starts of servers on this folder.
    :param ring: told how many batches could be claimed, where more can than were told of before.
    :param accept: go on although samples are lost, or may be applied twice; see `mending`.
    """

    def __init__(
        self,
        home: StreamHome,
        spec: StreamSpec,
        queues: QueueWriter,
        store: Store,
        clock: Clock,
        *,
        incarnation: int = 1,
        ring: Callable[[int], None] | None = None,
        accept: bool = False,
    ) -> None:
        self.home, self.spec, self.queues, self.store, self.clock = home, spec, queues, store, clock
        self.incarnation, self.tally = incarnation, Tally(clock)
        self.record = RecordWriter(home.applied, spec.store.record_bytes)
        self._ring, self._accept = ring, accept or spec.store.kind == "memory"  # which forgets all at its end
        self._joiner = Joiner(spec, queues, store, clock) if spec.together.mode == "together" else None
        self._mutex = threading.RLock()
        self._known: int | None = None  # the last step that the queues know of; None: they are to be asked, and mended
        self._held = self._covered = self._told = clock.monotonic()
        self._rung = 0
        self._trouble: str | None = None
        self._holding = False

    # -- the loop ------------------------------------------------------------------------------------------------------

    def run(self, stopping: Callable[[], bool], beat: Callable[[], None] | None = None) -> None:
        """Serve until told to stop; then cover what was applied, and let the stream go.

        :param stopping: asked at least every second.
        :param beat: called at least every second or so.
        :raises AlreadyRunning, Fenced: another server has the stream.
        :raises Conflict: going on would lose samples, or apply some twice; says why.
        """
        self.start(stopping)
        while not stopping():
            if beat is not None:
                beat()
            try:
                if not self.turn():
                    self.queues.wait(SWEEP)
                self._trouble = None
            except TrunklineError as error:
                if not (error.retryable or isinstance(error, StorageFailed)):
                    raise
                self._note(error)
                self.clock.sleep(PAUSE)
        self.stop()

    def _note(self, error: TrunklineError) -> None:
        if self._trouble != str(error):
            log.warning("%s", error)
        self._trouble = str(error)

    def start(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Hold the stream, and bring the queues and the record to what the store knows.

        :raises AlreadyRunning, Fenced, Conflict: see `run`.
        """
        deadline = Deadline(self.clock, HOLD + 5.0, "the server before this one to let the stream go")
        while True:
            try:
                self._hold()
                break
            except AlreadyRunning:  # one that was killed holds it for a while
                if deadline.over() or stopping():
                    raise
                self.clock.sleep(min(PAUSE, deadline.left()))
        self._mend()
        for task in self.spec.tasks:
            self._bound(task.name, task.queue.out)
        if self._joiner is not None:
            self._joiner.begin(self.record)

    def _bound(self, task: str, out: int) -> None:
        """Where tasks go together, one batch of each is out at a time."""
        settings, wanted = self.queues.stats(task).settings, out if self._joiner is None else 1
        if settings.out != wanted:
            self.queues.configure(task, settings.model_copy(update={"out": wanted}))

    def stop(self) -> None:
        """Cover what was applied, and let the stream go. Where the server of the queues is away, its hold ends by itself."""
        with self._mutex:
            try:
                if self.store.step > self.store.checkpointed():
                    self.checkpoint()
                self.queues.let_go(self.incarnation)
            except TrunklineError as error:
                self._note(error)
            self.queues.close()
            self.record.close()

    def turn(self) -> int:
        """Apply what was submitted; return how many batches were looked at."""
        with self._mutex:
            if self.clock.monotonic() - self._held > HOLD / 3:
                self._hold()
            work = self.queues.work(MOST)
            if self._known is None or work.step < self._known:
                log.warning("the server of the queues was set back: it knows of step %d, and knew of %s", work.step, self._known)
                self._mend()
                work = self.queues.work(MOST)
            self._tell(work.claimable)
            done = 0
            if self._joiner is None:
                for one in work.submitted:
                    ready = self._examined(one)
                    if ready is not None:
                        self._apply((ready,))
                    done += 1
            else:
                done = self._join(self._joiner, work.submitted)
            self._checkpoint_if_due()
            return done

    def _tell(self, claimable: int) -> None:
        """Workers are rung for when there is more for them, and every now and then while there is anything."""
        now = self.clock.monotonic()
        if self._ring is not None and (claimable > self._rung or (claimable and now - self._told >= SWEEP)):
            self._told = now
            self._ring(claimable)
        self._rung = claimable

    # -- who serves ----------------------------------------------------------------------------------------------------

    def _hold(self, step: int | None = None) -> Marks:
        marks = self.queues.hold(self.incarnation, _holder(self.home.folder), HOLD, step)
        self._held = self.clock.monotonic()
        return marks

    def _mend(self) -> None:
        self._known = None
        mend(self.queues, self.store, self.record, self._hold(), accept=self._accept)
        self._known = self._hold(self.store.step).step
        self.queues.release(self.store.checkpointed())

    # -- one batch -----------------------------------------------------------------------------------------------------

    def _examined(self, one: Submitted) -> Ready | None:
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
        return None if self._joiner is None else self._joiner.wrong(sent)

    def _refuse(self, one: Submitted, why: str) -> None:
        claim = one.claim
        log.warning("a gradient of task %s is refused (attempt %d): %s", claim.task, claim.attempt, why)
        self.tally.back("refused", task=claim.task, batch=claim.id, attempt=claim.attempt, worker=one.worker, reason=why)
        self.store.done(claim.id, claim.attempt, Verdict.REFUSED)
        self.queues.nack(claim, why)

    def _apply(self, ready: tuple[Ready, ...], joined: Joined | None = None) -> bool:
        """One step of the store; false: it refused."""
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
        for one, sent, staleness in ready:
            self.tally.applied(one.claim.task, sent.samples, sent.loss, staleness)
        for one, _, _ in ready:
            self._commit(one, step)
        return True

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
        outcome = Outcome.GONE
        try:
            outcome = self.queues.commit(one.claim, step, self._known)
        except Conflict as error:
            log.warning("%s", error)
        if outcome in (Outcome.OK, Outcome.DUPLICATE):
            self._known = max(step, self._known or 0)
        else:
            self._known = None  # the batch was submitted: a server that does not know was set back
        self.store.done(one.claim.id, one.claim.attempt, Verdict.APPLIED)

    # -- one batch of each task ----------------------------------------------------------------------------------------

    def _join(self, joiner: Joiner, submitted: tuple[Submitted, ...]) -> int:
        ready: dict[str, Ready] = {}
        gone = 0
        for one in submitted:
            if one.claim.task in ready:
                continue
            found = self._examined(one)
            if found is None:
                gone += 1
            else:
                ready[one.claim.task] = found
        if not joiner.complete(ready.keys()):
            return gone
        chosen = tuple(ready[task] for task in sorted(ready))
        joined = joiner.join(tuple(sent for _, sent, _ in chosen))
        if self._apply(chosen, joined):
            joiner.applied(joined)
        return gone + len(chosen)

    # -- what lasts ----------------------------------------------------------------------------------------------------

    def _checkpoint_if_due(self) -> None:
        now, behind = self.clock.monotonic(), self.store.step - self.store.checkpointed()
        if not behind:
            self._covered = now
        elif behind >= self.spec.store.checkpoint_steps or now - self._covered >= self.spec.store.checkpoint_seconds:
            self.checkpoint()

    def checkpoint(self) -> int:
        """Make all steps up to now survive a power cut, and let their samples go; tell the step."""
        with self._mutex:
            self.record.sync()
            covered = self.store.checkpoint()
            self._covered = self.clock.monotonic()
            released = self.queues.release(covered)
            self.record.prune(covered)
            log.info("step %d is covered; samples of %d batches were let go", covered, released)
            return covered

    # -- for people ----------------------------------------------------------------------------------------------------

    def snapshot(self, to: Path) -> dict[str, Any]:
        """Write the shared set as it is now; tell `step` and `digest`."""
        with self._mutex:
            return {"step": self.store.step, "digest": self.store.write_shared(to)}

    def add(self, delta: Mapping[str, Tensor], name: str) -> int:
        """Add what a round came to, between two batches; done once a name; tell the step."""
        with self._mutex:
            before = self.store.step
            self.record.append([Entry(before + 1, name, at=round(self.clock.now(), 3))])
            try:
                step = self.store.add(delta, name)
            except BaseException:
                self.record.undo()
                raise
            if step <= before:
                self.record.undo()  # it was added before
            if self._known is not None:
                self._known = self._hold(self.store.step).step
            return step

    def status(self) -> dict[str, Any]:
        """Where it is, as JSON values. Any thread may ask."""
        checkpointed, step = self.store.checkpointed(), self.store.step
        return {
            "step": step,
            "checkpoint": {"step": checkpointed, "steps_since": step - checkpointed},
            "incarnation": self.incarnation,
            "mode": self.spec.together.mode,
            "trouble": self._trouble,
            **({} if self._joiner is None else {"together": self._joiner.table()}),
            **self.tally.table(),
        }


def _holder(folder: Path) -> str:
    """A word of this folder on this machine since it started. A copy has another; a server that follows one that was killed has
    the same, and need not wait until that one's hold ends: the folder's lock tells that it is gone.
    """
    found = folder.stat()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:  # not Linux
        boot = f"process {os.getpid()}"
    return hashlib.sha256(f"{boot}/{found.st_dev}/{found.st_ino}".encode()).hexdigest()[:24]
