"""Memory stays flat: over many rounds, over many children, and over a set that is larger than what may be held."""

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.jobs import make_bench

pytestmark = [pytest.mark.slow, pytest.mark.system]

STATM = Path("/proc/self/statm")


def resident() -> int:
    """Bytes that this process holds in memory."""
    return int(STATM.read_text(encoding="ascii").split()[1]) * 4096


@pytest.mark.skipif(not STATM.exists(), reason="only Linux tells what a process holds now")
def test_two_hundred_rounds_take_no_more_memory_than_fifty(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, {"a": 40, "b": 25})
    bench.run(rounds=50)
    gc.collect()
    before = resident()
    bench.run(rounds=150)
    gc.collect()
    assert resident() - before < 8 << 20
    reader = bench.ledger.reader(bench.ledger.jobs()[-1].id)
    named = {row.digest for number in range(1, 151) for row in reader.updates(number)}  # equal ones are one file
    assert sum(bench.blobs.has(digest) for digest in named) <= 4, "two rounds of two children are kept"


FUSE = """
import sys, resource
from pathlib import Path
import numpy as np
from master.blobs import BlobStore
from master.publish import publish
from master.rules import Contribution, Parameters, find_rule
from trunkline.codecs import Decoder
from trunkline.sets import SetFile, SetWriter
from trunkline.tensors import TensorSpec, row_slices

folder, children, rows = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
spec = {"w": TensorSpec((rows, 1024))}
def write(path, seed):
    rng = np.random.default_rng(seed)
    with SetWriter(path, spec) as writer:
        for part in row_slices(spec["w"]):
            writer.write("w", part, rng.standard_normal((part.stop - part.start, 1024)).astype(np.float32))
blobs = BlobStore(folder / "blobs")
write(folder / "base", 0)
base = SetFile(folder / "base")
updates = []
for child in range(children):
    write(folder / f"u{child}", child + 1)
    decoder = Decoder(SetFile(folder / f"u{child}"), "float32", base)
    decoder.check_finite()
    updates.append(Contribution(f"c{child:03}", {"t": child + 1}, {"t": child + 1}, Parameters(base.spec, decoder.read)))
fused = find_rule(sys.argv[4]).fuse(Parameters(base.spec, base.read), updates)
publish(blobs, "0" * 64, base, fused.target(None), sys.argv[5])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def peak(folder: Path, children: int, rows: int, rule: str = "mean", codec: str = "float32") -> int:
    """Peak resident bytes of a process that writes, checks and fuses sets of `rows` x 4 KiB, and publishes what comes out."""
    folder.mkdir()
    command = [sys.executable, "-c", FUSE, str(folder), str(children), str(rows), rule, codec]
    told = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True, cwd=Path(__file__).parents[2])
    return int(told.stdout)


@pytest.mark.parametrize("rule", ["mean", "median", "trimmed_mean", "geometric_median", "krum", "bulyan:faulty=0"])
def test_fusing_takes_no_more_memory_with_more_children(tmp_path: Path, rule: str) -> None:
    few, many = (peak(tmp_path / str(count), count, 2048, rule) for count in (5, 32))
    assert many - few < 24 << 20, "8 MB a set: 27 more children would be 216 MB"


@pytest.mark.parametrize("codec", ["float32", "int8", "topk"])
def test_a_set_of_300_mb_is_fused_within_less_memory_than_it_has(tmp_path: Path, codec: str) -> None:
    small, large = (peak(tmp_path / f"{rows}", 2, rows, codec=codec) for rows in (2048, 75_000))
    assert large - small < 64 << 20, "three files of 307 MB each"


def test_values_of_a_large_set_are_right(tmp_path: Path) -> None:
    """The same code on a set that can be checked whole."""
    from master.rules import Contribution, Parameters, find_rule
    from trunkline.sets import SetFile, write_set

    sets = [np.random.default_rng(seed).standard_normal((3000, 1024)).astype(np.float32) for seed in range(3)]
    for number, values in enumerate(sets):
        write_set(tmp_path / str(number), {"w": values})
    files = [SetFile(tmp_path / str(number)) for number in range(3)]
    updates = [
        Contribution(f"c{k}", {"t": k + 1}, {"t": k + 1}, Parameters(file.spec, lambda n, r, file=file: file.read(n, r)))
        for k, file in enumerate(files)
    ]
    fused = find_rule("mean").fuse(updates[0].parameters, updates)
    found = fused.target(None).read("w", slice(1000, 2000))
    exact = np.sum([(k + 1) / 6 * values[1000:2000].astype(np.float64) for k, values in enumerate(sets)], axis=0)
    np.testing.assert_array_equal(found, exact.astype(np.float32))
