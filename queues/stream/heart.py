"""The heartbeat of a worker: leases of what it holds are renewed while a step takes long."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from queues.queue import Claim, Outcome
from queues.redis import RedisQueues
from trunkline.errors import TrunklineError

log = logging.getLogger(__name__)

BEATS = 3
"""In one lease: two may get lost on the way."""


class Heart:
    """Renews leases from a thread of its own.

    :param queues: over a connection that nobody else uses.
    :param lease: seconds.
    """

    def __init__(self, queues: RedisQueues, lease: float) -> None:
        self._queues, self._pause = queues, lease / BEATS
        self._held: dict[str, Claim[bytes]] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    @contextmanager
    def keeping(self, claim: Claim[bytes]) -> Iterator[None]:
        """While it lasts, the lease of a batch is renewed."""
        self.hold(claim)
        try:
            yield
        finally:
            self.let_go(claim)

    def hold(self, claim: Claim[bytes]) -> None:
        """Renew this lease from now on."""
        with self._changed:
            self._held[claim.id] = claim
            if self._thread is None:  # started late: a thread does not live through a fork
                self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
                self._thread.start()

    def let_go(self, claim: Claim[bytes]) -> None:
        """Renew it no more."""
        with self._changed:
            self._held.pop(claim.id, None)

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=10.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed or self._changed.wait_for(lambda: self._closed, self._pause):
                    return
                held = list(self._held.values())
            for claim in held:
                self._beat(claim)

    def _beat(self, claim: Claim[bytes]) -> None:
        try:
            outcome = self._queues.renew(claim)
        except TrunklineError as error:  # the next beat may get through; else the lease ends, and another computes the batch
            log.debug("a lease was not renewed: %s", error)
            return
        if outcome is not Outcome.OK:
            self.let_go(claim)
