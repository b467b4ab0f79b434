"""An eighth of the bytes, and a few for the scales."""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trunkline.codecs.codec import Packed, Read, Sliced
from trunkline.codecs.scaled import Runs, check_scales, largest_scale, quantise, spread
from trunkline.tensors import TensorSpec

LEVELS = 7
"""Whole numbers on either side of zero. They are written plus 8, so no half byte is 0."""


class Int4(Sliced):
    """The difference in steps of 1/7 of the largest in its group, two elements a byte: about 14 % of the bytes."""

    name: ClassVar = "int4"

    group: Annotated[int, Field(ge=16, le=4096, multiple_of=2, description="Elements of a row that share a scale.")] = 64

    def parts(self, tensor: TensorSpec) -> Mapping[str, TensorSpec]:
        runs = Runs(tensor, self.group)
        halves = -(-runs.length // 2)  # a row starts with a byte of its own
        packed = (halves,) if runs.vector else (tensor.rows, halves)
        return {"": TensorSpec(packed, "U8"), "@scale": runs.scales}

    def slices(self, tensor: TensorSpec) -> Iterator[slice]:
        return Runs(tensor, self.group).slices()

    def pack(self, tensor: TensorSpec, rows: slice, moved: NDArray[np.float32]) -> Packed:
        runs = Runs(tensor, self.group)
        scales, whole = quantise(runs, moved, LEVELS)
        halves = _pack(whole.reshape(runs.lines(whole.size), -1))
        packed = (_halves(rows), halves.reshape(-1)) if runs.vector else (rows, halves)
        return {"@scale": (runs.around(rows)[1], scales), "": packed}

    def check(self, name: str, tensor: TensorSpec, part: Read) -> None:
        check_scales(name, Runs(tensor, self.group), part)

    def most(self, tensor: TensorSpec, part: Read) -> float:
        return (LEVELS + 1) * largest_scale(Runs(tensor, self.group), part)

    def decode(self, tensor: TensorSpec, part: Read, rows: slice) -> NDArray[np.float32]:
        runs = Runs(tensor, self.group)
        around, which, inside = runs.around(rows)
        if runs.vector:
            whole = _unpack(part("", _halves(around)))[: around.stop - around.start]
        else:
            whole = _unpack(part("", around))[:, : runs.length]
        return spread(runs, np.ascontiguousarray(whole), part("@scale", which))[inside]


def _halves(rows: slice) -> slice:
    """The bytes of elements of a vector; the first is an even one."""
    return slice(rows.start // 2, -(-rows.stop // 2))


def _pack(whole: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Whole numbers in the low bits `(rows, elements)`, two a byte; an odd row ends with a zero.

    A half byte is two's complement of four bits, plus 8: with its upper bit turned over.
    """
    small = whole.astype(np.int8)
    if small.shape[1] % 2:
        small = np.pad(small, ((0, 0), (0, 1)))
    pairs = small.view("<u2")
    return ((pairs & np.uint16(0x000F)) | ((pairs >> np.uint16(4)) & np.uint16(0x00F0))).astype(np.uint8) ^ np.uint8(0x88)


def _unpack(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Whole numbers from -8 to 7, two a byte, along the last axis."""
    pairs = packed.astype("<u2")
    pairs |= pairs << np.uint16(4)
    pairs &= np.uint16(0x0F0F)
    whole = pairs.view(np.uint8).astype(np.float32)
    whole -= np.float32(8)
    return whole
