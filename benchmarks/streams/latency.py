"""How long an idle worker takes to begin: from before the push that fills a batch to the start of its gradient."""

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures import Aim, Note, Section
from benchmarks.streams import subject
from benchmarks.streams.served import SENTIMENT, declared, served
from trunkline.clock import Clock, Deadline

LIMIT = 0.050
"""Seconds, of 95 in 100."""

BATCH = 4

COLUMNS = ("model", "pushes", "median, ms", "95 in 100, ms", "worst, ms")

ABOUT = f"""From just before the push of the sample that fills a batch of {BATCH}, until the worker begins to compute its
gradient: the script in Redis, the bell to the server of the stream, the doorbell through Celery, the claim, and the read of all
parameters. Server and worker are processes; the worker was idle for up to a second before each push, so most of its waits are
of all lengths."""


def measure(pushes: int, folder: Path, clock: Clock, note: Note, *, tiny: bool = False) -> Section:
    """MiniLM, whose parameters are 91 MB, and a model of next to none."""
    found: dict[str, list[float]] = {}
    for name, is_small in (("one narrow layer", True), *((("MiniLM", False),) if not tiny else ())):
        of = folder / ("narrow" if is_small else "minilm")
        of.mkdir()
        found[name] = waits(pushes, of, clock, tiny=is_small)
        note(f"latency: {name}, 95 in 100 within {1e3 * part(found[name], 0.95):.1f} ms")
    rows = [(name, f"{len(w)}", *(f"{1e3 * part(w, share):.1f}" for share in (0.5, 0.95, 1.0))) for name, w in found.items()]
    return Section("From push to gradient", ABOUT, COLUMNS, rows, aims(found))


def waits(pushes: int, folder: Path, clock: Clock, *, tiny: bool) -> list[float]:
    """Seconds of each push."""
    spec = declared([{**SENTIMENT, "batch_size": BATCH}])
    encoder = subject.minilm(folder / "encoder", tiny=tiny)
    samples = subject.learner(spec, encoder).packers["sentiment"].pack(subject.reviews(BATCH))
    times, rng = folder / "times", random.Random(0)
    with served(folder, spec, encoder, clock) as stream:
        stream.work("worker", times)
        stream.push(samples)
        stream.settle(1)
        pushed = []
        for number in range(pushes):
            clock.sleep(0.05 + 0.95 * rng.random() if not tiny or pushes > 10 else 0.05)
            stream.push(samples[:-1])
            pushed.append(time.monotonic())
            stream.push(samples[-1:])
            stream.settle(number + 2)
        began = _begun(times, pushes + 1, Deadline(clock, 10.0, "the times of the gradients"), clock)[1:]
    return [start - push for start, push in zip(began, pushed, strict=True)]


def _begun(path: Path, count: int, deadline: Deadline, clock: Clock) -> list[float]:
    while len(lines := path.read_text(encoding="ascii").splitlines()) < count:
        deadline.check()
        clock.sleep(0.05)
    return [float(line.split()[1]) for line in lines]


def part(values: Sequence[float], share: float) -> float:
    """What so many of the values are not above.

    >>> part([3.0, 1.0, 2.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def aims(found: Mapping[str, Sequence[float]]) -> list[Aim]:
    """What each model's worker is held to."""
    reason = "beside the way, which the first row has alone, all parameters of the model are copied."
    return [
        Aim.at_most(f"push to gradient, 95 in 100, {name}", 1e3 * part(values, 0.95), 1e3 * LIMIT, "ms", reason)
        for name, values in found.items()
    ]
