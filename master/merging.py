"""The daemon's part where streams and rounds meet: every stream that runs takes every round of its encoder, whoever was killed."""

import logging
import random
import threading
from dataclasses import dataclass, field

from master.blobs import BlobStore
from master.ledger import Ledger
from master.meeting import Meeting
from master.pause import Pause
from master.streams import Streams
from trunkline.clock import Clock
from trunkline.errors import TrunklineError

logger = logging.getLogger(__name__)

Seen = tuple[int, int]
"""Process of a stream's server, and newest version of its encoder: nothing is to be done until one of them changes."""


@dataclass
class _Stream:
    """What is known of one."""

    seen: Seen | None = None
    pause: Pause = field(default_factory=Pause)
    thread: threading.Thread | None = None


class Merging:
    """Looks each turn, which costs little; asks a stream only after a round, or a start of its server, in a thread of its own."""

    def __init__(self, streams: Streams, ledger: Ledger, blobs: BlobStore, clock: Clock, rng: random.Random) -> None:
        self.streams, self.ledger, self.blobs, self.clock, self.rng = streams, ledger, blobs, clock, rng
        self._known: dict[str, _Stream] = {}

    def turn(self) -> None:
        """Have each stream take what it lacks."""
        for name in self.streams.names():
            found = self._known.setdefault(name, _Stream())
            if found.thread is not None and found.thread.is_alive():
                continue
            try:
                seen = self._look(name)
            except TrunklineError:
                continue  # what is wrong with a stream, `stream list` says
            if seen is None or seen == found.seen or not found.pause.over(self.clock.monotonic()):
                continue
            found.thread = threading.Thread(target=self._take, args=(name, found, seen), name=f"merge-{name}", daemon=True)
            found.thread.start()

    def _look(self, name: str) -> Seen | None:
        """None: nobody serves it."""
        home = self.streams.home(name)
        told = home.server()
        return None if told is None else (int(told["pid"]), self.ledger.version(home.spec.encoder).number)

    def _take(self, name: str, found: _Stream, seen: Seen) -> None:
        try:
            count = Meeting(self.streams.home(name), self.ledger, self.blobs, self.clock).catch_up()
            found.seen, found.pause = seen, Pause()
            if count:
                logger.info("stream %s took %d rounds", name, count)
        except TrunklineError as error:
            found.pause.grow(self.clock.monotonic(), self.rng)
            logger.warning("stream %s does not take the rounds of its encoder: %s", name, error)
        except Exception:
            found.pause.grow(self.clock.monotonic(), self.rng)
            logger.exception("the rounds of stream %s", name)
