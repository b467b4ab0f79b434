"""What flows through a stream in chaos: samples that a producer can make anew from their numbers, and a model of a few numbers."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from queues.stream.create import create
from queues.stream.home import StreamHome
from queues.stream.model import Learner
from queues.stream.spec import StreamSpec
from tasks import encoders
from tasks.specs import EncoderSpec, Module

ENCODER = Path(__file__).parents[2] / "examples" / "vector_encoder" / "encoder.py"

WIDTH = 4

SIZES = {"alarm": 4, "heat": 3}
"""Tasks and their batch sizes."""

LEASE = 2.0
"""Seconds of a worker's silence."""


def spec(mode: str) -> StreamSpec:
    """The declaration.

    :param mode: each, together.
    """
    kinds: dict[str, dict[str, Any]] = {"alarm": {"head": "single", "labels": ["no", "yes"]}, "heat": {"head": "regression"}}
    tasks = [
        {"name": name, "encoder": "sensor", "fields": ["x"], "label": "y", "batch_size": size, **kinds[name]}
        for name, size in SIZES.items()
    ]
    table = {
        "name": "chaos",
        "encoder": "sensor",
        "tasks": tasks,
        "queues": {"lease_seconds": LEASE, "attempts": 4},
        "learning": {"warmup_steps": 0, "learning_rate": 0.01, "head_learning_rate": 0.01},
        "store": {"checkpoint_steps": 50, "checkpoint_seconds": 5.0, "staleness": 3, "checkpoints": 3},
        "together": {"mode": mode, "wait_seconds": 1.0},
        "evaluate_steps": 0,
    }
    return StreamSpec.model_validate_json(json.dumps(table))


def make(folder: Path, mode: str) -> StreamHome:
    """A new stream's folder."""
    source = Module(path=f"{ENCODER}:Perceptron", options={"width": WIDTH, "hidden": 8, "dropout": 0.1})
    made = folder.parent / "encoder"
    encoders.create(EncoderSpec(name="sensor", type="sensor", source=source, shape=(WIDTH,)), made, [])
    return create(folder, spec(mode), made, modules=[ENCODER])


def learner(home: StreamHome) -> Learner:
    return Learner(home.spec, home.encoder, [home.modules])


def samples(of: Learner, task: str, producer: int, first: int, count: int) -> list[bytes]:
    """Those with these numbers, packed; all different, whoever pushes them."""
    rows = [_row(task, producer, number) for number in range(first, first + count)]
    return of.packers[task].pack(rows)


def _row(task: str, producer: int, number: int) -> dict[str, Any]:
    x = [math.sin(0.37 * number), math.cos(0.11 * number), number / 2**17, float(producer)]
    return {"x": x, "y": ("no", "yes")[number % 2] if task == "alarm" else math.sin(0.05 * number)}


def named(of: Learner, totals: Sequence[dict[str, int]]) -> dict[str, dict[bytes, tuple[int, int]]]:
    """By task: of each sample, which producer's it is, and its number there.

    :param totals: of each producer, how many samples it pushed into each task.
    """
    return {
        task: {
            sample: (producer, number)
            for producer, pushed in enumerate(totals)
            for number, sample in enumerate(samples(of, task, producer, 1, pushed.get(task, 0)), 1)
        }
        for task in SIZES
    }
