"""What only the one server of a stream says to its queues: it holds the stream, is told what was submitted, and mends a server of
queues, or a store, that was set back to an older copy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from queues.connection import Client, told, waiting_client
from queues.pieces import STAMP, bare
from queues.queue import Claim, Outcome
from queues.redis import RedisQueues
from trunkline.errors import AlreadyRunning, Conflict, Fenced

WAIT_LIMIT = 60.0
"""Seconds of one wait at most."""


@dataclass(frozen=True, slots=True)
class Marks:
    """How far a server of queues is, in steps of the store."""

    step: int  # the last that was committed
    released: int  # the last whose samples were let go
    run: str = ""  # a word that the server of the queues chose when it started


@dataclass(frozen=True, slots=True)
class Submitted:
    """A batch whose gradient the store has."""

    claim: Claim[bytes]
    worker: str
    seconds: float  # since it was submitted
    stamps: bytes  # arrival of each sample, 8 bytes each

    @property
    def kept(self) -> list[bytes]:
        """The samples as they lay in the queue."""
        return stamped(self.claim.samples, self.stamps)


@dataclass(frozen=True, slots=True)
class Work:
    """What there is to do."""

    step: int  # the last that was committed; -1: the server of the queues was started again since it was held with a step
    claimable: int  # batches that a worker could claim now
    submitted: tuple[Submitted, ...]  # in the order in which the store got their gradients


@dataclass(frozen=True, slots=True)
class Applied:
    """A batch that changed the parameters, and that no checkpoint covers."""

    batch: str
    queue: str
    step: int


class QueueWriter(RedisQueues):
    """The queues of one stream, for its server.

    Once it holds the stream, whatever it says is refused with `Fenced` when another server took over.
    """

    _holder = ""
    _waits: Client | None = None

    # -- one server of a stream ----------------------------------------------------------------------------------------

    def hold(
        self, incarnation: int, holder: str, seconds: float, step: int | None = None, *, anyway: bool = False, run: str = ""
    ) -> Marks:
        """Be the one server of the stream, for some seconds from now; said again before they are over.

        :param incarnation: counts the starts of servers on the store; a later one is never followed by an earlier one.
        :param holder: a word of this server alone.
        :param step: of the store: all of it was told.
        :param run: in which it was told. Where the server of the queues was started again since, it does not know of the step; from
            now on, whenever it is started again, it gives no batches until it is held so anew.
        :param anyway: also where a later incarnation held it: the folder is known to be a copy, or to have been set back.
        :raises AlreadyRunning: another server holds the stream.
        :raises Fenced: a later incarnation held it since, or the stream is another store's.
        """
        known, word = "" if step is None else step, "anyway" if anyway else ""
        status, *found = self._call("hold", incarnation, holder, round(1000 * seconds), known, word, run, held=False)
        if status == b"RUNNING":
            raise AlreadyRunning(
                f"the stream {self.name!r} should have one server, found another, start {int(found[0])} of its store, that "
                f"holds it for {int(found[1]) / 1000:g} s more.",
                hint="Stop that one first; if it was killed, wait for so long.",
            )
        if status == b"NEWER":
            raise Fenced(
                f"the stream {self.name!r} was served from start {int(found[0])} of its store, and should be from a later one now, "
                f"found start {incarnation}.",
                hint="Is the folder a copy, or was it set back? Then accept that what it was taught since is lost.",
            )
        self._said(status)
        self._holder = holder
        return Marks(int(found[0]), int(found[1]), found[2].decode())

    def let_go(self, incarnation: int) -> None:
        """Hold the stream no longer: the next server need not wait."""
        self.hold(incarnation, self._holder, 0.0)
        self._holder = ""

    # -- what there is to do -------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> bool:
        """Wait until something happened that the server of the stream should look at; tell whether it did.

        It is told when a queue comes to hold a batch, when a gradient was submitted, when a batch came back; not when a lease
        merely ended. So it looks by itself after some seconds, too.

        :param seconds: a minute at most.
        """
        if self._waits is None:
            self._waits = waiting_client(self._client, WAIT_LIMIT + 10.0)
        bell = self._key("bell")
        with told("the server of the queues"):
            found: Any = self._waits.blpop([bell], timeout=min(max(seconds, 0.001), WAIT_LIMIT))
            if found is not None:
                self._client.delete(bell)  # who looks now sees all that rang before
        return found is not None

    def close(self) -> None:
        """Close the connection that waits; the client is whose it was."""
        if self._waits is not None:
            self._waits.close()
            self._waits.connection_pool.disconnect()
            self._waits = None

    def work(self, most: int = 64, *, one_each: bool = False) -> Work:
        """What there is to do.

        :param most: submitted batches that are told of at once; fewer where they are large.
        :param one_each: only the first of each queue.
        """
        step, claimable, *found = self._rows(self._call("look", most, "each" if one_each else "all"))
        return Work(int(step), int(claimable), tuple(_submitted(*one) for one in found))

    def submitted(self, most: int = 1000) -> tuple[Submitted, ...]:
        """Batches whose gradient the store has, in the order in which it got them."""
        return self.work(most).submitted

    def commit(self, claim: Claim[bytes], step: int = 0, after: int | None = None) -> Outcome:
        """Say that the batch changed the parameters.

        :param step: of the store; its samples are kept until `release` is told of that step.
        :param after: the last step that was committed; None: whichever.
        :raises Conflict: the server of the queues was set back since then; nothing happened.
        """
        said = self._call("commit", claim.id, claim.attempt, step, "" if after is None else after)
        if said == b"BEHIND":
            raise Conflict(f"the queues of {self.name!r} should know of step {after}, found that they do not: they were set back.")
        return self._outcome(said)

    # -- after something was set back ----------------------------------------------------------------------------------

    def applied_after(self, step: int, most: int = 1000) -> tuple[Applied, ...]:
        """Batches that changed the parameters beyond a step and that no checkpoint covers, by step."""
        found = self._rows(self._call("applied", step, most))
        return tuple(Applied(batch.decode(), queue.decode(), int(float(at))) for batch, queue, at in found)

    def reopen(self, step: int) -> int:
        """The store is at a step: what was applied beyond comes back, before all else and in order of steps; return how many."""
        total = 0
        while done := int(self._said(self._call("reopen", step))):
            total += done
        return total

    def unapplied(self, batch: str) -> None:
        """A batch that is said to be applied never was: it comes back, before all else."""
        self._said(self._call("reopen", "", batch))

    def adopt(self, claim: Claim[bytes], step: int, stamps: bytes) -> int | None:
        """The store applied a batch, whatever is known of it here: wherever its samples are, they are applied from now on.

        :param stamps: arrival of each sample.
        :returns: how many of its samples were here; None: nothing was to be done.
        :raises NotFound: no such queue.
        """
        kept = stamped(claim.samples, stamps)
        status, *found = self._call("adopt", claim.task, claim.id, step, claim.attempt, *kept)
        if status == b"KNOWN":
            return None
        self._said(status, claim.task)
        return int(found[0])

    def sift(self, task: str) -> int:
        """Take out what waits although it changed the parameters, as `adopt` was told; return how many samples.

        There is such where the server of the queues was set back to one copy, and then to another.

        :raises NotFound: no such queue.
        """
        status, *found = self._call("sift", task)
        self._said(status, task)
        return int(found[0])

    def _call(self, name: str, *arguments: Any, epoch: str | None = None, held: bool = True) -> Any:
        if epoch is None and held and self._holder:
            epoch = f"{self._epoch or '*'}@{self._holder}"
        return super()._call(name, *arguments, epoch=epoch)


def stamped(samples: Sequence[bytes], stamps: bytes) -> list[bytes]:
    """Samples as they lie in a queue."""
    return [stamps[STAMP * place : STAMP * (place + 1)] + sample for place, sample in enumerate(samples)]


def _submitted(batch: bytes, queue: bytes, attempt: bytes, worker: bytes, since: bytes, *kept: bytes) -> Submitted:
    claim = Claim(batch.decode(), int(attempt), queue.decode(), bare(kept))
    stamps = b"".join(sample[:STAMP] for sample in kept)
    return Submitted(claim, worker.decode(errors="replace"), int(since) / 1000, stamps)
