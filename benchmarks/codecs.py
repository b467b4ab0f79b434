"""Codecs: bytes on the wire, and how fast a set is written and read again, against a copy of its bytes in the same run."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.figures import Aim, Note, Section
from trunkline.codecs import Decoder, Owed, encode, find, owed_spec
from trunkline.sets import SetFile, SetWriter
from trunkline.tensors import SetSpec, TensorSpec, row_slices

WORDS = ("float32", "bf16", "int8", "int4", "topk", "lowrank")

ABOUT = """A movement of {elements:.1f} million float32 parameters in the shapes of a small text encoder, from files to a file and
back into memory, files in the page cache; processor time of all threads, so that other programs count little; median of {repeats}
after a first one. GB/s are bytes of the float32 set by second. *Encode* reads two sets and writes the file that travels; *decode*
checks that and reads the set that it means, slice by slice, as fusing does; *owed* is what it adds to encoding to add what was left
out before and to tell what is left out now, without a file to write. A copy of as many bytes in memory (read once, written once) in
the same run: {copied:.2f} GB/s."""


@dataclass(frozen=True, slots=True)
class Speed:
    """One codec, measured."""

    share: float  # bytes of the file by those of float32's
    encode: float  # seconds
    decode: float
    owed: float | None  # None: nothing is left out


def shapes(vocabulary: int, layers: int, hidden: int = 384) -> dict[str, TensorSpec]:
    """A text encoder's tensors."""
    spec = {"words": TensorSpec((vocabulary, hidden)), "positions": TensorSpec((512, hidden)), "norm": TensorSpec((hidden,))}
    for layer in range(layers):
        for name in ("query", "key", "value", "output"):
            spec |= {f"{layer}.{name}.weight": TensorSpec((hidden, hidden)), f"{layer}.{name}.bias": TensorSpec((hidden,))}
        spec |= {f"{layer}.up.weight": TensorSpec((4 * hidden, hidden)), f"{layer}.up.bias": TensorSpec((4 * hidden,))}
        spec |= {f"{layer}.down.weight": TensorSpec((hidden, 4 * hidden)), f"{layer}.down.bias": TensorSpec((hidden,))}
    return spec


FULL, TINY = shapes(30522, 6), shapes(2000, 1)


def measure(spec: SetSpec, repeats: int, folder: Path, note: Note) -> Section:
    """Every codec, `repeats` times and once before."""
    size = sum(tensor.nbytes for tensor in spec.values())
    _write(folder, spec)
    copied = size / _copy(size, repeats)
    found = {}
    for word in WORDS:
        note(f"codecs: {word}, {repeats} times {size} bytes")
        found[word] = _speed(word, folder, repeats)
    about = ABOUT.format(elements=size / 4e6, repeats=repeats, copied=copied / 1e9)
    columns = ("codec", "bytes", "encode (GB/s)", "decode (GB/s)", "both (GB/s)", "owed (GB/s)", "both, of the copy")
    rows = [_row(word, speed, size, copied) for word, speed in found.items()]
    return Section("Codecs", about, columns, rows, aims(found, size))


def aims(found: Mapping[str, Speed], size: int) -> list[Aim]:
    """What int8 is held to."""
    int8 = found["int8"]
    both = size / (int8.encode + int8.decode) / 1e9
    reason = "the passes over memory; see the copy's speed above."
    return [
        Aim("int8, encode and decode", both, 1.0, "GB/s", reason),
        Aim("int8, times fewer bytes than float32", 1 / int8.share, 1 / 0.27, "x"),
    ]


def _row(word: str, speed: Speed, size: int, copied: float) -> tuple[str, ...]:
    both = size / (speed.encode + speed.decode)
    owed = "nothing" if speed.owed is None else f"{size / speed.owed / 1e9:.2f}"
    figures = (f"{size / seconds / 1e9:.2f}" for seconds in (speed.encode, speed.decode))
    return (word, f"{100 * speed.share:.1f} %", *figures, f"{both / 1e9:.2f}", owed, f"{both / copied:.2f}")


def _write(folder: Path, spec: SetSpec) -> None:
    rng = np.random.default_rng(0)
    with SetWriter(folder / "base", spec) as base, SetWriter(folder / "new", spec) as new:
        for name, tensor in spec.items():
            for rows in row_slices(tensor):
                shape = (rows.stop - rows.start, *tensor.shape[1:])
                values = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.05)
                base.write(name, rows, values)
                new.write(name, rows, values + rng.standard_normal(shape, dtype=np.float32) * np.float32(1e-3))


def _copy(size: int, repeats: int) -> float:
    old, new = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    return _seconds(lambda: np.copyto(new, old), repeats)


def _speed(word: str, folder: Path, repeats: int) -> Speed:
    path = folder / "wire"
    with SetFile(folder / "base") as base, SetFile(folder / "new") as new:
        encoding = _seconds(lambda: encode(path, word, base, new.read, durable=False), repeats)
        with SetFile(path) as wire:
            decoding = _seconds(lambda: _read(Decoder(wire, word, base).read, base.spec), repeats)
        owed = None
        if spec := owed_spec(find(word), base.spec):
            before = Owed(spec, new.read)
            whole = _seconds(lambda: encode(path, word, base, new.read, owed=before, left=lambda *_: None, durable=False), repeats)
            owed = max(whole - encoding, 1e-9)
    return Speed(path.stat().st_size / (folder / "base").stat().st_size, encoding, decoding, owed)


def _read(read: Callable[[str, slice], object], spec: SetSpec) -> None:
    for name, tensor in spec.items():
        for rows in row_slices(tensor):
            read(name, rows)


def _seconds(work: Callable[[], object], repeats: int) -> float:
    """Processor seconds, median of the repeats after a first one."""
    work()
    found = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return median(found)
