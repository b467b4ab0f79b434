"""Samples from a Python program on the machine of a stream's server. No torch here: what is pushed is read and tokenised there."""

import json
import random
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from queues.stream.client import StreamClient
from queues.stream.home import StreamHome
from trunkline.clock import Clock, Deadline, SystemClock
from trunkline.retry import persist

ROWS = 1000
"""Of one call at most."""


class SampleQueues:
    """The queues of one stream, to push into. For one thread.

    :param folder: of the stream.
    :param producer: who pushes, under a name that stays the same when the program starts again; then `first` goes on where it was,
        and what was pushed before is not pushed again. None: a new name.
    :param first: the number of the next sample of each task at this producer, counted from 1.
    :param patience: seconds that a server which is away, or a queue without room, is waited for.
    """

    def __init__(
        self, folder: Path, *, producer: str | None = None, first: int = 1, patience: float = 10.0, clock: Clock | None = None
    ) -> None:
        home = StreamHome(folder)
        self._client, self._clock, self._patience = StreamClient(home.socket, home.spec.name), clock or SystemClock(), patience
        self.producer, self._first = producer or f"py-{secrets.token_hex(6)}", first
        self._next: dict[str, int] = {}
        self._rng = random.Random()  # noqa: S311 - jitter

    def push(self, task: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """Push samples, as a file of the task would have them; tell how many wait in each queue that they went to.

        :param task: or a name that feeds several.
        :raises SampleError: a row is wrong; says which, counted from 1. Those of its call, a thousand at most, were not taken.
        :raises QueueFull, QueuePaused: the queue took none for all the patience.
        :raises NotFound: nothing is called so.
        :raises Unreachable: no server answers.
        """
        waiting: dict[str, int] = {}
        for line, body, count in _bodies(rows):
            first = self._next.get(task, self._first)
            told = self._call("POST", task, body, {"producer": self.producer, "first": first, "line": line})
            self._next[task] = first + count
            waiting = told["waiting"]
        return waiting

    def stats(self, task: str) -> dict[str, Any]:
        """One queue at one moment: `waiting`, `applied`, `dead` and others, see the page of streams.

        :raises NotFound: nothing is called so.
        """
        return self._persist(lambda: self._client.call("GET", f"/v1/queues/{quote(task, safe='')}"))

    def _call(self, method: str, task: str, body: bytes, query: dict[str, Any]) -> Any:
        return self._persist(lambda: self._client.call(method, f"/v1/queues/{quote(task, safe='')}/samples", body, query=query))

    def _persist(self, once: Callable[[], Any]) -> Any:
        return persist(once, Deadline(self._clock, self._patience, "the stream"), self._rng, most=1.0)


def _bodies(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, bytes, int]]:
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        yield start + 1, b"".join(json.dumps(dict(row), ensure_ascii=False).encode() + b"\n" for row in part), len(part)
