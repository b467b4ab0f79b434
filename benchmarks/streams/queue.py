"""What a sample costs that goes through a queue and trains nothing, beside what it costs in a plain list of the same server."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figures import Aim, Note, Section
from benchmarks.streams.hands import TASK, WAYS, Order, Spent, spent
from queues.connection import Client, connect
from queues.embedded import EmbeddedServer
from queues.redis import RedisQueues
from queues.settings import QueueSettings
from trunkline.clock import Clock
from trunkline.errors import FailedError

BATCH, SIZE = 32, 140
"""Samples of a batch, and bytes of a sample: 64 tokens."""

SERVER, RATE, SHARE = 25.0, 50_000.0, 0.5
"""Microseconds of the server a sample at most; samples a second, and their share of the plain list's, at least."""

NAMES: Mapping[str, str] = {
    "ours": "queue: push, claim, commit",
    "whole": "queue: push, claim, submit, commit, release",
    "single": "list: RPUSH and LPOP of a sample",
    "several": "list: RPUSH of 1,000, LPOP of 32",
}

COLUMNS = ("way", "on the disk", "samples/s", "server, us", "producer, us", "consumer, us")

ABOUT = """{count} samples of {size} bytes in batches of {batch}, from one producer to one consumer, each a process in Python,
through the server that comes with Trunkline, over its socket; all of it at once; median of {repeats}. Processor time in
microseconds a sample, the server's as it tells itself. Pushes, and pipelines of the plain list, are of 1,000 samples. A list
gives no lease, no attempt, no order among tasks, and forgets what it handed out. *Always*: each command is on the disk before
it is answered, as Trunkline sets it up, so a consumer that asks twice a batch waits for the disk twice ({flush:.2f} ms each,
when nothing else writes); a pipeline waits once for all of its commands. *Each second*: a power cut takes what came since;
there {more} times as many samples were carried."""

MORE = 6
"""Times as many samples where the disk is not waited for."""

_streams = count()


@dataclass(frozen=True, slots=True)
class Carried:
    """One way, measured."""

    seconds: float
    server: float  # of its processor
    producer: float
    consumer: float
    count: int

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.count / self.seconds

    @property
    def each(self) -> tuple[float, float, float]:
        """Microseconds of server, producer and consumer a sample."""
        return (1e6 * self.server / self.count, 1e6 * self.producer / self.count, 1e6 * self.consumer / self.count)


def measure(samples: int, repeats: int, folder: Path, clock: Clock, note: Note) -> Section:
    """Every way, on a server of each kind."""
    found: dict[tuple[str, bool], Carried] = {}
    for durable in (True, False):
        server = EmbeddedServer(folder / f"redis-{'always' if durable else 'second'}", clock=clock, durable=durable)
        server.start()
        try:
            runs: dict[str, list[Carried]] = {way: [] for way in WAYS}
            for _ in range(repeats):
                for way in WAYS:  # in turns: what else the machine does meets all of them
                    runs[way].append(carried(server.url, way, samples if durable else MORE * samples))
        finally:
            server.stop()
        for way, made in runs.items():
            found[way, durable] = usual(made)
            note(f"queue: {way}, {'always' if durable else 'each second'}: {found[way, durable].rate:.0f} samples/s")
    rows = [_row(way, durable, one) for (way, durable), one in found.items()]
    flush = flushing(folder)
    about = ABOUT.format(count=f"{samples:,}", size=SIZE, batch=BATCH, repeats=repeats, flush=1e3 * flush, more=MORE)
    return Section("Queue", about, COLUMNS, rows, aims(found, flush))


def flushing(folder: Path, times: int = 30) -> float:
    """Seconds until a few bytes more of a file are on the disk, median."""
    took = []
    with (folder / "flushed").open("ab", buffering=0) as file:
        for _ in range(times):
            file.write(bytes(SIZE))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return median(took)


def carried(url: str, way: str, samples: int) -> Carried:
    """Carry samples from one process to another.

    :raises FailedError: a process ended too soon, or a sample is left.
    """
    samples = BATCH * (samples // BATCH)
    client = connect(url)
    stream = f"benchmark-{next(_streams)}"
    try:
        queues = RedisQueues(client, stream)
        queues.begin("benchmark")
        queues.configure(TASK, QueueSettings(batch_size=BATCH, most=1_000_000))
        orders = [Order(side, way, url, stream, samples, BATCH, SIZE) for side in ("take", "push")]
        before = server_cpu(client)
        taker, pusher = _both(orders)
        server = server_cpu(client) - before
        left = queues.counts(TASK)
        if way in ("ours", "whole") and (left.applied != samples or not left.conserved):
            raise FailedError(f"{samples} samples should have been carried, found {left}.")
        client.flushall()
    finally:
        client.close()
    return Carried(taker.ended - pusher.began, server, pusher.cpu, taker.cpu, samples)


def _both(orders: Sequence[Order]) -> list[Spent]:
    """Two processes that begin together."""
    command = [sys.executable, "-P", "-m", "benchmarks.streams.hands"]
    root = Path(__file__).parents[2]
    hands = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) for _ in orders]
    try:
        for hand, order in zip(hands, orders, strict=True):
            _say(hand, json.dumps(asdict(order)))
        for hand in hands:
            if _hear(hand).strip() != "ready":
                raise FailedError("a process of the measurement should be ready, found that it ended.")
        for hand in hands:
            _say(hand, "go")
        return [spent(_hear(hand)) for hand in hands]
    finally:
        for hand in hands:
            hand.kill()
            hand.communicate()


def _say(hand: "subprocess.Popen[str]", line: str) -> None:
    assert hand.stdin
    hand.stdin.write(line + "\n")
    hand.stdin.flush()


def _hear(hand: "subprocess.Popen[str]") -> str:
    assert hand.stdout
    line = hand.stdout.readline()
    if not line:
        raise FailedError("a process of the measurement should tell what it took, found that it ended.")
    return line


def server_cpu(client: Client) -> float:
    """Seconds of the server's processor, all of its threads."""
    info: Any = client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def usual(runs: Sequence[Carried]) -> Carried:
    """The run in the middle, by its seconds; of the rest the medians."""
    return Carried(
        median(run.seconds for run in runs),
        median(run.server for run in runs),
        median(run.producer for run in runs),
        median(run.consumer for run in runs),
        runs[0].count,
    )


def _row(way: str, durable: bool, one: Carried) -> tuple[str, ...]:
    return (NAMES[way], "always" if durable else "each second", f"{one.rate:,.0f}", *(f"{value:.1f}" for value in one.each))


def aims(found: Mapping[tuple[str, bool], Carried], flush: float) -> list[Aim]:
    """What the queue is held to: as Trunkline sets its server up, and without the disk.

    :param flush: seconds that the disk takes.
    """
    made = []
    for durable, when in ((True, "each command on the disk first"), (False, "on the disk each second")):
        ours, plain = found["ours", durable], found["single", durable]
        waits = f"the consumer waits twice a batch for a disk that takes {1e3 * flush:.2f} ms." if durable else ""
        made += [
            Aim.at_most(f"processor time of the server a sample, {when}", ours.each[0], SERVER, "us"),
            Aim(f"samples a second, {when}", ours.rate, RATE, "", waits),
            Aim(f"samples a second, {when}, by those of a list in pipelines", ours.rate / plain.rate, SHARE, "x", waits),
        ]
    return made
