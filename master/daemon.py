"""`trunkline serve`: the SuperLink, the HTTPS API and the runs of open jobs, kept alive until the process is told to stop.

Nothing is decided here that the ledger does not hold. Each turn of the loop compares what should run with what runs: a job that
is open has one run; a run whose process ended is stopped at the SuperLink and, if its job is still open, started again; a SuperLink
that ended is started again with the node keys of the ledger. So a daemon that was killed only has to be started again.
"""

import logging
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from master import nodes, pki, unnamed
from master.api.app import make_app
from master.api.parts import Parts
from master.api.serve import ApiServer
from master.blobs import BlobStore
from master.home import DaemonInfo, MasterHome
from master.ledger import Ledger
from master.merging import Merging
from master.pause import Pause
from master.records import Job
from master.settings import MasterSettings
from master.streams import Streams
from master.superlink import SuperLink
from master.tokens import Gate, new_secret, new_token
from trunkline import __version__
from trunkline.clock import Clock, SystemClock
from trunkline.errors import TrunklineError, Unreachable
from trunkline.logs import logging_to

logger = logging.getLogger(__name__)

TURN = 0.5
"""Seconds between two looks at what runs, if nobody wakes the loop before."""

SWEEP_SECONDS = 24 * 3600.0
"""Age at which what a broken upload left, and a blob that nothing names, is thrown away."""

TIDY_SECONDS = 600.0
"""Seconds between two looks for what was left behind."""

SILENT_SECONDS = 60.0
"""Seconds after which a job whose owner gave no sign of life has none; twelve times the pulse of `master.jobrun`."""


def serve(settings: MasterSettings, *, stop: threading.Event | None = None, clock: Clock | None = None) -> None:
    """Run a master until SIGTERM or SIGINT, or until `stop` is set.

    :raises AlreadyRunning: another master has this state folder, or a port is in use.
    :raises SettingsError, StorageFailed: it cannot start as it is set up.
    """
    clock, stop = clock or SystemClock(), stop or threading.Event()
    home = MasterHome(settings.state.expanduser().absolute())
    home.create()
    with ExitStack() as parts:
        parts.callback(home.lock().release)
        parts.enter_context(logging_to(home.logs / "daemon.log", settings.log_level, quiet=("httpx", "alembic", "uvicorn")))
        parts.enter_context(_signals(stop))
        daemon = parts.enter_context(_started(settings, home, clock))
        logger.info("serving %s (SuperLink %s), state %s", daemon.parts.url, daemon.parts.flower, home.folder)
        while not stop.is_set():
            daemon.turn()
            daemon.waking.wait(TURN)
            daemon.waking.clear()
            if stop.is_set() or not daemon.api.alive():
                break
        logger.info("stopping")


@contextmanager
def _started(settings: MasterSettings, home: MasterHome, clock: Clock) -> Iterator["Daemon"]:
    """Everything started, in the order of need; stopped in the other order."""
    tls = pki.ensure(home.tls, settings.certificate_names(), clock.now())
    with ExitStack() as parts:
        ledger = Ledger.open(settings.ledger or home.ledger_url(), clock)
        parts.callback(ledger.close)
        blobs = BlobStore(home.blobs, clock)
        link = SuperLink(home.superlink, settings.superlink_port, tls, host=settings.host, clock=clock)
        streams = Streams(home.streams, clock)
        daemon = Daemon(settings, home, ledger, link, streams, clock)
        wired = Parts(
            ledger=ledger,
            blobs=blobs,
            gate=Gate(new_secret(home.grant_secret), clock),
            settings=settings,
            register=daemon.register,
            actions=daemon,
            clock=clock,
            streams=streams,
            admin_token=home.admin_token(new_token),
            ca=tls.ca.read_text(encoding="ascii"),
            flower=f"{settings.reached_as()}:{settings.superlink_port}",
            url=f"https://{settings.reached_as()}:{settings.port}",
        )
        daemon.parts = wired
        parts.callback(link.stop)
        parts.callback(streams.close)
        streams.turn()  # they take seconds to begin, as the SuperLink does
        link.start()
        daemon.register_all()
        daemon.api = ApiServer(
            make_app(wired),
            settings.host,
            settings.port,
            tls,
            clock=clock,
            stop_seconds=settings.stop_seconds,
            connections=settings.max_connections,
        )
        parts.enter_context(daemon.api)
        info = DaemonInfo(
            pid=os.getpid(),
            url=f"https://{settings.reached_here()}:{daemon.api.port}",
            port=daemon.api.port,
            superlink_port=settings.superlink_port,
            started=clock.now(),
            version=__version__,
            ledger=settings.ledger,
        )
        home.write_daemon(info)
        parts.callback(home.forget_daemon)
        yield daemon


@dataclass
class Daemon:
    """What runs, compared with what the ledger says should run. Implements `master.api.parts.Actions`."""

    settings: MasterSettings
    home: MasterHome
    ledger: Ledger
    link: SuperLink
    streams: Streams
    clock: Clock
    rng: random.Random = field(default_factory=random.Random)
    waking: threading.Event = field(default_factory=threading.Event)
    runs: dict[str, int] = field(default_factory=dict)  # job -> run
    pauses: dict[str, Pause] = field(default_factory=dict)  # job -> when it may be started again
    link_pause: Pause = field(default_factory=Pause)
    tidied: float = float("-inf")  # monotonic seconds
    merging: Merging = field(init=False)
    parts: Parts = field(init=False)
    api: ApiServer = field(init=False)

    def __post_init__(self) -> None:
        self.merging = Merging(self.streams, self.ledger, BlobStore(self.home.blobs, self.clock), self.clock, self.rng)

    # -- what the API asks -------------------------------------------------------------------------------------------

    def wake(self, job: str) -> None:
        """Look now: a job was started, paused, resumed or aborted."""
        self.pauses.pop(job, None)
        self.waking.set()

    def register(self, public_key: bytes) -> int:
        """Make a key known at the SuperLink."""
        return self.link.register_node(public_key)

    def unregister(self, flower_id: int) -> None:
        """Take a key back at the SuperLink."""
        try:
            self.link.control.unregister_node(flower_id)
        except Unreachable:
            logger.warning("node %s is revoked; the SuperLink, which is away, is told at its next start", flower_id)

    def online(self) -> frozenset[int] | None:
        """Ids of the nodes that the SuperLink hears of now; None where it does not answer."""
        try:
            return frozenset(node.node_id for node in self.link.nodes() if node.status == "online")
        except Unreachable:
            return None

    def register_all(self) -> None:
        """Tell the SuperLink, which keeps nothing, every active key."""
        known = nodes.register_all(self.ledger, self.register)
        logger.info("%d nodes known to the SuperLink", len(known))

    # -- the loop ----------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """One comparison. What fails is tried again in the next turn, with growing pauses."""
        try:
            self.streams.turn()
            self.merging.turn()
            self._tidy()
            if self._link_up():
                self._stop_runs()
                self._start_runs()
        except TrunklineError as error:
            logger.warning("%s", error)

    def _tidy(self) -> None:
        """Throw away what broken uploads left; take back jobs whose owner is gone, wherever it ran."""
        now = self.clock.monotonic()
        if now - self.tidied < TIDY_SECONDS:
            return
        self.tidied = now
        self.parts.blobs.sweep(SWEEP_SECONDS)
        if count := unnamed.sweep(self.ledger, self.parts.blobs, SWEEP_SECONDS):
            logger.info("swept %d blobs that nothing names", count)
        for job in self.ledger.reap(SILENT_SECONDS):
            logger.warning("job %s had no living owner; it waits for a new one", job.id)

    def _link_up(self) -> bool:
        if self.link.alive():
            return True
        now = self.clock.monotonic()
        if not self.link_pause.over(now):
            return False
        self.link_pause.grow(now, self.rng)
        logger.warning("the SuperLink ended; starting it again")
        self.link.start()
        self.runs.clear()
        self.register_all()
        self.ledger.event("superlink.restarted")
        return True

    def _stop_runs(self) -> None:
        """Forget runs whose process ended, and end those whose job should not run."""
        wanted = {job.id for job in self.ledger.open_jobs() if job.state != "paused"}
        gone = set(self.link.reap())
        for job, run in list(self.runs.items()):
            if run in gone:
                del self.runs[job]
                self.pauses.setdefault(job, Pause()).grow(self.clock.monotonic(), self.rng)
                if job in wanted:
                    logger.warning("run %s of job %s ended before its job", run, job)
            elif job not in wanted and self.ledger.job(job).state != "paused":
                self.link.stop_run(run)
                del self.runs[job]

    def _start_runs(self) -> None:
        now = self.clock.monotonic()
        for job in self.ledger.open_jobs():
            if job.state != "paused" and job.id not in self.runs and self.pauses.setdefault(job.id, Pause()).over(now):
                self._start(job)

    def _start(self, job: Job) -> None:
        run = self.link.start_run({"job": job.id, "state": str(self.home.folder.absolute())})
        self.runs[job.id] = run
        self.ledger.set_run(job.id, str(run))
        logger.info("job %s is run %s", job.id, run)


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a stop; a thread that is not the main one leaves signals alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["Daemon", "serve"]
