"""One running server of a stream: its Redis, its queues, who keeps the parameters, and the API on the socket."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from queues.connection import Client, connect
from queues.embedded import EmbeddedServer
from queues.redis import RedisQueues
from queues.stream.api.app import make_app
from queues.stream.api.serve import SocketServer
from queues.stream.desk import Desk
from queues.stream.edge import Edge
from queues.stream.home import StreamHome
from queues.stream.model import Learner
from queues.stream.spec import StreamSpec
from trunkline.clock import Clock
from trunkline.errors import Fenced, StateError, TrunklineError, Unreachable

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Between two looks at the counters, and at the server of the queues."""


def serve(home: StreamHome, stop: threading.Event, clock: Clock) -> None:
    """Serve a stream until told to stop.

    :raises AlreadyRunning: another process serves it.
    :raises NotFound: there is no stream.
    :raises StateError: the server of the queues lost what it had, or has a stream of the same name that is another store's.
    :raises SettingsError, SpecError, StorageFailed, Unreachable: it cannot start as it is set up.
    """
    with ExitStack() as parts:
        spec = home.spec
        parts.callback(home.lock().release)
        redis = parts.enter_context(_redis(home, clock))
        queues = RedisQueues(redis.client, spec.name, epoch=home.epoch, worker="server")
        begin(home, spec, queues)
        learner = Learner(spec, home.encoder, (home.modules,))
        desk = Desk(home, spec, queues, Edge(learner.packers), None, clock)
        api = parts.enter_context(SocketServer(make_app(desk), home.socket, clock))
        incarnation = home.next_incarnation()
        home.write_server({"pid": os.getpid(), "incarnation": incarnation, "redis": redis.url, "broker": redis.url})
        parts.callback(home.forget_server)
        logger.info("serving stream %s, incarnation %d, in %s", spec.name, incarnation, home.folder)
        while not stop.wait(LOOK_SECONDS) and api.alive():
            redis.look(desk)
        logger.info("stopping")


def begin(home: StreamHome, spec: StreamSpec, queues: RedisQueues) -> None:
    """Make the stream's queues where they are not there yet. Settings that were changed since stay.

    :raises StateError: see `serve`.
    """
    if home.begun and not queues.begun():
        raise StateError(
            f"the server of the queues should know stream {spec.name!r}, found that it does not: it lost its data, or is another.",
            hint=f"Bring its data back. To go on without the samples that waited there, remove {home.begun_file}.",
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
                with _told():
                    self.embedded.start()
        except TrunklineError as error:
            logger.warning("%s", error)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
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
