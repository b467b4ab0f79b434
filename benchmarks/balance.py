"""Rules for the gradients of several tasks: processor time of a combination, beside the plain mean.

python -m benchmarks.balance
"""

import resource
import sys
import time
from collections.abc import Callable, Mapping
from statistics import median

import torch
from torch import Tensor

from benchmarks.codecs import FULL
from benchmarks.figures import Aim, Note, Section
from tasks import balance
from tasks.balance import matrix, sketch
from trunkline.tensors import SetSpec

TASKS = 4

LIMIT = 0.250
"""Seconds of processor time that a combination may take: a batch of 32 takes some 1.8 to compute."""

COLUMNS = ("rule", "ms", "times the mean", "of which weights", "its state, numbers")

ABOUT = """{tasks} tasks' gradients of {elements:.1f} million float32 values each, in the shapes of a small text encoder, one
thread; processor time in ms, median of {repeats} after a first one. *The mean* is what a plain loop does: the sum of the
gradients, in memory of its own, divided by their number. A combination looks for what is not finite, computes the Gramian in
float64, asks the rule, and makes the weighted sum; *weights* is the rule alone. Besides the gradients it needs one more of them:
the peak grew by {grown:.2f} gradients. Cosines of all pairs take {cosines:.0f} ms, exact; a sketch of one gradient
{sketched:.0f} ms."""


def measure(spec: SetSpec, repeats: int, note: Note) -> Section:
    """Every rule on the same gradients."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measured(spec, repeats, note)
    finally:
        torch.set_num_threads(threads)


def _measured(spec: SetSpec, repeats: int, note: Note) -> Section:
    gradients = {f"task{k}": _gradient(spec, k) for k in range(TASKS)}
    elements = sum(tensor.elements for tensor in spec.values())
    _combined("upgrad", {task: {"w": tensors["words"][:8]} for task, tensors in gradients.items()})  # loads libraries
    before = _peak()
    _combined("upgrad", gradients)
    grown = (_peak() - before) / (4 * elements)
    mean = _seconds(lambda: _mean(gradients), repeats)
    took: dict[str, float] = {}
    rows = []
    for word in balance.RULES:
        took[word] = _seconds(lambda word=word: _combined(word, gradients), repeats)
        small = {task: {"w": tensors["words"][:8]} for task, tensors in gradients.items()}
        weighing = _seconds(lambda word=word, small=small: _combined(word, small), repeats)
        size = len(_combined(word, small).state)
        rows.append((word, f"{1e3 * took[word]:.0f}", f"{took[word] / mean:.1f}", f"{1e3 * weighing:.1f}", f"{size}"))
        note(f"balance: {word} {1e3 * took[word]:.0f} ms, the mean {1e3 * mean:.0f} ms")
    about = ABOUT.format(
        tasks=TASKS,
        elements=elements / 1e6,
        repeats=repeats,
        grown=grown,
        cosines=1e3 * _seconds(lambda: matrix.exact(gradients, 0), repeats),
        sketched=1e3 * _seconds(lambda: sketch.sketch(gradients["task0"]), repeats),
    )
    rows.insert(0, ("(the mean)", f"{1e3 * mean:.0f}", "1.0", "", ""))
    return Section("Gradient rules", about, COLUMNS, rows, aims(took))


def aims(took: Mapping[str, float]) -> list[Aim]:
    """What the slowest rule is held to."""
    slowest = max(took, key=lambda word: took[word])
    return [Aim(f"the slowest rule ({slowest}) within {1e3 * LIMIT:.0f} ms", LIMIT / took[slowest], 1.0, "x")]


def _gradient(spec: SetSpec, seed: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {name: torch.randn(tensor.shape, generator=random) * 1e-3 for name, tensor in spec.items()}


def _combined(word: str, gradients: balance.Gradients) -> balance.Combined:
    losses = {task: 1.0 + place for place, task in enumerate(gradients)}
    return balance.find(word).combine(gradients, losses, dict.fromkeys(gradients, 32), {}, 1)


def _mean(gradients: balance.Gradients) -> dict[str, Tensor]:
    first, *others = gradients.values()
    found = {}
    for name, tensor in first.items():
        found[name] = tensor.clone()
        for other in others:
            found[name] += other[name]
        found[name] /= len(gradients)
    return found


def _seconds(action: Callable[[], object], repeats: int) -> float:
    """Of the processor."""
    found = []
    for _ in range(repeats + 1):
        began = time.process_time()
        action()
        found.append(time.process_time() - began)
    return median(found[1:])


def _peak() -> int:
    """Bytes that this process ever held."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> int:
    """Measure, and print the chapter."""
    section = measure(FULL, 5, lambda line: print(line, file=sys.stderr, flush=True))
    print(section.about, "", *(" | ".join(row) for row in (section.columns, *section.rows)), sep="\n")
    print(*(f"{aim.what}: {aim.found:.2f} {aim.unit}, {'met' if aim.met else 'missed'}" for aim in section.aims), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
