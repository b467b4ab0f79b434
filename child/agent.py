"""`trunkline-child run`: one warm process that greets the master, looks for messages, and answers them, until it is told to stop.

SIGTERM and SIGINT: the step under way is finished, its update is sent, the process ends with 0. SIGHUP: settings are read again.
"""

import json
import logging
import random
import secrets
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from child.api import MasterApi
from child.fleet import FleetSession, Incoming, LinkLost, NotKnown, RunGone
from child.handlers import Child
from child.home import ChildHome, sweep
from child.identity import Identity
from child.machine import describe
from child.pace import Pace
from child.settings import ChildSettings, load
from child.talk import talk
from trunkline.api import Hello, Welcome
from trunkline.clock import Clock, SystemClock
from trunkline.errors import SettingsError, Unreachable
from trunkline.files import Lock, write_atomically

logger = logging.getLogger(__name__)


@dataclass
class Agent:
    """The daemon's loop, apart from what it answers.

    :param reread: settings as they are said now, for `reload`; None: `child.toml` and the environment.
    :param linger: seconds between the last answer and leaving, so that the master has taken it: Flower hands out no answer of a
        node that is offline, and the master looks for answers four times a second in a long round.
    """

    home: ChildHome
    settings: ChildSettings
    master: MasterApi
    child: Child
    clock: Clock
    rng: random.Random = field(default_factory=random.Random)
    stop: threading.Event = field(default_factory=threading.Event)
    reload: threading.Event = field(default_factory=threading.Event)
    boot: str = field(default_factory=lambda: secrets.token_hex(8))
    reread: Callable[[], ChildSettings] | None = None
    linger: float = 1.5

    def __post_init__(self) -> None:
        self._pace, self._answered = self._new_pace(), float("-inf")

    def run(self) -> None:
        """Serve until `stop`.

        :raises NotAuthorized: the master knows this child no longer.
        """
        while not self.stop.is_set():
            try:
                self._stay(self._greet())
            except (NotKnown, LinkLost, Unreachable) as error:
                pause = self._pace.away()
                logger.warning("%s Trying again in %.1f s.", error, pause)
                self.stop.wait(pause)

    def _new_pace(self) -> Pace:
        return Pace(self.rng, fastest=self.settings.poll, slowest=self.settings.idle_poll, longest_away=self.settings.away)

    def _greet(self) -> Welcome:
        """Tell the master that this process is there now, so that what was on its way to an earlier one is sent again."""
        tasks, _ = self.child.counted()
        types = tuple(self.child.registry.types())
        welcome = self.master.hello(Hello(boot=self.boot, machine=describe(), tasks=tuple(tasks), types=types))
        logger.info("%s is known as node %s at %s", welcome.name, welcome.node_id, welcome.flower)
        return welcome

    def _stay(self, welcome: Welcome) -> None:
        """One stay at the SuperLink; ends when told to stop, or when the session is lost."""
        previous = _node_of_last_stay(self.home) or welcome.node_id
        session = FleetSession(
            welcome.flower,
            self.home.ca.read_bytes(),
            self.home.key,
            self.clock,
            self.rng,
            node_id=previous,
            heartbeat=self.settings.heartbeat,
            stop=self.stop.is_set,
        )
        with session:
            write_atomically(self.home.node, json.dumps({"node_id": session.node_id, "boot": self.boot}).encode())
            self._pace.seen(self.clock.monotonic())
            while not self.stop.is_set():
                if self.reload.is_set():
                    self._reload()
                asked = self.clock.monotonic()
                incoming = session.receive(self.settings.idle_poll)
                if incoming is None:
                    now = self.clock.monotonic()
                    if not session.held:
                        self.stop.wait(self._pace.idle(now, now - asked))
                    continue
                self._answer(session, incoming)
                self._pace.seen(self.clock.monotonic())
            logger.info("stopping")
            self.clock.sleep(max(0.0, self._answered + self.linger - self.clock.monotonic()))

    def _answer(self, session: FleetSession, incoming: Incoming) -> None:
        started = self.clock.monotonic()
        text, attachment = talk(self.child, incoming.text, incoming.attachment)
        seconds = self.clock.monotonic() - started
        try:
            session.reply(incoming, text, attachment, seconds)
            self._answered = self.clock.monotonic()
        except RunGone as error:
            logger.info("nobody waits for this answer any more: %s", error)
        logger.info("answered the message `%s` in %.2f s", incoming.kind, seconds)

    def _reload(self) -> None:
        self.reload.clear()
        try:
            settings = self.reread() if self.reread else load(self.home.settings)
        except SettingsError as error:
            logger.error("settings stay as they were: %s", error)
            return
        self.settings = settings
        self.child.configure(settings)
        self._pace = self._new_pace()
        logger.info("settings were read again")


def run(
    home: ChildHome, settings: ChildSettings, reread: Callable[[], ChildSettings] | None = None, *, clock: Clock | None = None
) -> None:
    """Serve until SIGTERM or SIGINT.

    :param reread: what SIGHUP asks for settings.
    :raises AlreadyRunning: another process uses this folder.
    :raises NotFound: nobody enrolled here.
    :raises NotAuthorized: the master knows this child no longer.
    """
    clock = clock or SystemClock()
    identity = Identity.read(home.existing())
    lock = Lock(home.lock, "child")
    stop = threading.Event()
    try:
        sweep(home, clock.now())
        with identity.api(clock) as api:
            child = Child(identity.name, home, settings, api, clock=clock, stopping=stop.is_set)
            agent = Agent(home, settings, api, child, clock, stop=stop, reread=reread)
            with _signals(agent):
                agent.run()
    finally:
        lock.release()


def _node_of_last_stay(home: ChildHome) -> int | None:
    try:
        found: Mapping[str, Any] = json.loads(home.node.read_text(encoding="utf-8"))
        return int(found["node_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def _signals(agent: Agent) -> Iterator[None]:
    """SIGTERM and SIGINT stop after the step under way, SIGHUP reads settings again."""
    events: dict[int, threading.Event] = {signal.SIGTERM: agent.stop, signal.SIGINT: agent.stop}
    if hasattr(signal, "SIGHUP"):
        events[signal.SIGHUP] = agent.reload
    before = {number: signal.signal(number, lambda number, _: events[number].set()) for number in events}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
