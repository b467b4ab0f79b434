"""Half the bytes: eight bits of every movement."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trunkline.codecs.codec import Packed, Read, Sliced
from trunkline.tensors import TensorSpec, from_bf16, row_slices, to_bf16


class Bf16(Sliced):
    """The difference from the base, rounded to bfloat16: half the bytes, and each movement to one part in 256."""

    name: ClassVar = "bf16"

    def parts(self, tensor: TensorSpec) -> Mapping[str, TensorSpec]:
        return {"": TensorSpec(tensor.shape, "BF16")}

    def slices(self, tensor: TensorSpec) -> Iterator[slice]:
        return row_slices(tensor)

    def pack(self, tensor: TensorSpec, rows: slice, moved: NDArray[np.float32]) -> Packed:
        return {"": (rows, to_bf16(moved))}

    def decode(self, tensor: TensorSpec, part: Read, rows: slice) -> NDArray[np.float32]:
        return from_bf16(part("", rows))
