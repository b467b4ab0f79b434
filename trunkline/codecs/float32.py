"""Nothing is left out."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trunkline.codecs.codec import Codec, Moved, Read, Write
from trunkline.tensors import TensorSpec


class Float32(Codec):
    """The values themselves, bit for bit."""

    name: ClassVar = "float32"
    lossy: ClassVar[bool] = False

    def parts(self, tensor: TensorSpec) -> Mapping[str, TensorSpec]:
        return {"": tensor}

    def encode(self, tensor: TensorSpec, moved: Moved, write: Write) -> None:
        raise AssertionError("every tensor travels as it is")

    def decode(self, tensor: TensorSpec, part: Read, rows: slice) -> NDArray[np.float32]:
        raise AssertionError("every tensor travels as it is")
