"""Celery, and the one module that knows it: its messages wake workers up, and say nothing but which stream has work.

A message is a *doorbell*: under 1 KB, no samples, no batch, no parameters. Who hears it drains the queues; what there is to do, and
who may do it, is decided by the queues alone. So a doorbell that comes twice, late or never does no harm: one that came for nothing
costs a look, and where none came a watchdog in the worker looks by itself. Nothing here retries, schedules, chains, keeps a result.

A worker is one process in which one thing at a time is computed (pools `solo` and `threads`): one that is forked after torch was
loaded hangs. `celery -A queues.doorbell worker` runs one too; the environment variable TRUNKLINE_STREAM names the stream's folder.
"""

import logging
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from celery import Celery, bootsteps
from celery.concurrency import get_implementation
from celery.exceptions import CPendingDeprecationWarning, WorkerTerminate
from celery.platforms import SecurityWarning
from celery.signals import setup_logging
from celery.worker import state
from kombu.exceptions import KombuError

from queues.stream.home import StreamHome
from queues.stream.station import Station
from trunkline.errors import FailedError, SettingsError, Unreachable

if TYPE_CHECKING:  # it loads torch, which whoever only rings does not need, and which must not be there before a fork
    from queues.stream.worker import Worker

log = logging.getLogger(__name__)

TASK = "trunkline.drain"
QUEUE = "doorbell"

VARIABLE = "TRUNKLINE_STREAM"
"""Says which stream's folder, to a worker that is started by Celery's own program."""

MESSAGE_LIMIT = 1024
"""Bytes of a message."""

MOST = 8
"""Doorbells that wait at most: each wakes one worker up, which then takes all there is."""

VISIBILITY = 120.0
"""Seconds after which a doorbell that nobody acknowledged is heard again. No batch depends on it."""

SOCKET_TIMEOUT = 5.0
"""Seconds that an answer of the broker may take."""

POOLS = ("celery.concurrency.solo", "celery.concurrency.thread")


# -- the application ---------------------------------------------------------------------------------------------------


def broker_of(redis: str) -> str:
    """Celery's address of the Redis that has the queues: behind a socket a database of its own, else the same.

    >>> broker_of("unix:///run/redis.sock")
    'redis+socket:///run/redis.sock?virtual_host=1'
    """
    parts = urlsplit(redis)
    if parts.scheme != "unix":
        return redis
    query = dict(parse_qsl(parts.query))
    options = {"virtual_host": query.pop("db", "1"), **query}
    return f"redis+socket://{parts.netloc}{parts.path}?{urlencode(options)}"


def make_app(broker: str, stream: str, station: "Station | None" = None, *, visibility: float = VISIBILITY) -> Celery:
    """The Celery application of a stream. Nothing is connected.

    :param broker: as Celery writes it; see `broker_of`.
    :param station: who answers a doorbell; None: this process only rings.
    :param visibility: see VISIBILITY.
    """
    found = Celery("trunkline", broker=broker, set_as_current=False)
    timeout = {"visibility_timeout": visibility}
    found.conf.update(
        broker_transport_options={
            **timeout,
            "global_keyprefix": f"trunkline:{stream}:celery:",
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "priority_steps": [0],  # all doorbells are alike: one list, not four
            "socket_timeout": SOCKET_TIMEOUT,
            "socket_connect_timeout": SOCKET_TIMEOUT,
            "socket_keepalive": True,
            "health_check_interval": 25,
            **({"max_retries": 1, "interval_start": 0.1} if station is None else {}),  # who rings has other things to do
        },
        result_backend_transport_options=timeout,
        visibility_timeout=visibility,
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,  # for ever: a worker outlives its server
        task_default_queue=QUEUE,
        task_protocol=1,  # half the bytes of the other
        task_serializer="json",
        accept_content=["json"],
        event_serializer="json",
        result_backend=None,
        task_ignore_result=True,
        task_acks_late=True,
        task_time_limit=None,
        task_soft_time_limit=None,
        worker_pool="solo",
        worker_concurrency=1,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_enable_prefetch_count_reduction=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,  # what a step computes counts, whatever became of its doorbell
        worker_soft_shutdown_timeout=10.0,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        enable_utc=True,
    )

    @found.task(name=TASK, shared=False)
    def drain(stream: str) -> None:
        if station is not None:
            station.answer(stream)

    if station is not None:
        station.app, station.ring, station.told, station.end = found, lambda: ring(found), _told_to_stop, _stop
        steps: Any = found.steps
        steps["worker"].add(_watching(station))
    return found


@contextmanager
def _told(app: Celery) -> Iterator[None]:
    """What Celery and its transport say, as ours."""
    transport = app.connection_for_write()  # not connected
    try:
        yield
    except (KombuError, OSError, *transport.connection_errors, *transport.channel_errors) as error:
        raise Unreachable(
            f"the broker of the doorbell should answer, found: {str(error) or type(error).__name__}.", hint="Is its server running?"
        ) from None


def ring(app: Celery, count: int = 1) -> int:
    """Wake workers up; return how many doorbells were sent.

    :param count: workers that there is work for. So many doorbells wait at most, and never more than MOST.
    :raises Unreachable: the broker does not answer; nobody heard anything.
    """
    stream = app.conf.broker_transport_options["global_keyprefix"].split(":")[1]
    with _told(app), app.producer_or_acquire() as producer:
        more = min(count, MOST) - producer.channel.queue_declare(queue=QUEUE).message_count
        for _ in range(more):
            app.send_task(TASK, (stream,), producer=producer, retry=False, ignore_result=True)
    return max(0, more)


def waiting(app: Celery) -> int:
    """Doorbells that nobody has heard yet.

    :raises Unreachable: the broker does not answer.
    """
    with _told(app), app.connection_for_write() as connection:
        return int(connection.default_channel.queue_declare(queue=QUEUE).message_count)


def effective_visibility(app: Celery) -> float:
    """What a channel goes by, whatever was set: seconds.

    :raises Unreachable: the broker does not answer.
    """
    with _told(app), app.connection_for_read() as connection:
        return float(connection.default_channel.visibility_timeout)


# -- the worker --------------------------------------------------------------------------------------------------------


def _watching(station: Station) -> type[bootsteps.StartStopStep]:
    class Watching(bootsteps.StartStopStep):
        """Checks how Celery was started; then, beside its consumer, the watchdog."""

        requires = ("celery.worker.components:Pool",)

        def __init__(self, parent: Any, **options: Any) -> None:
            super().__init__(parent, **options)
            check_pool(parent.pool_cls)
            self.thread = threading.Thread(target=station.watch, name="watchdog", daemon=True)

        def start(self, parent: Any) -> None:
            station.open()
            self.thread.start()

        def stop(self, parent: Any) -> None:
            station.close()

    return Watching


def check_pool(pool: Any) -> None:
    """:raises SettingsError: a pool that forks, or that runs more than one thing at a time in one thread."""
    name = pool if isinstance(pool, str) else pool.__module__
    if name not in POOLS:
        raise SettingsError(
            f"`--pool` should be solo or threads, found {name.rpartition('.')[2]}: torch hangs in a process that was forked.",
            hint="Start one worker for each process that should compute.",
        )


def address(home: StreamHome) -> dict[str, Any]:
    """Where the stream's server said that its Redis and its broker are.

    :raises Unreachable: none runs.
    """
    found = home.server()
    if found is None:
        raise Unreachable(
            f"the stream in `{home.folder}` should have a server that runs, found none.",
            hint="Start the master, or `trunkline-child stream serve`.",
        )
    return found


def station_of(home: StreamHome, make: "Callable[[], Worker] | None" = None) -> Station:
    """A station for a stream whose server runs, with its application.

    :param make: makes the worker; None: as the folder says.
    :raises Unreachable: no server runs.
    """
    table = address(home)

    def usual() -> "Worker":
        from queues.stream.join import join

        return join(home)

    station = Station(home.spec.name, make or usual)
    make_app(broker_of(table.get("broker") or table["redis"]), home.spec.name, station)
    return station


def work(station: Station, *, pool: str = "solo", name: str | None = None) -> None:
    """Run a worker in the foreground until SIGTERM or SIGINT, which let it finish its batch; a second SIGINT gives the batch back.

    :param name: of this worker, for Celery's monitors.
    :raises SettingsError: no such pool, or the broker would hear a doorbell again at another time than was set.
    :raises Unreachable: the broker does not answer.
    :raises Fenced, NotFound: the stream went over to another store, or is gone.
    :raises FailedError: Celery gave up.
    """
    app: Celery = station.app
    check_pool(get_implementation(pool))
    wanted, found = app.conf.visibility_timeout, effective_visibility(app)
    if found != wanted:
        raise SettingsError(f"the visibility timeout of the broker should be {wanted:g} s, found {found:g}.")
    station.open()
    setup_logging.connect(_as_it_is)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)  # of root, who could unpickle messages: here none is
            warnings.simplefilter("ignore", CPendingDeprecationWarning)  # of a setting that is meant as it is
            worker = _program(app)(
                hostname=name, pool=pool, concurrency=1, without_mingle=True, without_gossip=True, quiet=True, loglevel="WARNING"
            )
            worker.start()
    finally:
        setup_logging.disconnect(_as_it_is)
    if station.error is not None:
        raise station.error
    if worker.exitcode:
        raise FailedError(f"the worker should end when it is told to, found that Celery ended it with {worker.exitcode}.")


def _as_it_is(**_: Any) -> None:
    """Celery leaves the logs alone where somebody else has set them up."""


def _program(app: Celery) -> Any:
    """Celery's worker; it says nothing on standard output."""

    class Program(app.Worker):  # type: ignore[name-defined, misc]
        def install_platform_tweaks(self, worker: Any) -> None:
            told: list[int] = []

            def stop(number: int, frame: object) -> None:
                if number == signal.SIGINT and signal.SIGINT in told:
                    raise WorkerTerminate(130)  # in the middle of a step: whoever holds a batch gives it back
                told.append(number)
                _stop(0)

            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, stop)

    return Program


def _told_to_stop() -> bool:
    """Whether Celery was told to end."""
    return any(word not in (None, False) for word in (state.should_stop, state.should_terminate))


def _stop(code: int) -> None:
    """Have Celery end when what it does now is done."""
    setattr(state, "should_stop", code)  # noqa: B010 - typed as None


def __getattr__(name: str) -> Any:
    """`app`, for Celery's own program."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise SettingsError(f"{VARIABLE} should be the folder of a stream, found nothing.", hint=f"{VARIABLE}=FOLDER celery …")
    return station_of(StreamHome(Path(folder))).app
