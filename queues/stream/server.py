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
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from queues.stream.applying import Applier, Ready
from queues.stream.came import Files
from queues.stream.conflicts import Conflicts
from queues.stream.home import StreamHome
from queues.stream.mending import mend
from queues.stream.record import Entry
from queues.stream.recording import RecordWriter
from queues.stream.rounds import Rounds
from queues.stream.spec import StreamSpec
from queues.stream.tally import Tally
from queues.stream.together import Joiner, Store
from queues.writer import Marks, QueueWriter, Submitted, Work
from trunkline.clock import Clock, Deadline
from trunkline.errors import AlreadyRunning, Conflict, StorageFailed, TrunklineError

log = logging.getLogger(__name__)

HOLD = 15.0
"""Seconds that a server holds the stream without saying so again."""

SWEEP = 1.0
"""Seconds between two looks though nobody rang: leases end without a sound, and a server of queues may have been away."""

MOST = 16
"""Submitted batches of one look."""

PAUSE = 1.0
"""Seconds before the next try where the server of the queues, or the disk, refused."""


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
        self._rounds = Rounds(home, spec, queues, store)
        self.conflicts = Conflicts(home, spec)
        parts = (spec, queues, store, self.record, self.tally, clock, self._rounds, self.conflicts)
        self.applier = Applier(*parts) if self._joiner is None else Applier(*parts, self._joiner.wrong)
        self._mutex = threading.RLock()
        self._held = self._covered = self._told = clock.monotonic()
        self._rung = 0
        self._run = ""  # of the server of the queues, when they were brought to the store's step
        self._trouble: str | None = None

    # -- the loop ------------------------------------------------------------------------------------------------------

    def run(self, stopping: Callable[[], bool]) -> None:
        """Serve until told to stop; then cover what was applied, and let the stream go.

        :param stopping: asked at least every second.
        :raises AlreadyRunning, Fenced: another server has the stream.
        :raises Conflict: going on would lose samples, or apply some twice; says why.
        """
        try:
            self.start(stopping)
            while not stopping():
                self._try()
            self.stop()
        finally:
            self.queues.close()
            self.record.close()

    def _try(self) -> None:
        try:
            if not self.turn():
                self.queues.wait(SWEEP)
            self._trouble = None
        except TrunklineError as error:
            if not (error.retryable or isinstance(error, StorageFailed)):
                raise
            self._note(error)
            self.clock.sleep(PAUSE)

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
        self._rounds.tend(anew=True)

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

    def turn(self) -> int:
        """Apply what was submitted; return how many batches were looked at."""
        with self._mutex:
            self._keep_holding()
            self._rounds.tend()
            work = self._look()
            if self.applier.known is None or work.step < self.applier.known:
                log.warning(
                    "the queues may have been set back: they know of step %d, and knew of %s", work.step, self.applier.known
                )
                self._mend()
                self._rounds.tend(anew=True)
                work = self._look()
            self._tell(work.claimable)
            done = 0
            if self._joiner is None:
                for one in work.submitted:
                    ready = self.applier.examined(one)
                    if ready is not None:
                        self.applier.apply((ready,))
                    done += 1
            else:
                done = self._join(self._joiner, work.submitted)
            self._checkpoint_if_due()
            if not done:
                self.conflicts.look_at_scores()
            return done

    def _look(self) -> Work:
        return self.queues.work(MOST) if self._joiner is None else self.queues.work(len(self.spec.tasks), one_each=True)

    def _tell(self, claimable: int) -> None:
        """Workers are rung for when there is more for them, and every now and then while there is anything."""
        now = self.clock.monotonic()
        if self._ring is not None and (claimable > self._rung or (claimable and now - self._told >= SWEEP)):
            self._told = now
            self._ring(claimable)
        self._rung = claimable

    # -- who serves ----------------------------------------------------------------------------------------------------

    def _hold(self, step: int | None = None) -> Marks:
        marks = self.queues.hold(self.incarnation, _holder(self.home.folder), HOLD, step, anyway=self._accept, run=self._run)
        self._held = self.clock.monotonic()
        return marks

    def _keep_holding(self) -> None:
        if self.clock.monotonic() - self._held > HOLD / 3:
            self._hold()

    def _mend(self) -> None:
        self.applier.known = None
        marks = self._hold()
        mend(self.queues, self.store, self.record, marks, self._keep_holding, accept=self._accept)
        self._run = marks.run
        self.applier.known = self._hold(self.store.step).step
        self.queues.release(self.store.checkpointed())

    # -- one batch of each task ----------------------------------------------------------------------------------------

    def _join(self, joiner: Joiner, submitted: tuple[Submitted, ...]) -> int:
        ready: dict[str, Ready] = {}
        gone = 0
        for one in submitted:
            found = self.applier.examined(one)
            if found is None:
                gone += 1
            else:
                ready[one.claim.task] = found
        if not joiner.complete(ready.keys()):
            return gone
        chosen = tuple(ready[task] for task in sorted(ready))
        joined = joiner.join(tuple(sent for _, sent, _ in chosen))
        if self.applier.apply(chosen, joined):
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

    # -- where rounds come in: see `queues.stream.rounds` ------------------------------------------------------------------

    def snapshot(self, to: Path) -> dict[str, Any]:
        """Write the shared set as it is now; tell `step`, `digest`, and the samples of each task that were `applied` by then."""
        with self._mutex:
            applied = {task.name: self.queues.counts(task.name).applied for task in self.spec.tasks}
            return {"step": self.store.step, "digest": self.store.write_shared(to), "applied": applied}

    def add(self, delta: Mapping[str, Tensor], name: str) -> int:
        """Add what a round came to, between two batches; done once a name; tell the step."""
        return self._come_in(name, lambda: self.store.add(delta, name))

    def merge(self, name: str, target: Path, base: Path) -> dict[str, Any]:
        """Add what a round came to, from two files; done once a name; tell `step`, and whether it was `new`."""
        files = Files(name, str(target), str(base))
        came = None if name in self.store.added() else files.read(self.store.layout)  # batches go on meanwhile
        with self._mutex:
            known = self.store.added().get(name)
            if known is not None or came is None:
                return {"name": name, "step": known, "new": False}
            files.note(self.home)
            values = came.onto(self.store.values())
            return {"name": name, "step": self._come_in(name, lambda: self.store.put(values, name)), "new": True}

    def added(self) -> dict[str, int]:
        """The rounds that came in, by name, and at which step each did."""
        return dict(self.store.added())

    def attach(self, attached: bool) -> dict[str, Any]:
        """Whether the stream feeds rounds of a child, and learns in them only; tell which it does now."""
        with self._mutex:
            self._rounds.attach(attached)
            return {"attached": self._rounds.attached}

    def begin_turn(self, name: str, initial: Path, steps: int, tasks: tuple[str, ...], *, fresh: bool = False) -> dict[str, Any]:
        """Begin a round with a set, and give batches until it has made its steps; the same again goes on with it; tell it.

        :param fresh: whether the moments of the shared layers begin anew.
        """
        with self._mutex:
            if not self._rounds.known(name):
                files = Files(name, str(initial), fresh=fresh)
                values = files.read(self.store.layout).onto({})
                self._rounds.opening(name, steps, tasks)
                files.note(self.home)
                self._come_in(name, lambda: self.store.put(values, name, fresh=fresh))
            self._rounds.opened()
            return self._rounds.table() or {}

    def turn_table(self) -> dict[str, Any] | None:
        """The newest round; None: there was none."""
        with self._mutex:
            return self._rounds.table()

    def end_turn(self, name: str, why: str) -> dict[str, Any]:
        """End a round with what it came to so far.

        :raises Conflict: it is not the newest.
        """
        with self._mutex:
            if not self._rounds.known(name):
                raise Conflict(f"`name` should be of a round that began here, found {name!r}.")
            self._rounds.end(why)
            return self._rounds.table() or {}

    def _come_in(self, name: str, step: Callable[[], int]) -> int:
        with self._mutex:
            before = self.store.step
            self.record.append([Entry(before + 1, name, at=round(self.clock.now(), 3))])
            try:
                found = step()
            except BaseException:
                self.record.undo()
                raise
            if found <= before:
                self.record.undo()  # it came in before
            if self.applier.known is not None:
                self.applier.known = self._hold(self.store.step).step
            return found

    # -- for people ----------------------------------------------------------------------------------------------------

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
            "conflicts": self.conflicts.table(),
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
