"""Training through the queue against a plain loop on the same batches: one worker, and two."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from benchmarks.figures import Aim, Note, Section
from benchmarks.streams import subject
from benchmarks.streams.plain import Loop, PlainLoop
from benchmarks.streams.served import SENTIMENT, STARTING, Served, declared, served
from queues.stream.client import StreamClient
from trunkline.clock import Clock, Deadline

LEAST, TWICE = 95.0, 1.6
"""Percent of the plain loop's samples a second with one worker; times as many with two workers as with one."""

COLUMNS = ("way", "samples/s", "of the plain loop", "of single pairs")

ABOUT = """{model}, nothing frozen, batches of {batch}, at most 64 tokens, float32, dropout on; {steps} batches a run. The
plain loop has the same batches ready in memory, as tensors, and does nothing but forward, backward, clipping and AdamW (fused),
one thread. Through the queue: the server of the stream, its Redis and its workers are processes of their own, one thread each;
the clock runs from before the push of the first sample until the last batch has changed the parameters. A run of the one and a
run of the other take turns; shares are medians of the quotients of neighbours. Two workers have at most one step of staleness
each; {stale} batches were computed again for being staler than the stream allows."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Neighbours: seconds of as many samples."""

    plain: float
    ours: float

    @property
    def share(self) -> float:
        """Of the plain loop's samples a second."""
        return self.plain / self.ours


def measure(steps: int, pairs: int, folder: Path, clock: Clock, note: Note, *, tiny: bool = False) -> Section:
    """Both ways, in turns; then with a second worker."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measured(steps, pairs, folder, clock, note, tiny)
    finally:
        torch.set_num_threads(threads)


def _measured(steps: int, pairs: int, folder: Path, clock: Clock, note: Note, tiny: bool) -> Section:
    spec = declared([SENTIMENT])
    encoder = subject.minilm(folder / "encoder", tiny=tiny)
    learner = subject.learner(spec, encoder)
    size = spec.tasks[0].batch_size
    samples = learner.packers["sentiment"].pack(subject.reviews(steps * size))
    loop = [[learner.packers["sentiment"].batch(samples[at : at + size])] for at in range(0, len(samples), size)]
    plain, found = PlainLoop(learner), list[list[Pair]]()
    with served(folder, spec, encoder, clock) as stream:
        for workers in (1, 2):
            times = folder / f"times-{workers}"
            stream.work(f"worker-{workers}", times)
            _warm(stream, samples, times)
            note(f"trained: {pairs} pairs of {steps} batches, workers: {workers}")
            found.append([_pair(stream, samples, plain, loop, number) for number in range(pairs)])
        stale = _stale(stream)
    about = ABOUT.format(model="MiniLM" if not tiny else "A tiny BERT", batch=size, steps=steps, stale=stale)
    return Section("Training through the queue", about, COLUMNS, rows(found, len(samples)), aims(*found))


def _warm(stream: Served, samples: Sequence[bytes], times: Path) -> None:
    """Some batches that do not count, until the newest worker has computed one."""
    size = stream.home.spec.tasks[0].batch_size
    deadline = Deadline(stream.clock, STARTING, "a worker to compute its first batch")
    while not times.exists():
        deadline.check()
        _carried(stream, samples[:size])
    _carried(stream, samples[: 2 * size])


def _pair(stream: Served, samples: Sequence[bytes], plain: PlainLoop, loop: Loop, number: int) -> Pair:
    ways = (lambda: _looped(plain, loop), lambda: _carried(stream, samples))
    took = {which: ways[which]() for which in ((0, 1) if number % 2 else (1, 0))}
    return Pair(took[0], took[1])


def _looped(plain: PlainLoop, loop: Loop) -> float:
    began = time.monotonic()
    plain.run(loop)
    return time.monotonic() - began


def _carried(stream: Served, samples: Sequence[bytes]) -> float:
    before, began = stream.store.step(), time.monotonic()
    stream.push(samples)
    size = stream.home.spec.tasks[0].batch_size
    return stream.settle(before + len(samples) // size, 1800.0) - began


def _stale(stream: Served) -> int:
    found = StreamClient(stream.home.socket, stream.home.spec.name).call("GET", "/v1/status")
    return int((found["store"].get("came_back") or {}).get("stale", 0))


def rows(found: Sequence[Sequence[Pair]], samples: int) -> list[tuple[str, ...]]:
    """The plain loop, and each number of workers."""
    table: list[tuple[str, ...]] = []
    table.append(("plain PyTorch loop", f"{samples / median(pair.plain for pairs in found for pair in pairs):.1f}", "", ""))
    for workers, pairs in enumerate(found, 1):
        shares = [100 * pair.share for pair in pairs]
        name = f"queue, {workers} worker{'s' if workers > 1 else ''}"
        rate = samples / median(pair.ours for pair in pairs)
        table.append((name, f"{rate:.1f}", f"{median(shares):.1f} %", f"{min(shares):.1f} to {max(shares):.1f} %"))
    return table


def aims(one: Sequence[Pair], two: Sequence[Pair]) -> list[Aim]:
    """What workers are held to."""
    single, both = (median(pair.share for pair in pairs) for pairs in (one, two))
    spread = f"the pairs lie between {100 * min(p.share for p in one):.1f} and {100 * max(p.share for p in one):.1f} %."
    return [
        Aim("samples a second through the queue with one worker, of a plain loop's", 100 * single, LEAST, "%", spread),
        Aim("two workers, times one", both / single, TWICE, "x", "the server of the stream wants a part of the two cores, too."),
    ]
