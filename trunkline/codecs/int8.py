"""A quarter of the bytes."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trunkline.codecs.codec import Packed, Read, Sliced
from trunkline.codecs.scaled import Runs, check_scales, largest_scale, quantise, spread
from trunkline.tensors import TensorSpec

LEVELS, RUN = 127, 4096
"""Whole numbers on either side of zero, and elements that share a scale at most: the rows of all but the widest layers have one."""


class Int8(Sliced):
    """The difference in steps of 1/127 of the largest in its row: about 25 % of the bytes."""

    name: ClassVar = "int8"

    def parts(self, tensor: TensorSpec) -> Mapping[str, TensorSpec]:
        return {"": TensorSpec(tensor.shape, "I8"), "@scale": Runs(tensor, RUN).scales}

    def slices(self, tensor: TensorSpec) -> Iterator[slice]:
        return Runs(tensor, RUN).slices()

    def pack(self, tensor: TensorSpec, rows: slice, moved: NDArray[np.float32]) -> Packed:
        runs = Runs(tensor, RUN)
        scales, whole = quantise(runs, moved, LEVELS)
        return {"@scale": (runs.around(rows)[1], scales), "": (rows, whole.astype(np.int8))}

    def check(self, name: str, tensor: TensorSpec, part: Read) -> None:
        check_scales(name, Runs(tensor, RUN), part)

    def most(self, tensor: TensorSpec, part: Read) -> float:
        return (LEVELS + 1) * largest_scale(Runs(tensor, RUN), part)

    def decode(self, tensor: TensorSpec, part: Read, rows: slice) -> NDArray[np.float32]:
        runs = Runs(tensor, RUN)
        around, which, inside = runs.around(rows)
        whole = spread(runs, part("", around).astype(np.float32), part("@scale", which))
        return whole[inside] if whole.shape else whole
