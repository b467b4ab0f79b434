"""Only the largest movements."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from trunkline.codecs.codec import Codec, Moved, Read, Write
from trunkline.errors import Reason, RefusedValue
from trunkline.tensors import TensorSpec, from_bf16, row_slices, to_bf16

_HALF = 16
"""Bits of a magnitude that are looked at in one pass; a histogram has 2^16 counts."""


def _short(share: float) -> float:
    if round(share, 6) != share:  # a record has room for so much
        raise ValueError("it should have six digits after the point at most")
    return share


class Topk(Codec):
    """Of each tensor, only the largest differences, in bfloat16 with their places: six bytes each, 1.5 % of the bytes by default.

    The others are owed, and grow until they are among the largest (Stich et al., 2018, arXiv:1809.07599, algorithm 1).
    """

    name: ClassVar = "topk"

    share: Annotated[float, Field(gt=0, le=1, description="Share of a tensor's elements that is sent."), AfterValidator(_short)] = (
        0.01
    )

    def kept(self, tensor: TensorSpec) -> int:
        """How many elements are sent."""
        return min(tensor.elements, ceil(round(self.share * tensor.elements, 6)))

    def parts(self, tensor: TensorSpec) -> Mapping[str, TensorSpec]:
        kept, place = (self.kept(tensor),), "I32" if tensor.elements <= 2**31 else "I64"
        return {"@index": TensorSpec(kept, place), "@value": TensorSpec(kept, "BF16")}

    def encode(self, tensor: TensorSpec, moved: Moved, write: Write) -> None:
        least, ties = _least(tensor, moved, self.kept(tensor))
        place, done = np.dtype(np.int32 if tensor.elements <= 2**31 else np.int64), 0
        for rows in row_slices(tensor):
            values = moved(rows).reshape(-1)
            size = _size(values)
            chosen = size > least
            equal = np.flatnonzero(size == least)[:ties]
            ties -= len(equal)
            chosen[equal] = True
            at = np.flatnonzero(chosen)
            to = slice(done, done + len(at))
            write("@index", to, (at + rows.start * tensor.row).astype(place))
            write("@value", to, to_bf16(values[at]))
            done = to.stop

    def check(self, name: str, tensor: TensorSpec, part: Read) -> None:
        last = -1
        for at in row_slices(TensorSpec((self.kept(tensor),))):
            index = part("@index", at)
            if index[0] <= last or (index[1:] <= index[:-1]).any():
                raise RefusedValue(Reason.MALFORMED, f"the places in {name!r} should be in order, each once, found others.")
            last = int(index[-1])
            if last >= tensor.elements:  # with the order, and none below zero, all of them lie within
                raise RefusedValue(Reason.MALFORMED, f"the places in {name!r} should be below {tensor.elements}, found {last}.")

    def decode(self, tensor: TensorSpec, part: Read, rows: slice) -> NDArray[np.float32]:
        begin, end = rows.start * tensor.row, rows.stop * tensor.row
        places = range(self.kept(tensor))
        first, stop = (
            bisect_left(places, place, key=lambda at: int(part("@index", slice(at, at + 1))[0])) for place in (begin, end)
        )
        values = np.zeros(end - begin, dtype=np.float32)
        for at in _steps(first, stop):
            values[part("@index", at).astype(np.int64) - begin] = from_bf16(part("@value", at))
        return values


def _size(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Magnitudes as whole numbers in the same order: the bits of a float32 without its sign. NaN is the largest."""
    return np.ascontiguousarray(values).view(np.uint32) & np.uint32(0x7FFFFFFF)


def _least(tensor: TensorSpec, moved: Moved, count: int) -> tuple[int, int]:
    """The magnitude, as a whole number, of the last element among the `count` largest, and how many of exactly that are among them.

    By digits: one pass counts the upper halves, a second the lower halves of those that share the upper half in question. So the
    tensor is never in memory as a whole, nor sorted.
    """
    upper = _histogram(_size(moved(rows)) >> np.uint32(_HALF) for rows in row_slices(tensor))
    high, wanted = _reach(upper, count)
    sizes = (_size(moved(rows)) for rows in row_slices(tensor))
    lower = _histogram(size[size >> np.uint32(_HALF) == high] & np.uint32(0xFFFF) for size in sizes)
    low, ties = _reach(lower, wanted)
    return high << _HALF | low, ties


def _histogram(slices: Iterator[NDArray[np.uint32]]) -> NDArray[np.int64]:
    counts = np.zeros(1 << _HALF, dtype=np.int64)
    for digits in slices:
        counts += np.bincount(digits.reshape(-1), minlength=1 << _HALF)
    return counts


def _reach(counts: NDArray[np.int64], wanted: int) -> tuple[int, int]:
    """The digit at which counting from the largest reaches `wanted`, and how many are still wanted of it."""
    above = np.cumsum(counts[::-1])
    at = int(np.searchsorted(above, wanted))
    return len(counts) - 1 - at, wanted - (int(above[at - 1]) if at else 0)


def _steps(first: int, stop: int) -> Iterator[slice]:
    for piece in row_slices(TensorSpec((stop - first,))):
        yield slice(first + piece.start, first + piece.stop)
