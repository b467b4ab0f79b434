"""The place where one worker of a process waits for doorbells, and looks by itself when none comes."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trunkline.errors import Fenced, NotAuthorized, NotFound, TrunklineError, Unreachable

if TYPE_CHECKING:  # it loads torch, which must not be there before a fork
    from queues.stream.worker import Worker

log = logging.getLogger(__name__)

SLICE = 20.0
"""Seconds that one doorbell drains for, so that Celery breathes; if there is more, it rings again."""

SILENCE = 5.0
"""Seconds without a doorbell after which a worker looks by itself."""


def _nothing(*_: object) -> None:
    pass


class Station:
    """The worker of this process: it is made once, answers doorbells, and looks by itself when none comes.

    :param make: makes the worker; not called before Celery has started, for torch must not be there before a fork.
    :param silence: see SILENCE.
    :param slice: see SLICE.
    """

    def __init__(self, stream: str, make: "Callable[[], Worker]", *, silence: float = SILENCE, slice: float = SLICE) -> None:
        self.stream, self.silence, self.slice = stream, silence, slice
        # What its surroundings do for it; see `queues.doorbell`.
        self.app: Any = None
        self.ring: Callable[[], object] = _nothing
        self.told: Callable[[], bool] = lambda: False
        self.end: Callable[[int], None] = _nothing
        self.error: TrunklineError | None = None  # why it ended
        self._make = make
        self._worker: Worker | None = None
        self._turn = threading.Lock()  # one drain at a time: a model has one set of parameters
        self._heard = time.monotonic()
        self._ended = threading.Event()
        self._ill = False

    def open(self) -> None:
        """Make the worker."""
        if self._worker is None:
            self._worker = self._make()

    def answer(self, stream: str) -> int:
        """A doorbell rang; return how many gradients were handed in."""
        if stream != self.stream:
            log.warning("a doorbell should be of the stream %r, found %r", self.stream, stream)
            return 0
        begun = time.monotonic()
        if not self._turn.acquire(timeout=self.slice):
            return 0  # the watchdog is at it, and takes all there is
        try:
            return self._drain()
        finally:
            self._turn.release()
            if time.monotonic() - begun >= self.slice and not self.stopping():
                with suppress(Unreachable):  # then the watchdog goes on
                    self.ring()

    def watch(self) -> None:
        """Look whenever no doorbell came for a while, until `close`."""
        while not self._ended.wait(min(1.0, self.silence / 4)):
            if time.monotonic() - self._heard < self.silence or not self._turn.acquire(blocking=False):
                continue
            silent = time.monotonic() - self._heard
            try:
                done = self._drain()
            except Exception:  # the watchdog lives on; the next doorbell meets the same, and Celery tells it
                log.exception("a look without a doorbell failed")
                continue
            finally:
                self._turn.release()
            if done:
                log.warning("%d batches were ready, but no doorbell had come for %.1f s: was one lost?", done, silent)

    def _drain(self) -> int:
        """All there is, while nobody else does."""
        self.open()
        assert self._worker is not None
        try:
            done = self._worker.drain(self.stopping, self.slice)
            if self._ill:
                log.warning("the stream %s is back", self.stream)
            self._ill = False
            return done
        except (Fenced, NotFound, NotAuthorized) as error:
            log.error("this worker ends: %s", error)
            self.error = error
            self.end(error.exit_code)
            return 0
        except TrunklineError as error:
            if not error.retryable:
                raise
            if not self._ill:  # once, and not every few seconds
                log.warning("the stream %s is away: %s", self.stream, error)
            self._ill = True
            return 0
        finally:
            self._heard = time.monotonic()

    def stopping(self) -> bool:
        """Whether the process was told to end."""
        return self._ended.is_set() or self.error is not None or self.told()

    def close(self) -> None:
        """End the watchdog's loop and what the worker keeps going."""
        self._ended.set()
        if self._turn.acquire(timeout=self.slice):
            self._turn.release()
        if self._worker is not None:
            self._worker.close()
