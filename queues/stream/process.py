"""The process that serves a stream: how it is told to end, and what it says at its end. Torch is loaded when it serves."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from queues.stream.home import StreamHome
from trunkline.clock import SystemClock
from trunkline.errors import TrunklineError
from trunkline.logs import logging_to

QUIET = ("uvicorn", "transformers", "httpx")
"""Libraries that tell too much."""

STOP_SECONDS = 60.0
"""A clean end may take so long; then it ends as by a kill, which loses nothing either."""

log = logging.getLogger(__name__)


class Ending:
    """Something asked for a clean end; it is seen to that there is one."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def ask(self) -> None:
        """End now."""
        if not self.asked.is_set():
            self.asked.set()
            timer = threading.Timer(STOP_SECONDS, os._exit, (75,))
            timer.daemon = True
            timer.start()

    def follow(self, handle: int) -> None:
        """End when a file does: standard input, at whose other end the master is."""
        threading.Thread(target=self._follow, args=(handle,), daemon=True, name="follow-master").start()

    def _follow(self, handle: int) -> None:
        while os.read(handle, 1024):
            pass
        self.ask()


def run(home: StreamHome, ending: Ending, *, accept: bool = False) -> None:
    """Serve a stream until SIGTERM, SIGINT, or `ending` asks for it. What goes wrong is logged, and raised.

    :param accept: go on although something was lost.
    :raises AlreadyRunning: another process serves it.
    :raises TrunklineError: see `queues.stream.running.serve`.
    """
    _ = home.spec  # is it a stream? Nothing is made where there is none
    with logging_to(home.logs / "server.log", "info", QUIET), _signals(ending):
        try:
            lock = home.lock()
            try:
                from queues.stream.running import serve

                serve(home, ending.asked, SystemClock(), accept=accept)
            finally:
                lock.release()
        except TrunklineError as error:
            log.error("%s", error)
            raise
        except Exception:
            log.exception("the server of the stream ended")
            raise


@contextmanager
def _signals(ending: Ending) -> Iterator[None]:
    before = {number: signal.signal(number, lambda *_: ending.ask()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
