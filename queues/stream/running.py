"""One running server of a stream: its Redis, its queues, who keeps the parameters, the doorbell, and the API on the socket."""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from torch import Tensor

from queues.connection import Client, connect
from queues.embedded import EmbeddedServer
from queues.redis import RedisQueues
from queues.store.memory import MemoryStore
from queues.store.reader import FileReader
from queues.store.writer import FileWriter
from queues.stream.api.app import make_app
from queues.stream.api.serve import SocketServer
from queues.stream.depot import Depot
from queues.stream.desk import Desk
from queues.stream.edge import Edge
from queues.stream.home import StreamHome
from queues.stream.join import join
from queues.stream.model import Learner
from queues.stream.server import ParameterServer
from queues.stream.spec import StreamSpec
from queues.stream.worker import Worker
from queues.writer import QueueWriter
from trunkline.clock import Clock
from trunkline.errors import Fenced, StateError, TrunklineError, Unreachable

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Between two looks at the counters, and at the server of the queues."""

STOP_SECONDS = 30.0
"""That a thread may take to end: the one that keeps parameters writes a checkpoint."""


def serve(home: StreamHome, stop: threading.Event, clock: Clock, *, accept: bool = False) -> None:
    """Serve a stream until told to stop. The caller holds the folder's lock.

    :param accept: go on although the server of the queues, or the store, lost something; see `queues.stream.mending`.
    :raises NotFound: there is no stream.
    :raises Fenced: the server of the queues has a stream of the same name that is another store's.
    :raises StateError: something was lost; says what.
    :raises SettingsError, SpecError, StorageFailed, Unreachable: it cannot start as it is set up.
    """
    with ExitStack() as parts:
        spec = home.spec
        redis = parts.enter_context(_redis(home, clock))
        begin(home, spec, RedisQueues(redis.client, spec.name, epoch=home.epoch), accept=accept)
        learner = Learner(spec, home.encoder, (home.modules,))
        store = _store(home, spec, {name: p.detach() for name, p in learner.parameters().items()})
        parts.callback(store.close)
        incarnation = home.next_incarnation()
        broker = home.broker_url or redis.url
        home.write_server({"pid": os.getpid(), "incarnation": incarnation, "redis": redis.url, "broker": broker})
        parts.callback(home.forget_server)
        hands = parts.enter_context(_hands(home, store, broker, spec.name, clock))
        writer = QueueWriter(redis.client, spec.name, epoch=home.epoch, worker="server")
        begins_anew = accept or isinstance(store, MemoryStore)  # whose parameters ended with the last process
        keeper = ParameterServer(home, spec, writer, store, clock, incarnation=incarnation, ring=hands, accept=begins_anew)
        keeping = parts.enter_context(_Thread("keeper", lambda stopping: keeper.run(stopping.is_set)))
        queues = RedisQueues(redis.client, spec.name, epoch=home.epoch, worker="desk")
        desk = Desk(home, spec, queues, Edge(learner.packers), keeper, clock)
        depot = Depot(home, spec, FileReader(home.store, clock=clock), incarnation, clock) if spec.store.kind == "file" else None
        api = parts.enter_context(SocketServer(make_app(desk, depot), home.socket, clock))
        logger.info("serving stream %s, incarnation %d, in %s", spec.name, incarnation, home.folder)
        while not stop.wait(LOOK_SECONDS) and api.alive() and keeping.alive():
            redis.look(desk)
            if depot is not None:
                depot.look()
        logger.info("stopping")
        keeping.end()


def begin(home: StreamHome, spec: StreamSpec, queues: RedisQueues, *, accept: bool = False) -> None:
    """Make the stream's queues where they are not there yet. Settings that were changed since stay.

    :raises StateError, Fenced: see `serve`.
    """
    if home.begun and not accept and not queues.begun():
        raise StateError(
            f"the server of the queues should know stream {spec.name!r}, found that it does not: it lost its data, or is another.",
            hint="Bring its data back; or start with `--accept-loss`, to go on without the samples that waited there.",
        )
    if queues.begin(home.epoch, spec.queues) != home.epoch:
        raise Fenced(
            f"the stream {spec.name!r} should be this store's, found one of another store on the same server.",
            hint="Give one of them another name, or a Redis of its own.",
        )
    there = set(queues.queues())
    for task in spec.tasks:
        if task.name not in there:
            queues.configure(task.name, task.settings)
    home.note_begun()


def _store(home: StreamHome, spec: StreamSpec, parameters: Mapping[str, Tensor]) -> MemoryStore | FileWriter:
    if spec.store.kind == "memory":
        return MemoryStore(spec, parameters)
    return FileWriter(home.store, spec, parameters, home.epoch)


# -- who computes ------------------------------------------------------------------------------------------------------


@contextmanager
def _hands(
    home: StreamHome, store: MemoryStore | FileWriter, broker: str, stream: str, clock: Clock
) -> Iterator[Callable[[int], None]]:
    """What to call where there is work: Celery's workers; or a thread of this process, for a store that no other reaches."""
    if isinstance(store, MemoryStore):
        wake = threading.Event()
        worker = join(home, clock=clock, store=store.reader())
        with _Thread("worker", lambda stopping: _drain(worker, wake, stopping)):
            yield lambda count: wake.set()
        worker.close()
        return
    from queues import doorbell

    with doorbell.make_app(doorbell.broker_of(broker), stream) as app:
        quiet = threading.Event()

        def ring(count: int) -> None:
            try:
                doorbell.ring(app, count)
                quiet.clear()
            except Unreachable as error:  # workers look by themselves every few seconds
                if not quiet.is_set():
                    logger.warning("%s", error)
                quiet.set()

        yield ring


def _drain(worker: Worker, wake: threading.Event, stopping: threading.Event) -> None:
    while not stopping.is_set():
        wake.wait(0.5)
        wake.clear()
        try:
            worker.drain(stopping.is_set)
        except TrunklineError as error:
            if not error.retryable:
                raise
            logger.warning("%s", error)


class _Thread:
    """A thread that is told to end, and whose error is raised by who ends it."""

    def __init__(self, name: str, function: Callable[[threading.Event], None]) -> None:
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._function = function
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> "_Thread":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._stopping.set()
        self._thread.join(STOP_SECONDS)

    def alive(self) -> bool:
        """Whether it still works."""
        return self._thread.is_alive()

    def end(self) -> None:
        """Have it end; raise what it ended with before it was told to."""
        self.__exit__(None, None, None)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._function(self._stopping)
        except BaseException as error:  # noqa: BLE001 - raised again by `end`
            self._error = error
            logger.error("%s: %s", self._thread.name, error)


# -- the server of the queues ------------------------------------------------------------------------------------------


@dataclass
class _Redis:
    """The server of the queues, ours or another's."""

    url: str
    client: Client
    embedded: EmbeddedServer | None

    def look(self, desk: Desk) -> None:
        """Note the counters; an embedded server that died is started again, for all that it has is on the disk."""
        try:
            desk.look()
        except Unreachable as error:
            logger.warning("%s", error)
            if self.embedded is not None:
                try:
                    self.embedded.start()
                except TrunklineError as again:  # a full disk, for example: it is tried with each look
                    logger.warning("%s", again)
        except TrunklineError as error:
            logger.warning("%s", error)


@contextmanager
def _redis(home: StreamHome, clock: Clock) -> Iterator[_Redis]:
    """The server of the queues; ours ends with this one, whole."""
    url, embedded = home.redis_url, None
    with ExitStack() as parts:
        if url is None:
            embedded = EmbeddedServer(home.redis, clock=clock)
            if embedded.start():
                logger.info("took over the server of the queues in %s", home.redis)
            parts.callback(embedded.stop)
            url = embedded.url
        client = connect(url)
        parts.callback(client.close)
        yield _Redis(url, client, embedded)
