"""Redis servers for tests, and queues of numbers on them."""

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from queues.embedded import EmbeddedServer
from queues.queue import Claim, Counts, Outcome
from queues.redis import RedisQueues, connect
from queues.settings import StreamSettings
from queues.writer import QueueWriter
from trunkline.clock import Clock

KINDS = ("embedded", "debian")
"""The server that comes with Trunkline, and Debian's redis-server."""

_names = itertools.count()
_clients: dict[str, list[Any]] = {}
"""Of each server, by its address: closed when it is stopped."""


_writers: dict[str, list[QueueWriter]] = {}


@contextmanager
def server(kind: str, folder: Path) -> Iterator[EmbeddedServer]:
    """A server that runs."""
    found = shutil.which("redis-server")
    if kind == "debian" and found is None:
        pytest.skip("no redis-server on this machine: apt-get install redis-server")
    made = EmbeddedServer(folder, program=Path(found) if kind == "debian" and found else None, durable=False)
    made.start()
    try:
        yield made
    finally:
        close_clients(made)
        made.stop()


def client(server: EmbeddedServer, url: str = "") -> Any:
    """One that is closed when the server is stopped."""
    _clients.setdefault(server.url, []).append(connect(url or server.url))
    return _clients[server.url][-1]


def close_clients(server: EmbeddedServer) -> None:
    for writer in _writers.pop(server.url, []):
        writer.close()
    for one in _clients.pop(server.url, []):
        one.close()


def raw(queues: RedisQueues) -> Any:
    """The client of a stream, to look at its keys and to do what the queues do not."""
    return queues._client


def stream(
    server: EmbeddedServer, *, clock: Clock | None = None, new_id: Callable[[], str] | None = None, **settings: Any
) -> QueueWriter:
    """The queues of a new stream."""
    ids: dict[str, Any] = {} if new_id is None else {"new_id": new_id}
    queues = QueueWriter(client(server), f"test-{next(_names)}", clock=clock, worker="tester", **ids)
    queues.begin("epoch", StreamSettings.model_validate(settings))
    _writers.setdefault(server.url, []).append(queues)
    return queues


class Numbers:
    """A `TaskQueue` of whole numbers over one of bytes."""

    def __init__(self, queues: RedisQueues) -> None:
        self.queues = queues

    def open(self, task: str, batch_size: int) -> None:
        self.queues.open(task, batch_size)

    def push(self, task: str, samples: Sequence[int]) -> int:
        return self.queues.push(task, [str(sample).encode() for sample in samples])

    def claim(self) -> Claim[int] | None:
        claim = self.queues.claim()
        return None if claim is None else replace(claim, samples=_numbers(claim.samples))  # type: ignore[arg-type, return-value]

    def renew(self, claim: Claim[int]) -> Outcome:
        return self.queues.renew(claim)  # type: ignore[arg-type]

    def commit(self, claim: Claim[int]) -> Outcome:
        return self.queues.commit(claim)  # type: ignore[arg-type]

    def nack(self, claim: Claim[int], reason: str) -> Outcome:
        return self.queues.nack(claim, reason)  # type: ignore[arg-type]

    def waiting(self, task: str) -> tuple[int, ...]:
        return _numbers(self.queues.waiting(task))

    def counts(self, task: str) -> Counts:
        return self.queues.counts(task)


def _numbers(samples: Sequence[bytes]) -> tuple[int, ...]:
    return tuple(map(int, samples))
