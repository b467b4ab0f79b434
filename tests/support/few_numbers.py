"""A stream whose model is a few numbers: each task fits `(shared + head) . features(sample)` to a target, its gradient written out.

Nothing here knows queues' scripts, the record or the server: `loop` is a plain loop over batches, for what those should come to.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from queues.queue import Claim
from queues.store.memory import MemoryStore
from queues.store.store import Rows, Sent, StoreReader
from queues.stream.home import StreamHome
from queues.stream.spec import StreamSpec

WIDTH = 8


def spec(tasks: Mapping[str, int], **change: Any) -> StreamSpec:
    """Tasks and their batch sizes."""
    table = {
        "name": "numbers",
        "encoder": "none",
        "tasks": [
            {"name": name, "head": "regression", "fields": ["x"], "label": "y", "batch_size": size} for name, size in tasks.items()
        ],
        "learning": {"warmup_steps": 0, "learning_rate": 0.01, "head_learning_rate": 0.02},
        **change,
    }
    return StreamSpec.model_validate_json(json.dumps(table))


def home(folder: Path, of: StreamSpec) -> StreamHome:
    made = StreamHome(folder)
    made.create(of)
    return made


def parameters(of: StreamSpec) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    names = ["shared/w", *(f"head/{task.name}/w" for task in of.tasks)]
    return {name: torch.randn(1, WIDTH, generator=generator) for name in names}


def gradient(values: Mapping[str, Tensor], task: str, samples: Sequence[bytes]) -> tuple[dict[str, Tensor], float]:
    """Of the mean squared error of a batch, and that."""
    numbers = torch.tensor([float(sample.split(b":")[0]) for sample in samples])
    features = torch.sin(numbers[:, None] * torch.arange(1, WIDTH + 1) * 0.37)
    targets = torch.cos(numbers * 0.11)
    wrong = features @ (values["shared/w"] + values[f"head/{task}/w"])[0] - targets
    slope = (wrong[:, None] * features).mean(0)[None]
    return {"shared/w": slope, f"head/{task}/w": slope.clone()}, float((wrong**2).mean() / 2)


def computed(claim: Claim[bytes], store: StoreReader) -> Sent:
    """What a worker hands in."""
    values = {name: torch.zeros(1, WIDTH) for name in ("shared/w", f"head/{claim.task}/w")}
    base = store.read(values)
    tensors, loss = gradient(values, claim.task, claim.samples)
    held: Mapping[str, Tensor | Rows] = dict(tensors)
    return Sent(claim.id, claim.attempt, claim.task, base, len(claim.samples), loss, held)


def loop(of: StreamSpec, batches: Iterable[tuple[str, Sequence[bytes]]]) -> dict[str, Tensor]:
    """The parameters after these batches, one after the other, each computed on what the one before left."""
    store = MemoryStore(of, parameters(of))
    for number, (task, samples) in enumerate(batches):
        store.apply((computed(Claim(str(number), 1, task, tuple(samples)), store.reader()),))
    return values(of, store.reader())


def loop_together(of: StreamSpec, steps: Iterable[Mapping[str, Sequence[bytes]]]) -> dict[str, Tensor]:
    """The parameters after these steps, each of the mean of its tasks' gradients of what they share, and of each head's own."""
    store = MemoryStore(of, parameters(of))
    for number, step in enumerate(steps):
        sent = tuple(computed(Claim(f"{number}/{task}", 1, task, tuple(step[task])), store.reader()) for task in sorted(step))
        shared = [one.tensors["shared/w"] for one in sent]
        mean = sum(tensor / len(sent) for tensor in shared if isinstance(tensor, Tensor))
        store.apply(sent, {"shared/w": torch.as_tensor(mean)})
    return values(of, store.reader())


def values(of: StreamSpec, store: StoreReader) -> dict[str, Tensor]:
    """All parameters of a store."""
    found = {name: torch.zeros(1, WIDTH) for name in parameters(of)}
    store.read(found)
    return found


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]
