"""Half the bytes: eight bits of every movement."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trunkline.codecs.codec import Codec, Moved, Read, Write
from trunkline.tensors import TensorSpec, from_bf16, row_slices, to_bf16


class Bf16(Codec):
    """The difference from the base, rounded to bfloat16: half the bytes, and each movement to one part in 256."""

    name: ClassVar = "bf16"

    def parts(self, tensor: TensorSpec) -> Mapping[str, TensorSpec]:
        return {"": TensorSpec(tensor.shape, "BF16")}

    def encode(self, tensor: TensorSpec, moved: Moved, write: Write) -> None:
        for rows in row_slices(tensor):
            write("", rows, to_bf16(moved(rows)))

    def decode(self, tensor: TensorSpec, part: Read, rows: slice) -> NDArray[np.float32]:
        return from_bf16(part("", rows))
