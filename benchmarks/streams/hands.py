"""One side of a measured queue: a process that pushes, or one that takes. `python -m benchmarks.streams.hands`.

It reads its order as a line of JSON, says `ready`, waits for another line, works, and tells its seconds as JSON. Ways:

ours         `RedisQueues.push`; `claim`, then `commit`
whole        the same with all that a worker and the server of a stream say: `claim`, `submit`, `commit`, now and then `release`
single       a pipeline of `RPUSH`, one a sample; a pipeline of `LPOP`, one a sample
several      `RPUSH` with many samples, `LPOP` with a count, in pipelines: the least that a list can cost
"""

import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from queues.connection import Client, connect
from queues.redis import RedisQueues
from trunkline.errors import QueueFull

WAYS = ("ours", "whole", "single", "several")

TASK, LIST = "task", "list"
"""The names of the queue and of the plain list."""

PUSH = 1000
"""Samples of one push, and of one pipeline on either side."""

RELEASE = 64
"""Batches after which their samples are let go, as a checkpoint does."""

PAUSE = 0.0005
"""Seconds that who takes waits where nothing is there."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to do."""

    side: str  # push or take
    way: str
    url: str
    stream: str
    count: int  # samples, a multiple of `batch`
    batch: int
    size: int  # bytes of a sample


@dataclass(frozen=True, slots=True)
class Spent:
    """What it took."""

    began: float  # seconds of the machine's own clock
    ended: float
    cpu: float  # seconds of this process


def main() -> int:
    """Carry out one order."""
    order = Order(**json.loads(sys.stdin.readline()))
    work = prepared(order)
    print("ready", flush=True)
    sys.stdin.readline()
    began, cpu = time.monotonic(), time.process_time()
    work()
    print(json.dumps(asdict(Spent(began, time.monotonic(), time.process_time() - cpu))), flush=True)
    return 0


def prepared(order: Order) -> Callable[[], None]:
    """The work of an order, connected, its samples made."""
    client = connect(order.url)
    queues = RedisQueues(client, order.stream, worker="benchmark")
    if order.side == "push":
        samples = made(order.count, order.size)
        if order.way in ("ours", "whole"):
            return lambda: _push(queues, samples)
        return lambda: _push_plain(client, samples, 1 if order.way == "single" else PUSH)
    if order.way in ("ours", "whole"):
        return lambda: _take(queues, order)
    return lambda: _take_plain(client, order)


def made(count: int, size: int) -> list[bytes]:
    """Samples of random bytes."""
    source = random.Random(0)
    return [source.randbytes(size) for _ in range(count)]


def _push(queues: RedisQueues, samples: Sequence[bytes]) -> None:
    for first in range(0, len(samples), PUSH):
        while True:
            try:
                queues.push(TASK, samples[first : first + PUSH], producer="benchmark", first=first + 1)
                break
            except QueueFull:
                time.sleep(PAUSE)


def _push_plain(client: Client, samples: Sequence[bytes], each: int) -> None:
    for first in range(0, len(samples), PUSH):
        piece = samples[first : first + PUSH]
        with client.pipeline(transaction=False) as pipeline:
            for start in range(0, len(piece), each):
                pipeline.rpush(LIST, *piece[start : start + each])
            pipeline.execute()


def _take(queues: RedisQueues, order: Order) -> None:
    taken = step = 0
    while taken < order.count:
        claim = queues.claim()
        if claim is None:
            time.sleep(PAUSE)
            continue
        taken, step = taken + len(claim.samples), step + 1
        if order.way == "whole":
            queues.submit(claim)
        queues.commit(claim, step)
        if step % RELEASE == 0:
            queues.release(step)
    queues.release(step)


def _take_plain(client: Client, order: Order) -> None:
    taken = 0
    each = None if order.way == "single" else order.batch
    while taken < order.count:
        with client.pipeline(transaction=False) as pipeline:
            for _ in range(PUSH // (each or 1)):
                pipeline.lpop(LIST, each)
            found: list[Any] = pipeline.execute()
        got = sum(1 if isinstance(one, bytes) else len(one) for one in found if one is not None)
        taken += got
        if not got:
            time.sleep(PAUSE)


def spent(line: str) -> Spent:
    """What a process told."""
    found: Mapping[str, float] = json.loads(line)
    return Spent(**found)


if __name__ == "__main__":
    sys.exit(main())
