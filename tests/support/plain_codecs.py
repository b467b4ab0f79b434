"""Every codec once more, element by element in plain Python: what the fast ones are held against.

The reading side starts from the file's bytes and shares no line with the package; Python's floats are float64, `single` rounds to
float32 as IEEE 754 says. The writing side works on lists and says what a codec should choose, not how it is packed.
"""

import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
LETTERS = {"F64": "d", "F32": "f", "F16": "e", "BF16": "H", "I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B", "BOOL": "?"}

Tensor = tuple[tuple[int, ...], str, list[float]]
"""Shape, dtype name, values in order."""


def read(path: Path) -> dict[str, Tensor]:
    """A safetensors file; bfloat16 as the numbers that it means."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    tensors: dict[str, Tensor] = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        kind = entry["dtype"]
        values = list(struct.unpack(f"<{(end - begin) // SIZES[kind]}{LETTERS[kind]}", data[begin:end]))
        if kind == "BF16":
            values = [struct.unpack("<f", struct.pack("<I", bits << 16))[0] for bits in values]
        tensors[name] = (tuple(entry["shape"]), kind, values)
    return tensors


def single(value: float) -> float:
    """Rounded to float32."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def rounded(value: float, kind: str) -> float:
    """Rounded to a dtype."""
    if kind == "F64" or not math.isfinite(value):
        return value
    if kind == "BF16":
        return brain(single(value))
    if kind == "F16":
        try:
            return float(struct.unpack("<e", struct.pack("<e", value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)
    return single(value)


def brain(value: float) -> float:
    """Rounded to bfloat16: eight bits that count, ties to even."""
    if value == 0 or not math.isfinite(value):
        return value
    unit = math.ldexp(1.0, max(math.frexp(value)[1] - 8, -133))
    near = round(value / unit) * unit
    return near if abs(near) < 2.0**128 else math.copysign(math.inf, value)


def run_of(at: int, shape: tuple[int, ...], most: int) -> int:
    """Which scale an element has: rows one after the other, each in runs of `most`; a vector is one row."""
    row = math.prod(shape[1:]) if len(shape) > 1 else max(1, math.prod(shape))
    return at // row * -(-row // most) + at % row // most


def movement(parts: dict[str, Tensor], shape: tuple[int, ...], word: str) -> list[float]:
    """What one tensor's parts on the wire, by suffix, say that it moved by."""
    name, _, options = word.partition(":")
    count = math.prod(shape)
    if "@A" in parts:
        (rank, width), kind, a = parts["@A"]
        b = parts["@B"][2]
        moved = []
        for row in range(shape[0]):
            for column in range(width):
                total = 0.0
                for r in range(rank):
                    total += b[row * rank + r] * a[r * width + column]
                    total = single(total) if kind == "BF16" else total
                moved.append(total)
        return moved
    if name in ("bf16", "lowrank"):
        return parts[""][2]
    if name == "int8":
        scales = parts["@scale"][2]
        return [single(whole * scales[run_of(at, shape, 4096)]) for at, whole in enumerate(parts[""][2])]
    if name == "int4":
        most = int(options.partition("=")[2] or 64)
        scales, packed = parts["@scale"][2], parts[""][2]
        row = math.prod(shape[1:]) if len(shape) > 1 else count
        moved = []
        for at in range(count):
            byte = int(packed[at // row * -(-row // 2) + at % row // 2])
            whole = (byte >> 4 if at % row % 2 else byte & 15) - 8
            moved.append(single(whole * scales[run_of(at, shape, most)]))
        return moved
    assert name == "topk", word
    moved = [0.0] * count
    for at, value in zip(parts["@index"][2], parts["@value"][2], strict=True):
        moved[int(at)] = value
    return moved


def decode(wire: Path, base: Path, word: str) -> dict[str, list[float]]:
    """The set that a file means, by name."""
    sent, decoded = read(wire), {}
    for name, (shape, kind, old) in read(base).items():
        if sent.get(name, ((), "", []))[1] == kind and f"{name}@scale" not in sent:
            decoded[name] = sent[name][2]
            continue
        parts = {key[len(name) :]: value for key, value in sent.items() if key == name or key.startswith(f"{name}@")}
        moved = movement(parts, shape, word)
        decoded[name] = [rounded(was + by, kind) for was, by in zip(old, moved, strict=True)]
    return decoded


# -- the writing side --------------------------------------------------------------------------------------------------


def scales(values: Sequence[float], shape: tuple[int, ...], most: int, levels: int) -> list[float]:
    """Of each run: its largest element over `levels`, and never so small that a quotient overflows."""
    largest: dict[int, float] = {}
    for at, value in enumerate(values):
        run = run_of(at, shape, most)
        largest[run] = max(largest.get(run, 0.0), abs(value))
    return [max(single(largest[run] / levels), 2.0**-126) if largest[run] else 0.0 for run in sorted(largest)]


def largest(values: Sequence[float], count: int) -> list[int]:
    """Where the largest elements are, the first ones of equals, in order."""
    return sorted(sorted(range(len(values)), key=lambda at: (-abs(values[at]), at))[:count])
