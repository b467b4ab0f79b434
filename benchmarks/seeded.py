"""Tensors by seed and position against torch's own generator, which knows no position: the same matrix, in turns.

`torch.normal_` draws one after another and so can make no shard without all that comes before it; it is the yardstick, on one
thread.
"""

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from benchmarks.figures import Aim, Note, Section
from tasks.seeded.bits import Mode
from tasks.seeded.laws import Law, Normal, Truncated, Uniform
from tasks.seeded.tensor import SeededTensor

FULL, TINY = (2048, 4096), (512, 1024)

ABOUT = """A float32 matrix of {rows} x {columns}, filled in place; every line is measured in turns with `torch.normal_` on one
thread; the ratio is the median of the quotients of neighbours. `portable` (Philox) has the same bits on every machine, `fast` has
AES for Philox. The shards are an eighth of the matrix. To compare: torch's generator seeded anew for each tile of 256 x 256, the
simplest way to make a tile by its position; its bits depend on the processor. Load while this ran: {load}."""

YARDSTICK = "torch.normal_, 1 thread"


@dataclass(frozen=True, slots=True)
class Line:
    """What is measured, and how many elements it makes."""

    work: Callable[[], object]
    elements: int


def measure(shape: tuple[int, int], turns: int, note: Note) -> Section:
    """Times of every line, in `turns` turns after one that does not count; a turn begins elsewhere each time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        all_lines = lines(shape)
        note(f"seeded: {turns} turns of {len(all_lines)} lines")
        times: dict[str, list[float]] = {name: [] for name in all_lines}
        yardsticks: dict[str, list[float]] = {name: [] for name in all_lines}
        names, loads = list(all_lines), [os.getloadavg()[0]]
        for turn in range(turns + 1):
            at = turn % len(names)
            for name in [*names[at:], *names[:at]]:
                before = _timed(all_lines[YARDSTICK].work)
                found = _timed(all_lines[name].work)
                if turn:
                    times[name].append(found)
                    yardsticks[name].append(before)
            loads.append(os.getloadavg()[0])
    finally:
        torch.set_num_threads(threads)
    whole = shape[0] * shape[1]
    rates = {name: median(line.elements / seconds for seconds in times[name]) for name, line in all_lines.items()}
    ratios = {  # of elements a second
        name: median(
            own / whole * all_lines[name].elements / found for own, found in zip(yardsticks[name], times[name], strict=True)
        )
        for name in all_lines
    }
    rows = [(name, f"{rates[name] / 1e6:.0f}", f"{1e9 / rates[name]:.2f}", f"{ratios[name]:.2f} x") for name in all_lines]
    about = ABOUT.format(rows=shape[0], columns=shape[1], load=f"{min(loads):.1f} to {max(loads):.1f}")
    return Section(
        "Tensors by seed and position",
        about,
        ("what", "million elements/s", "ns an element", "of torch.normal_"),
        rows,
        aims(ratios, times),
    )


def aims(ratios: Mapping[str, float], seconds: Mapping[str, Sequence[float]]) -> tuple[Aim, ...]:
    """What the figures should be.

    :param ratios: of elements a second, to the yardstick.
    :param seconds: of each line, turn by turn.
    """
    busy = "the machine was busy: a core, its caches and the memory were others' too."

    def quicker(part: str) -> float:
        return median(whole / own for whole, own in zip(seconds["portable, normal"], seconds[part], strict=True))

    return (
        Aim("portable, of torch.normal_", ratios["portable, normal"], 0.40, reason=busy),
        Aim("fast, of torch.normal_", ratios["fast, normal"], 0.60, reason=busy),
        Aim(
            "fast with two threads, of torch.normal_ with one",
            ratios["fast, normal, 2 threads"],
            1.1,
            reason="needs two free cores.",
        ),
        Aim("a shard of 1/8 of the rows, times as quick as the whole", quicker("portable, 1/8 of the rows"), 6.0, reason=busy),
        Aim(
            "a shard of 1/8 of the columns, times as quick as the whole", quicker("portable, 1/8 of the columns"), 6.0, reason=busy
        ),
    )


def lines(shape: tuple[int, int]) -> dict[str, Line]:
    """Everything that is measured, by name."""
    rows, columns = shape
    out = np.empty(shape, np.float32)
    tensor = torch.from_numpy(out)
    found = {YARDSTICK: Line(tensor.normal_, rows * columns), "torch.uniform_, 1 thread": Line(tensor.uniform_, rows * columns)}
    laws: tuple[Law, ...] = (Normal(std=0.02), Uniform(low=-1.0), Truncated())
    modes: tuple[Mode, ...] = ("portable", "fast")
    for mode in modes:
        for law in laws:
            whole = SeededTensor(7, "matrix", shape, law, mode=mode)
            found[f"{mode}, {law.kind}"] = Line(lambda whole=whole: whole.fill(out), rows * columns)
        normal = SeededTensor(7, "matrix", shape, laws[0], mode=mode)
        found[f"{mode}, normal, 2 threads"] = Line(lambda normal=normal: normal.fill(out, threads=2), rows * columns)
        for name, index in (
            ("rows", (slice(rows // 8, rows // 4), slice(None))),
            ("columns", (slice(None), slice(columns // 8, columns // 4))),
        ):
            part = np.empty((rows // 8, columns) if name == "rows" else (rows, columns // 8), np.float32)
            work = lambda normal=normal, part=part, index=index: normal.fill(part, *index)  # noqa: E731
            found[f"{mode}, 1/8 of the {name}"] = Line(work, part.size)
    found["torch's generator, seeded for each tile"] = Line(lambda: reseeded(tensor), rows * columns)
    return found


def reseeded(tensor: torch.Tensor) -> None:
    """Mersenne's twister with a seed for each tile, in the plainest way."""
    generator, tile = torch.Generator(), torch.empty(256, 256)
    for at in range(0, tensor.shape[0], 256):
        for column in range(0, tensor.shape[1], 256):
            key = hashlib.blake2b(f"7/matrix/{at}/{column}".encode(), digest_size=7).digest()
            generator.manual_seed(int.from_bytes(key, "little"))
            tensor[at : at + 256, column : column + 256] = tile.normal_(std=0.02, generator=generator)


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
