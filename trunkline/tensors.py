"""Named tensors as numpy arrays: their specification, row slices of bounded size, and bfloat16, which numpy does not know.

A bfloat16 tensor is held as uint16 (the upper half of the float32 bits); its dtype name says what it is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

DTYPES: Mapping[str, np.dtype[np.generic]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("<i1"),
    "U8": np.dtype("<u1"),
    "BOOL": np.dtype("?"),
}
"""Dtype names as safetensors writes them, and how the bytes are held here."""

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})

LARGEST = {"F64": float(np.finfo("f8").max), "F32": float(np.finfo("f4").max), "F16": 65504.0, "BF16": (2 - 2**-7) * 2.0**127}
"""The largest finite number of each."""

SLICE_ELEMENTS = 1 << 18
"""How many elements are worked on at a time: 1 MB of float32, 2 MB of float64, which caches hold."""

np.empty(8 << 20, dtype=np.uint8)
# Made and dropped, on purpose. GNU's C library gives a freed array back to the system if no larger one was freed before (`mallopt`,
# M_MMAP_THRESHOLD). Every slice would then come as pages to be cleared anew, which took three times as long as the arithmetic.


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype name of one tensor."""

    shape: tuple[int, ...]
    dtype: str = "F32"

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * DTYPES[self.dtype].itemsize

    @property
    def rows(self) -> int:
        """Length of the first axis; a 0-d tensor counts as one row."""
        return self.shape[0] if self.shape else 1

    @property
    def row(self) -> int:
        """Elements in one row."""
        return prod(self.shape[1:]) if self.shape else 1


SetSpec = Mapping[str, TensorSpec]
"""What a parameter set must look like: every shared name, its shape and dtype."""


def dtype_name(array: Array) -> str:
    """The safetensors name of a numpy dtype (uint16 is taken for bfloat16).

    :raises TypeError: no such dtype on the wire.
    """
    for name, dtype in DTYPES.items():
        if array.dtype == dtype:
            return name
    raise TypeError(f"a tensor's dtype should be one of {', '.join(DTYPES)}, found {array.dtype}.")


def spec_of(tensors: Mapping[str, Array]) -> dict[str, TensorSpec]:
    """The specification of arrays in memory."""
    return {name: TensorSpec(tuple(array.shape), dtype_name(array)) for name, array in tensors.items()}


def row_slices(spec: TensorSpec, limit: int = SLICE_ELEMENTS) -> Iterator[slice]:
    """Cover a tensor by slices of its first axis, each of at most `limit` elements (never less than one row).

    >>> list(row_slices(TensorSpec((5, 2)), limit=4))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, limit // max(1, spec.row))
    for start in range(0, spec.rows, step):
        yield slice(start, min(start + step, spec.rows))


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round float32 to bfloat16, ties to even; NaN stays NaN.

    >>> to_bf16(np.array([1.0, -2.5], dtype=np.float32)).tolist()
    [16256, 49184]
    """
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    half = np.asarray(bits >> np.uint32(16))  # then in place: arithmetic on slices costs what memory costs
    half &= np.uint32(1)
    half += np.uint32(0x7FFF)
    half += bits
    half >>= np.uint32(16)
    rounded, wrong = half.astype(np.uint16), np.isnan(values)
    return np.where(wrong, np.uint16(0x7FC0), rounded) if wrong.any() else rounded


def from_bf16(half: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Widen bfloat16 to float32, exactly."""
    bits = np.asarray(half.astype(np.uint32))
    bits <<= np.uint32(16)
    return bits.view(np.float32)


def real(values: Array, dtype: str) -> Array:
    """Any float tensor as numbers that numpy knows, without a copy where they are."""
    return from_bf16(values.astype(np.uint16, copy=False)) if dtype == "BF16" else values


def widen(values: Array, dtype: str) -> NDArray[np.float64]:
    """Any float tensor as float64, exactly."""
    if dtype == "BF16":
        return from_bf16(values.astype(np.uint16, copy=False)).astype(np.float64)
    return values.astype(np.float64)


def narrow(values: NDArray[np.float64], dtype: str) -> Array:
    """Round float64 to a tensor's own dtype; what is too large becomes infinite, for the check of finite values to find."""
    with np.errstate(over="ignore"):
        if dtype == "BF16":
            return to_bf16(np.asarray(values, dtype=np.float32))
        return np.asarray(values, dtype=DTYPES[dtype])
