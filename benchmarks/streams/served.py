"""A stream as a person has it: its server, its server of queues and its workers are processes."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine
from master.demo.processes import Processes
from queues.connection import Client, connect
from queues.redis import RedisQueues
from queues.store.reader import FileReader
from queues.stream.create import create
from queues.stream.home import StreamHome
from queues.stream.spec import StreamSpec
from trunkline.clock import Clock, Deadline
from trunkline.errors import Unreachable

ROOT = Path(__file__).parents[2]

STARTING = 180.0
"""Seconds that a process may take until it works."""

LOOK = 0.002
"""Seconds between two looks at the step."""

SENTIMENT: Mapping[str, Any] = {
    "name": "sentiment",
    "head": "single",
    "fields": ["text"],
    "label": "label",
    "labels": ["negative", "positive"],
    "batch_size": 32,
    "max_length": 64,
}
"""A task on the reviews that come with Trunkline."""


def declared(tasks: Sequence[Mapping[str, Any]], **change: Any) -> StreamSpec:
    """A stream that moves its parameters from the first step on, and looks at no held-out rows."""
    learning = {"warmup_steps": 0, **change.pop("learning", {})}
    table = {"name": "measured", "encoder": "measured", "tasks": list(tasks), "evaluate_steps": 0, "learning": learning, **change}
    return StreamSpec.model_validate_json(json.dumps(table))


@dataclass
class Served:
    """One that is served."""

    home: StreamHome
    processes: Processes
    clock: Clock
    client: Client
    queues: RedisQueues
    store: FileReader
    pids: dict[str, int] = field(default_factory=dict)  # of its processes, by name

    def work(self, name: str, times: Path | None = None) -> None:
        """Start a worker.

        :param times: where it writes down when each gradient began.
        """
        command = [sys.executable, "-P", "-m", "benchmarks.streams.worker", str(self.home.folder)]
        self.pids[name] = self.processes.start(name, [*command, *(["--times", str(times)] if times else [])]).pid

    def push(self, samples: Sequence[bytes], task: str = "sentiment") -> None:
        """Into the queue of a task."""
        self.queues.push(task, samples)

    def settle(self, step: int, seconds: float = STARTING) -> float:
        """Wait until a step was made; tell when, in seconds of the machine's own clock.

        :raises FailedError: a process ended.
        :raises DeadlineExceeded: it was not made in time.
        """
        deadline = Deadline(self.clock, seconds, f"step {step} of the stream")
        while self.store.step() < step:
            deadline.check()
            self.processes.check()
            self.clock.sleep(LOOK)
        return time.monotonic()


@contextmanager
def served(folder: Path, spec: StreamSpec, encoder: Path, clock: Clock, modules: Sequence[Path] = ()) -> Iterator[Served]:
    """A stream of its own, without workers yet; all its processes end with the block.

    :param encoder: a folder as `tasks.encoders.create` writes it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {path.name: path for path in encoder.iterdir() if path.is_file()}
    home = create(folder / "stream", spec, files, modules=modules)
    environment = {**machine.environment(), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with Processes(folder, clock, environment) as processes:
        server = processes.start("server", [sys.executable, "-P", "-m", "queues.stream", str(home.folder)])
        url, store = _begun(home, processes, clock), FileReader(home.store, clock=clock)
        client = connect(url)
        try:
            queues = RedisQueues(client, spec.name, epoch=home.epoch)
            yield Served(home, processes, clock, client, queues, store, {"server": server.pid})
        finally:
            client.close()


def _begun(home: StreamHome, processes: Processes, clock: Clock) -> str:
    """The address of its Redis, as soon as all of it answers."""
    deadline = Deadline(clock, STARTING, "the server of the stream")
    while True:
        deadline.check()
        processes.check()
        found = home.server()
        if found is not None and home.socket.exists():
            try:
                FileReader(home.store).step()
                return str(found["redis"])
            except Unreachable:
                pass
        clock.sleep(0.05)
