"""From the push that fills a batch to the start of its gradient, with a worker that has nothing else to do.

python -m benchmarks.latency [BATCHES]

The stream's server, its Redis and one worker are processes, as they are for a user; the model is a small perceptron, so that the
way is timed and not the work. Both ends read the one clock of this machine that all processes share.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.machine import load
from queues import doorbell
from queues.redis import RedisQueues, connect
from queues.stream.home import StreamHome
from queues.stream.join import join
from queues.stream.model import Learner
from queues.stream.spec import StreamSpec
from tasks import encoders
from tasks.specs import EncoderSpec, Module

AIM = 0.050
"""Seconds that 95 of 100 batches should stay below."""

BATCH = 32

NETWORK = """
from torch import nn

class Net(nn.Sequential):
    hidden = 32

    def __init__(self):
        super().__init__(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32))
"""


def made(folder: Path) -> StreamHome:
    """A stream of one task of vectors."""
    home = StreamHome(folder)
    home.modules.mkdir(parents=True)
    (home.modules / "net.py").write_text(NETWORK, encoding="utf-8")
    source = Module(path=f"{home.modules / 'net.py'}:Net")
    encoders.create(EncoderSpec(name="net", type="vector", source=source, shape=(16,)), home.encoder, [home.modules])
    task = {"name": "value", "encoder": "vector", "head": "regression", "fields": ["x"], "label": "y", "batch_size": BATCH}
    table = {"name": "latency", "encoder": "net", "tasks": [task], "evaluate_steps": 0}
    home.create(StreamSpec.model_validate_json(json.dumps(table)))
    return home


def worker(folder: Path) -> None:
    """The worker's process: it writes down when each gradient begins."""
    home = StreamHome(folder)

    def make() -> Any:
        found = join(home, threads=1)
        whole = found.learner.gradient

        def noted(*arguments: Any) -> Any:
            with (home.folder / "begun").open("a") as file:
                file.write(f"{time.monotonic_ns()}\n")
            return whole(*arguments)

        found.learner.gradient = noted  # type: ignore[method-assign]
        return found

    doorbell.work(doorbell.station_of(home, make))


def measure(folder: Path, batches: int) -> list[float]:
    """Seconds of each batch, the first three left out."""
    home, rng = made(folder), random.Random(0)
    packer = Learner(home.spec, home.encoder, [home.modules]).packers["value"]
    samples = packer.pack([{"x": [rng.gauss(0, 1) for _ in range(16)], "y": rng.gauss(0, 1)} for _ in range(BATCH)])
    processes = [subprocess.Popen([sys.executable, "-m", "queues.stream", str(home.folder)], stdin=subprocess.DEVNULL)]
    try:
        _until(lambda: home.server() is not None)
        processes.append(subprocess.Popen([sys.executable, "-m", "benchmarks.latency", "--worker", str(home.folder)]))
        client = connect((home.server() or {})["redis"])
        queues, took = RedisQueues(client, "latency", epoch=home.epoch), []
        for number in range(batches + 3):
            queues.push("value", samples[:-1])
            time.sleep(rng.uniform(0.2, 0.6))  # so that nothing of the last batch is under way
            begun = time.monotonic_ns()
            queues.push("value", samples[-1:])
            _until(lambda number=number: queues.counts("value").applied == BATCH * (number + 1))
            took.append((int((home.folder / "begun").read_text().split()[-1]) - begun) / 1e9)
        client.close()
        return took[3:]
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(60)


def _until(look: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not look():
        if time.monotonic() > end:
            raise SystemExit("what should have come did not")
        time.sleep(0.002)


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        worker(Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        took = measure(Path(folder) / "latency", int(sys.argv[1]) if sys.argv[1:] else 100)
    cuts = quantiles(took, n=100)
    print(f"{len(took)} batches: p50 {1e3 * cuts[49]:.1f} ms, p95 {1e3 * cuts[94]:.1f} ms, most {1e3 * max(took):.1f} ms")
    print(f"aim: p95 of at most {1e3 * AIM:.0f} ms; load of the machine: {load()}")


if __name__ == "__main__":
    main()
