"""A store as workers on other machines reach it: behind the socket of a stream's server, behind a master's API with TLS."""

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from torch import Tensor

from master.streams import Streams
from queues.store.reader import FileReader
from queues.store.remote import RemoteReader
from queues.store.writer import FileWriter
from queues.stream.api import parameters
from queues.stream.api.answers import HANDLERS
from queues.stream.api.serve import SocketServer
from queues.stream.depot import Depot
from queues.stream.home import StreamHome
from queues.stream.spec import StreamSpec
from tests.support.api import QUICK, Running, running_master
from trunkline.clock import SystemClock
from trunkline.https import Https, Patience


class Served(Streams):
    """Streams whose servers are threads of the test, and not processes of the master."""

    def check_runs(self, name: str) -> None:
        self.find(name)


@dataclass
class Master:
    """A master whose streams are served by `store`."""

    running: Running
    streams: Served

    @contextmanager
    def store(
        self, spec: StreamSpec, start: Mapping[str, Tensor], *, incarnation: int = 1, **how: Any
    ) -> Iterator[tuple[FileWriter, Depot]]:
        """A stream's store with its API, until the block ends."""
        home = StreamHome(self.streams.folder / spec.name)
        home.encoder.mkdir(parents=True, exist_ok=True)
        home.create(spec)
        with ExitStack() as parts:
            writer = FileWriter(home.store, spec, start, home.epoch, **how)
            parts.callback(writer.close)
            depot = Depot(home, spec, FileReader(home.store), incarnation, SystemClock())
            app = Starlette(routes=parameters.routes(depot), exception_handlers=HANDLERS)
            parts.enter_context(SocketServer(app, home.socket, SystemClock()))
            yield writer, depot

    def https(self, token: str | None = None, port: int | None = None, patience: Patience = QUICK) -> Https:
        """A connection, with the admin's token if no other is named."""
        url = f"https://127.0.0.1:{port or self.running.port}"
        given = self.running.parts.admin_token if token is None else token
        return Https(url, self.running.parts.ca, given, SystemClock(), random.Random(5), patience)

    def reader(self, depot: Depot, https: Https | None = None, **how: Any) -> RemoteReader:
        """A worker's side."""
        return RemoteReader(https or self.https(), f"/v1/streams/{depot.spec.name}/worker", depot.reader.layout.shapes, **how)


@contextmanager
def master(folder: Path) -> Iterator[Master]:
    """One that runs, until the block ends."""
    streams = Served(folder / "streams", SystemClock())
    with running_master(folder, streams=streams) as running:
        yield Master(running, streams)
