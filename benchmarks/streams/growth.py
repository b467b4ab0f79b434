"""Whether memory stays as it is over ten thousand batches: of the server of a stream, of its worker, of its Redis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.figures import Aim, Note, Section
from benchmarks.streams import subject
from benchmarks.streams.served import Served, declared, served
from queues.store.applied import REMEMBERED
from queues.stream.model import Learner
from queues.stream.spec import StreamSpec
from trunkline.clock import Clock

LIMIT = 5.0
"""MB that a process may grow by."""

BATCH, LOOKS = 4, 20
"""Samples of a batch; looks at the memory after the warm-up."""

BEFORE = {"server": "server of the stream", "worker": "worker", "redis": "server of the queues"}

COLUMNS = ("process", "after the warm-up, MB", "at the end, MB", "growth, MB", "growth in the second half, MB")

ABOUT = """{batches:,} batches of {batch} samples through a network of 144 numbers, after {warm:,} that are the warm-up, with
one worker, a checkpoint each {checkpoint} steps, and the record of what was applied switched on. Resident memory of each
process, as the system tells it, which counts mapped files; the first and the last figure are medians of three looks of {looks}."""


@dataclass(frozen=True, slots=True)
class Grown:
    """Resident bytes of one process, look by look."""

    looks: Sequence[int]

    @property
    def first(self) -> float:
        """MB after the warm-up."""
        return median(self.looks[:3]) / 1e6

    @property
    def middle(self) -> float:
        """MB half way."""
        half = len(self.looks) // 2
        return median(self.looks[half - 1 : half + 2]) / 1e6

    @property
    def last(self) -> float:
        """MB at the end."""
        return median(self.looks[-3:]) / 1e6


def measure(batches: int, folder: Path, clock: Clock, note: Note) -> Section:
    """Push, let them be trained on, look; again and again."""
    modules = folder / "modules"
    encoder = subject.small(folder / "encoder", modules)
    task = {"name": "numbers", "encoder": "vector", "head": "regression", "fields": ["x"], "label": "y", "batch_size": BATCH}
    spec = declared([task])
    each, warm = max(1, batches // LOOKS), max(1, batches // 5)
    with served(folder, spec, encoder, clock, [modules / "small.py"]) as stream:
        samples = _packed(spec, encoder, modules, each * BATCH)
        stream.work("worker")
        looks: dict[str, list[int]] = {name: [] for name in BEFORE}
        _carry(stream, samples, -(-warm // each))
        for number in range(LOOKS):
            for name, pid in (stream.pids | {"redis": _redis(stream)}).items():
                looks[name].append(resident(pid))
            _carry(stream, samples, 1)
            if number % 5 == 4:
                note(f"growth: {(number + 1) * each} batches, {looks['server'][-1] / 1e6:.1f} MB of the server")
    found = {name: Grown(of) for name, of in looks.items()}
    about = ABOUT.format(
        batches=each * LOOKS, batch=BATCH, warm=each * -(-warm // each), checkpoint=spec.store.checkpoint_steps, looks=LOOKS
    )
    return Section("Memory over many batches", about, COLUMNS, rows(found), aims(found))


def _packed(spec: StreamSpec, encoder: Path, modules: Path, count: int) -> list[bytes]:
    source = np.random.default_rng(0)
    rows = [{"x": source.standard_normal(8).tolist(), "y": float(source.standard_normal())} for _ in range(count)]
    return Learner(spec, encoder, [modules]).packers["numbers"].pack(rows)


def _carry(stream: Served, samples: Sequence[bytes], times: int) -> None:
    for _ in range(times):
        before = stream.store.step()
        stream.push(samples, "numbers")
        stream.settle(before + len(samples) // BATCH, 1800.0)


def _redis(stream: Served) -> int:
    return int((stream.home.redis / "redis.pid").read_text(encoding="ascii"))


def resident(pid: int) -> int:
    """Bytes of a process that are in memory."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    raise ValueError(f"process {pid} should tell its memory, found nothing.")


def rows(found: Mapping[str, Grown]) -> list[tuple[str, ...]]:
    """A process each."""
    return [
        (BEFORE[name], f"{one.first:.1f}", f"{one.last:.1f}", f"{one.last - one.first:+.1f}", f"{one.last - one.middle:+.1f}")
        for name, one in found.items()
    ]


def aims(found: Mapping[str, Grown]) -> list[Aim]:
    """What server and worker are held to."""
    reasons = {"server": f"until it remembers {REMEMBERED:,} batches, each that it applied takes some of its memory."}
    return [
        Aim.at_most(f"growth of the {BEFORE[name]}", one.last - one.first, LIMIT, "MB", reasons.get(name, ""))
        for name, one in found.items()
        if name != "redis"
    ]
