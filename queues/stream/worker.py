"""A worker of a stream: claims a batch, computes its gradient on the store's parameters, hands it in, waits for what becomes of it.

One worker alone never computes on parameters that its own last gradient has not reached yet, so it ends bit for bit where a plain
loop over the same batches does. Where gradients of all tasks make one step together, it waits only before the next batch of a task.

Whatever goes wrong, the batch goes back: at once with the reason where the batch is to blame, at once without where not, by the end
of its lease where nobody can be told. What another has taken over meanwhile is dropped; the other has the same samples.
"""

import logging
import os
import random
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Protocol, TypeVar

from torch import Tensor

from queues.queue import Claim, Outcome
from queues.redis import RedisQueues
from queues.store.store import Sent, StoreReader, Verdict
from queues.stream.heart import Heart
from queues.stream.model import Learner
from queues.stream.seeds import dropout_seed
from queues.stream.spec import StreamSpec
from tasks.step import Gradient
from trunkline.clock import Clock, Deadline, SystemClock
from trunkline.errors import SampleError, TrainingFailed, TrunklineError
from trunkline.retry import persist

log = logging.getLogger(__name__)

PATIENCE = 30.0
"""Seconds that the server of the queues, or the store, may be away before a worker lets go of what it holds."""

SILENCE = 30.0
"""Seconds without a verdict after which a worker claims nothing more until there is one."""

TELL = 10.0
"""Seconds between two lines of progress."""

LOOK = 0.25
"""Seconds that one wait for a verdict takes at most, so that a worker that is told to stop does."""

Result = TypeVar("Result")


@dataclass
class Tally:
    """What became of the batches of one worker."""

    applied: int = 0
    stale: int = 0  # came back to be computed again
    refused: int = 0  # by the store
    failed: int = 0  # here: a sample, or the step
    dropped: int = 0  # another had taken them over

    def __str__(self) -> str:
        return ", ".join(f"{value} {name}" for name, value in asdict(self).items() if value) or "nothing yet"


class Looker(Protocol):
    """Looks at held-out rows from time to time; see `queues.stream.scores`."""

    def look(self, step: int) -> None:
        """A step was made."""
        ...


def never() -> bool:
    """Not told to stop."""
    return False


class Worker:
    """Computes the gradients of one stream.

    :param queues: of the stream, with the epoch of its store: a stream of another epoch gets no gradient.
    :param store: where parameters are read, and gradients go.
    :param heart: renews leases; None: steps are short.
    :param scores: told of steps; None: nobody is.
    """

    def __init__(
        self,
        spec: StreamSpec,
        learner: Learner,
        queues: RedisQueues,
        store: StoreReader,
        *,
        clock: Clock | None = None,
        heart: Heart | None = None,
        scores: Looker | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.spec, self.learner, self.queues, self.store = spec, learner, queues, store
        self.clock, self.heart, self.scores = clock or SystemClock(), heart, scores
        self.tally = Tally()
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        self._together = spec.together.mode == "together"
        self._pending: dict[str, Claim[bytes]] = {}  # by task: submitted, and nobody said yet what became of it
        self._held: list[Claim[bytes]] = []  # whose task has one pending
        self._into: dict[str, Mapping[str, Tensor]] = {}
        self._told = float("-inf")

    # -- the loop ------------------------------------------------------------------------------------------------------

    def drain(self, stopping: Callable[[], bool] = never, seconds: float = float("inf")) -> int:
        """Work while there are batches; return how many gradients were handed in.

        :param stopping: asked between batches and in waits; true: what is held is given back.
        :param seconds: after which no further batch is begun.
        :raises Fenced, NotFound: the stream is another store's, or is gone.
        :raises Unreachable: the server of the queues, or the store, stayed away.
        """
        end = Deadline(self.clock, seconds, "batches")
        done = 0
        try:
            while not stopping() and not end.over():
                self._collect(0.0)
                claim = self._next(stopping)
                if claim is not None:
                    done += self._work(claim, stopping)
                elif not self._blocked or not self._wait(stopping):
                    break
            if not self._together:
                self._collect(0.0)
            return done
        finally:
            while self._held:
                self._give_back(self._held.pop())

    @property
    def _blocked(self) -> bool:
        """Whether there may be work as soon as a verdict comes."""
        return bool(self._held if self._together else self._pending)

    def _next(self, stopping: Callable[[], bool]) -> Claim[bytes] | None:
        """A batch that may be computed now."""
        if not self._together:
            return None if self._pending else self._claim(stopping)
        for place, claim in enumerate(self._held):
            if claim.task not in self._pending:
                return self._held.pop(place)
        while len(self._held) < len(self.spec.tasks):
            claim = self._claim(stopping)
            if claim is None or claim.task not in self._pending:
                return claim
            # Its task's last gradient is not in the parameters yet; meanwhile another task may have a batch.
            self._held.append(claim)
            if self.heart is not None:
                self.heart.hold(claim)
        return None

    def _claim(self, stopping: Callable[[], bool]) -> Claim[bytes] | None:
        return self._persist(self.queues.claim, stopping)

    def _persist(self, once: Callable[[], Result], stopping: Callable[[], bool]) -> Result:
        deadline = Deadline(self.clock, PATIENCE, "the server of the queues and the store")
        return persist(once, deadline, self._rng, stop=stopping)

    # -- one batch -----------------------------------------------------------------------------------------------------

    def _work(self, claim: Claim[bytes], stopping: Callable[[], bool]) -> int:
        """Compute and hand in; return 1 if the store has it."""
        laid_down = False
        if self.heart is not None:
            self.heart.hold(claim)
        try:
            sent = self._compute(claim, stopping)
            if sent is None:
                return 0
            self._persist(lambda: self.store.send(sent), stopping)
            laid_down = True
            outcome = self._persist(lambda: self.queues.submit(claim), stopping)
        except BaseException:  # also a signal that ends the process
            self._give_back(claim, laid_down=laid_down)
            raise
        finally:
            if self.heart is not None:
                self.heart.let_go(claim)
        if outcome is Outcome.OK:
            self._pending[claim.task] = claim
            return 1
        self.tally.dropped += 1
        self._withdraw(claim)
        return 0

    def _compute(self, claim: Claim[bytes], stopping: Callable[[], bool]) -> Sent | None:
        """The gradient; None: there is none, and the queues know why."""
        if claim.task not in self.learner.heads:
            return self._failed(claim, f"the stream should have a task {claim.task!r}, found none in its declaration.", stopping)
        into = self._into.setdefault(claim.task, {name: p.detach() for name, p in self.learner.needed(claim.task).items()})
        base = self._persist(lambda: self.store.read(into), stopping)
        try:
            found = self.learner.gradient(claim, dropout_seed(self.spec.learning.seed, claim.task, claim.id))
        except (SampleError, TrainingFailed) as error:
            return self._failed(claim, str(error), stopping)
        except MemoryError:
            return self._failed(claim, "a batch should fit into memory, found that it does not.", stopping)
        except Exception as error:  # a user's own head or encoder may raise whatever it likes
            log.exception("a step of task %s failed", claim.task)
            return self._failed(claim, f"a step should finish, found {type(error).__name__}: {error}", stopping)
        return Sent(claim.id, claim.attempt, claim.task, base, found.samples, found.loss, _named(found))

    def _failed(self, claim: Claim[bytes], reason: str, stopping: Callable[[], bool]) -> None:
        """The batch is to blame."""
        self.tally.failed += 1
        log.warning("a batch of task %s failed (attempt %d): %s", claim.task, claim.attempt, reason)
        self._persist(lambda: self.queues.nack(claim, reason), stopping)

    def _give_back(self, claim: Claim[bytes], *, laid_down: bool = False) -> None:
        """The batch is not to blame. Where nobody can be told, the end of its lease does it."""
        if self.heart is not None:
            self.heart.let_go(claim)
        if laid_down:
            self._withdraw(claim)
        with suppress(TrunklineError):
            self.queues.nack(claim, "its worker let go of it", counts=False)

    def _withdraw(self, claim: Claim[bytes]) -> None:
        with suppress(TrunklineError):
            self.store.withdraw(claim.id, claim.attempt)

    # -- verdicts ------------------------------------------------------------------------------------------------------

    def _collect(self, seconds: float) -> bool:
        """Hear what became of what was handed in; tell whether anything came.

        :param seconds: to wait for it.
        """
        before = len(self._pending)
        for task, claim in list(self._pending.items()):
            verdict = self.store.verdict(claim.id, claim.attempt, seconds)
            if verdict is not None:
                del self._pending[task]
                self._count(claim, verdict)
        return len(self._pending) < before

    def _count(self, claim: Claim[bytes], verdict: Verdict) -> None:
        if verdict is Verdict.STALE:
            self.tally.stale += 1
        elif verdict is Verdict.REFUSED:
            self.tally.refused += 1
            log.warning("the store refused a gradient of task %s", claim.task)
        else:
            self.tally.applied += 1
            self._tell(claim)
            if self.scores is not None:
                self.scores.look(self.store.step())

    def _tell(self, claim: Claim[bytes]) -> None:
        if self.clock.monotonic() - self._told >= TELL:
            self._told = self.clock.monotonic()
            log.info("step %d, of task %s; %s", self.store.step(), claim.task, self.tally)

    def _wait(self, stopping: Callable[[], bool]) -> bool:
        """Wait for a verdict; false: none came in time, or we are told to stop."""
        patience = SILENCE + (self.spec.together.wait_seconds if self._together else 0.0)
        deadline = Deadline(self.clock, patience, "a verdict of the store")
        while not stopping() and not deadline.over():
            if self._collect(LOOK) or self._forget_lost(stopping):
                return True
        return False

    def _forget_lost(self, stopping: Callable[[], bool]) -> bool:
        """A store that was killed after a step says no more what became of it; the queues know."""
        lost = []
        for task, claim in self._pending.items():
            outcome = self._persist(lambda claim=claim: self.queues.renew(claim), stopping)  # type: ignore[misc]
            if outcome is not Outcome.OK:
                lost.append(task)
                self._count(claim, Verdict.APPLIED) if outcome is Outcome.DUPLICATE else self._drop()
        for task in lost:
            del self._pending[task]
        return bool(lost)

    def _drop(self) -> None:
        self.tally.dropped += 1

    def close(self) -> None:
        """End the heartbeat."""
        if self.heart is not None:
            self.heart.close()


def _named(found: Gradient) -> dict[str, Tensor]:
    """As the store knows it; that an embedding's gradient is zero in most rows, the store sees for itself."""
    shared = {f"shared/{name}": tensor for name, tensor in found.shared.items()}
    return shared | {f"head/{found.task}/{name}": tensor for name, tensor in found.head.items()}


def own_name() -> str:
    """What the queues know a worker of this process as."""
    return f"{socket.gethostname()}:{os.getpid()}"
