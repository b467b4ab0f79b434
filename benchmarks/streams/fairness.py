"""A task that is flooded and one that has a batch now and then: how long the slow one waits for its turn, under each policy."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from benchmarks.figures import Aim, Note, Section
from benchmarks.streams.latency import part
from queues.connection import connect
from queues.embedded import EmbeddedServer
from queues.redis import RedisQueues
from queues.settings import Policy, QueueSettings, StreamSettings
from trunkline.clock import Clock

BATCH, BACKLOG = 8, 200
"""Samples of a batch; batches that the flooded queue holds at any time."""

STEP, FLUSH = 0.030, 0.200
"""Seconds of a worker's step; after which the slow task's samples make a short batch."""

PRIORITY = 5
"""Of the slow task, under the policy `priority`; the flood has 0."""

COLUMNS = ("policy", "of the slow task", "times", "median, steps", "95 in 100, steps", "worst, steps", "flood, batches/s")

ABOUT = """One worker, whose every step takes {step:.0f} ms, two tasks with batches of {batch}. The flooded one has {backlog}
batches waiting at any time. The slow one gets a *full batch* now and then, whose wait is from before the push until it is
claimed, in steps; or *one sample*, which a flush after {flush:.0f} ms makes a short batch of: its wait is what goes beyond
those. One step is under way when a batch comes: who waits for its end alone waits for at most one. Under `arrival` the flood's
next batch has been there for longer, so it comes before: two at most. `proportional` and `temperature` give turns by the
samples that were pushed, as they are asked to: a slow task that wants its next batch soon is not served well there."""

PROMISED: Mapping[Policy, float] = {"arrival": 2.0, "equal": 1.0, "priority": 1.0}
"""Steps that the slow task's batch waits at most."""

MARGIN = 0.25
"""Of a step: what the claims and a sleep's end take."""

LONG, FEW = ("proportional", "temperature"), 2
"""Policies under which a turn takes its time, and how often it is waited for."""


@dataclass(frozen=True, slots=True)
class Waited:
    """What the slow task waited, under one policy."""

    steps: Sequence[float]
    flood: float  # batches of the other a second


def measure(times: int, folder: Path, clock: Clock, note: Note, policies: Sequence[Policy] = ()) -> Section:
    """The policies (none named: all of them), with full batches and with flushed ones."""
    server = EmbeddedServer(folder / "redis", clock=clock, durable=False)
    server.start()
    found: dict[tuple[Policy, bool], Waited] = {}
    try:
        for policy in policies or get_args(Policy):
            for flushed in (False, True):
                some = min(times, FEW) if policy in LONG else times
                found[policy, flushed] = _Flood(server.url, policy, flushed).waits(some)
            note(f"fairness: {policy}, 95 in 100 within {part(found[policy, False].steps, 0.95):.2f} steps")
    finally:
        server.stop()
    rows = [
        (
            f"`{policy}`",
            "one sample, flushed" if flushed else "a full batch",
            f"{len(one.steps)}",
            *(f"{part(one.steps, share):.2f}" for share in (0.5, 0.95, 1.0)),
            f"{one.flood:.1f}",
        )
        for (policy, flushed), one in found.items()
    ]
    about = ABOUT.format(step=1e3 * STEP, batch=BATCH, backlog=BACKLOG, flush=1e3 * FLUSH)
    return Section("A flooded task and a slow one", about, COLUMNS, rows, aims(found))


def aims(found: Mapping[tuple[Policy, bool], Waited]) -> list[Aim]:
    """What the slow task is promised."""
    return [
        Aim.at_most(
            f"wait of the slow task, 95 in 100, `{policy}`, {'one sample, beyond its flush' if flushed else 'a full batch'}",
            part(one.steps, 0.95),
            PROMISED[policy] + MARGIN,
            "steps",
        )
        for (policy, flushed), one in found.items()
        if policy in PROMISED
    ]


class _Flood:
    """One policy, on queues of its own."""

    def __init__(self, url: str, policy: Policy, flushed: bool) -> None:
        self.flushed = flushed
        self._clients = [connect(url) for _ in range(3)]
        self._queues = [RedisQueues(client, f"fair-{policy}-{flushed}", worker="one") for client in self._clients]
        first = self._queues[0]
        first.begin("benchmark", StreamSettings(policy=policy))
        first.configure("flood", QueueSettings(batch_size=BATCH))
        first.configure("slow", QueueSettings(batch_size=BATCH, priority=PRIORITY, flush_seconds=FLUSH if flushed else 0.0))
        self._claimed: list[float] = []
        self._floods = 0
        self._heard = threading.Condition()
        self._ended = threading.Event()

    def waits(self, times: int) -> Waited:
        """So many batches of the slow task."""
        _, queues, _ = self._queues
        threads = [threading.Thread(target=work, daemon=True) for work in (self._flood, self._work)]
        for thread in threads:
            thread.start()
        found, began = [], time.monotonic()
        try:
            for number in range(times):
                time.sleep(STEP * (1.5 + number * 0.37 % 1.0))  # at any moment of a step
                pushed = time.monotonic()
                queues.push("slow", [b"sample"] * (1 if self.flushed else BATCH))
                with self._heard:
                    if not self._heard.wait_for(lambda: len(self._claimed) > number, 120.0):  # noqa: B023
                        raise TimeoutError("the slow task should have its turn within two minutes, found that it had not.")
                    found.append((self._claimed[number] - pushed - (FLUSH if self.flushed else 0.0)) / STEP)
        finally:
            self._ended.set()
            for thread in threads:
                thread.join(30.0)
            for client in self._clients:
                client.close()
        return Waited(found, self._floods / (time.monotonic() - began))

    def _flood(self) -> None:
        queues = self._queues[0]
        while not self._ended.is_set():
            missing = BACKLOG * BATCH - queues.counts("flood").queued
            if missing > 0:
                queues.push("flood", [b"sample"] * missing)
            time.sleep(STEP)

    def _work(self) -> None:
        queues, step = self._queues[2], 0
        while not self._ended.is_set():
            claim = queues.claim()
            if claim is None:
                time.sleep(0.001)
                continue
            with self._heard:
                if claim.task == "slow":
                    self._claimed.append(time.monotonic())
                    self._heard.notify_all()
                else:
                    self._floods += 1
            time.sleep(STEP)
            step += 1
            queues.commit(claim, step)
            queues.release(step)
