"""Fusing against copying memory and against Flower's `aggregate_arrayrecords`: bytes of updates a second, and peak memory.

Each case is a process of its own, so that its peak is its own; `python -m benchmarks.fusing` is that process.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.figures import Aim, Note, Section, ratio
from master.rules import Contribution, Parameters, find_rule
from trunkline.codecs import Decoder
from trunkline.sets import SetFile, SetWriter
from trunkline.tensors import TensorSpec, row_slices

RULES = ("mean", "median", "trimmed_mean:trim=0.1", "krum")
CHILDREN = (4, 16, 64)
FILES = 16
"""Different files: with more children than that, some read the same one, which is too large for a processor's cache to help."""

ABOUT = """Updates of 22.7 million float32 values (91 MB) each, read through memory maps from the page cache, sample counts
all different (`equal`: all the same), the target set computed slice by slice and thrown away. GiB of updates a second;
best of the repeats, of which there are as many as fit {enough:g} seconds, and one at least. A copy is what numpy takes
to copy the same bytes from the same maps into memory, in the same process: no rule can be faster than its updates are
read. Flower's `aggregate_arrayrecords` is the weighted mean of FedAvg, in float32, of records that are in memory
already. Peak is what the process ever held, the interpreter and its libraries included."""

ENOUGH = 2.0
"""Seconds after which nothing is repeated: what takes as long by itself says little more the second time."""

COLUMNS = ("rule", "children", "GiB/s", "of a copy", "times Flower's mean", "peak memory")


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement: `flower` is Flower's mean."""

    rule: str
    children: int
    equal: bool
    seconds: float
    copy: float  # seconds to copy the same bytes
    peak: int  # bytes

    @property
    def name(self) -> str:
        return "Flower's mean" if self.rule == "flower" else f"{self.rule}{' (equal)' if self.equal else ''}"


def specification(values: int) -> dict[str, TensorSpec]:
    """A set like an encoder's: one table of tokens, then layers; about so many values."""
    table = {"tokens": TensorSpec((max(1, values // 2 // 384), 384))}
    layer = {"in": (384, 1536), "out": (1536, 384), "bias": (1536,)}
    count = max(1, values // 2 // (2 * 384 * 1536))
    return table | {f"layer{k:02}.{name}": TensorSpec(shape) for k in range(count) for name, shape in layer.items()}


def measure(values: int, repeats: int, folder: Path, note: Note, children: Sequence[int] = CHILDREN) -> Section:
    """Every rule with every number of children."""
    spec = specification(values)
    for number in range(min(FILES, max(children)) + 1):
        _write(folder / f"set{number}", spec, number)
    cases: list[Case] = []
    for rule, equal in [("flower", False), *((rule, False) for rule in RULES), ("median", True), ("trimmed_mean:trim=0.1", True)]:
        for count in children:
            if rule == "krum" and count < find_rule(rule).least:
                continue
            cases.append(_apart(folder, rule, count, equal, repeats))
            note(f"fusing: {cases[-1].name} of {count}: {cases[-1].seconds:.2f} s, a copy {cases[-1].copy:.2f} s")
    size = sum(tensor.nbytes for tensor in spec.values())
    their = {case.children: case.seconds for case in cases if case.rule == "flower"}
    rows = [_row(case, size, their[case.children]) for case in cases]
    return Section("Fusing", ABOUT.format(enough=ENOUGH), COLUMNS, rows, aims(cases, size))


def aims(cases: Sequence[Case], size: int) -> list[Aim]:
    """What was hoped for: the mean against Flower's and against a copy; peaks that do not grow with the children.

    :param size: bytes of one set.
    """
    their = {case.children: case.seconds for case in cases if case.rule == "flower"}
    found: list[Aim] = []
    for case in cases:
        if case.rule == "mean":
            times, share = ratio(their[case.children], case.seconds), ratio(case.copy, case.seconds)
            found.append(Aim(f"the mean of {case.children}, Flower's time over ours", times, 2.0, reason=_why(case)))
            found.append(Aim(f"the mean of {case.children}, a copy's time over ours", share, 0.5, reason=_why(case)))
    for name in dict.fromkeys(case.name for case in cases if case.rule != "flower"):
        peaks = [case.peak for case in cases if case.name == name]
        flat = size / max(1, max(peaks) - min(peaks))
        found.append(Aim(f"{name}: a set's size over what peaks differ by", flat, 1.0, reason="memory grows with the children."))
    return found


def _why(case: Case) -> str:
    return f"{case.children} sets take {case.seconds:.2f} s, a copy of them {case.copy:.2f} s."


def _row(case: Case, size: int, their: float) -> list[str]:
    speed = case.children * size / 2**30 / case.seconds
    share, times = f"{case.copy / case.seconds:.2f}", f"{their / case.seconds:.1f}"
    return [case.name, str(case.children), f"{speed:.2f}", share, times, f"{case.peak / 2**20:.0f} MiB"]


def _write(path: Path, spec: Mapping[str, TensorSpec], seed: int) -> None:
    rng = np.random.default_rng(seed)
    with SetWriter(path, spec, durable=False) as writer:
        for name, tensor in spec.items():
            for rows in row_slices(tensor):
                shape = (rows.stop - rows.start, *tensor.shape[1:])
                writer.write(name, rows, rng.standard_normal(shape, dtype=np.float32))


def _apart(folder: Path, rule: str, children: int, equal: bool, repeats: int) -> Case:
    command = [sys.executable, "-m", "benchmarks.fusing", str(folder), rule, str(children), str(int(equal)), str(repeats)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1800, cwd=Path(__file__).parents[1])
    return Case(**json.loads(told.stdout.splitlines()[-1]))


# -- in the process of its own -------------------------------------------------------------------------------------------


def main(folder: Path, rule: str, children: int, equal: bool, repeats: int) -> Case:
    """Measure one case."""
    paths = [folder / f"set{1 + number % FILES}" for number in range(children)]
    files = [SetFile(path) for path in paths]
    counts = [7 if equal else 100 + number for number in range(children)]
    work = _theirs(files, counts) if rule == "flower" else _ours(rule, SetFile(folder / "set0"), files, counts)
    seconds = best(work, repeats)
    peak = _peak()
    return Case(rule, children, equal, seconds, best(lambda: _copy(paths), repeats), peak)


def _peak() -> int:
    """Most bytes that this process held. What `getrusage` tells begins with what the process that started this one held."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def _ours(rule: str, base: SetFile, files: Sequence[SetFile], counts: Sequence[int]) -> Callable[[], None]:
    updates = [
        Contribution(f"c{k:03}", {"t": n}, {"t": n}, Parameters(base.spec, Decoder(file, "float32", base).read))
        for k, (file, n) in enumerate(zip(files, counts, strict=True))
    ]

    def work() -> None:
        target = find_rule(rule).fuse(Parameters(base.spec, base.read), updates).target(None)
        for name, tensor in target.spec.items():
            for rows in row_slices(tensor):
                target.read(name, rows)

    return work


def _theirs(files: Sequence[SetFile], counts: Sequence[int]) -> Callable[[], None]:
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
    from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

    records = [
        RecordDict(
            {
                "arrays": ArrayRecord({name: Array(values) for name, values in file.tensors().items()}),
                "metrics": MetricRecord({"num-examples": count}),
            }
        )
        for file, count in zip(files, counts, strict=True)
    ]

    def work() -> None:
        aggregate_arrayrecords(records, "num-examples")

    return work


def _copy(paths: Sequence[Path]) -> None:
    target = np.empty(paths[0].stat().st_size, np.uint8)
    for path in paths:
        np.copyto(target, np.memmap(path, mode="r"))


def best(work: Callable[[], None], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the quickest of so many repeats; none is begun after `ENOUGH` seconds."""
    times: list[float] = []
    while len(times) < repeats and sum(times) < ENOUGH:
        began = clock()
        work()
        times.append(clock() - began)
    return min(times)


if __name__ == "__main__":
    place, word, count, same, often = sys.argv[1:]
    print(json.dumps(asdict(main(Path(place), word, int(count), same == "1", int(often)))))
