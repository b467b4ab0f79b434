"""Streams and rounds of one encoder: a `World` of children, and a stream that a real process serves."""

import csv
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from child import streamed
from child.handlers import Child, open_child
from child.home import ChildHome
from child.registry import Registry
from master.meeting import Meeting
from master.phases.play import Play
from queues.stream.create import create
from queues.stream.home import StreamHome
from queues.stream.join import join
from queues.stream.spec import StreamSpec
from queues.stream.worker import Worker
from tests.support.served import Served
from tests.support.world import World
from trunkline.clock import SystemClock
from trunkline.errors import TrunklineError
from trunkline.sets import SetFile
from trunkline.tensors import Array

SGD = {"optimizer": "sgd", "clip_norm": 0.0, "weight_decay": 0.0, "learning_rate": 0.1, "head_learning_rate": 0.1}
"""Of rounds and of streams alike."""

TASK = {"name": "sentiment", "head": "single", "fields": ["text"], "label": "label", "labels": ["negative", "positive"]}


def declared(batch_size: int, **change: Any) -> StreamSpec:
    """A stream of one task that learns by plain SGD."""
    table = {
        "name": "reviews",
        "encoder": "tiny",
        "tasks": [TASK | {"batch_size": batch_size}],
        "learning": SGD | {"warmup_steps": 0},
        "evaluate_steps": 0,
        **change,
    }
    return StreamSpec.model_validate_json(json.dumps(table))


def stream_at(
    folder: Path, world: World, spec: StreamSpec, since: int | None = None, rows: Mapping[str, str] | None = None
) -> StreamHome:
    """The folder of a stream of a world's encoder, as its first version is."""
    files = {path.name: path for path in sorted((world.folder / "encoder").iterdir()) if path.is_file()}
    return create(folder, spec, files, since=since, rows=rows)


def rows(path: Path, split: str = "train") -> bytes:
    """The rows of a file of reviews, as JSON Lines."""
    with path.open(encoding="utf-8", newline="") as file:
        kept = [row for row in csv.DictReader(file) if row["split"] == split]
    return b"".join(json.dumps({"text": row["text"], "label": row["label"]}).encode() + b"\n" for row in kept)


def push(stream: Served, lines: bytes) -> int:
    """Push samples; tell how many."""
    return int(stream.call("POST", "queues/sentiment/samples", lines)["samples"])


def drained(stream: Served, until: Callable[[dict[str, int]], bool]) -> None:
    """Have a worker of this process compute until the queue's counts are as wanted."""
    worker = join(stream.home, threads=1)
    try:
        stream.wait("the samples to be applied", lambda: _drain(worker, stream, until))
    finally:
        worker.close()


def _drain(worker: Worker, stream: Served, until: Callable[[dict[str, int]], bool]) -> bool:
    worker.drain(seconds=5.0)
    return until(stream.counts("sentiment"))


def meeting(world: World, home: StreamHome, seconds: float = 30.0) -> Meeting:
    return Meeting(home, world.ledger, world.blobs, SystemClock(), seconds)


def with_stream(play: Play, met: Meeting) -> Play:
    """A job of `job start --stream`."""
    return replace(play, stream=met)


def shared_now(stream: Served, to: Path) -> dict[str, Array]:
    """The shared parameters of a stream, as it has them now."""
    with stream.client.talk("GET", "/v1/snapshot") as answer:
        to.write_bytes(b"".join(answer.chunks))
    with SetFile(to) as file:
        return file.tensors()


def furthest(found: dict[str, Array], wanted: dict[str, Array]) -> float:
    """The largest difference of any number, of sets of the same names."""
    assert set(found) == set(wanted)
    return max(float(np.abs(found[name].astype(np.float64) - wanted[name]).max()) for name in wanted)


def fed_child(world: World, name: str, stream: StreamHome) -> Child:
    """A child whose one task comes through the queue of its stream, which lies in its folder."""
    home = ChildHome(world.folder / "children" / name)
    registry = Registry(home)
    registry.add(streamed.of_stream(home, stream.folder.name, "sentiment"), replace=True)
    streamed.attach(home, stream.folder.name, True)
    child = open_child(home.folder, world.transfer(name), name=name, clock=SystemClock())
    world.children[name] = child
    return child


@contextmanager
def working(home: StreamHome) -> Iterator[Worker]:
    """A worker in a thread of this process, that drains again and again."""
    worker, stopping = join(home, threads=1), threading.Event()

    def run() -> None:
        while not stopping.is_set():
            with suppress(TrunklineError):
                worker.drain(stopping.is_set)
            stopping.wait(0.02)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield worker
    finally:
        stopping.set()
        thread.join(30)
        worker.close()
