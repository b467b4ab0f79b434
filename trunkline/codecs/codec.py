"""What a codec is: how one tensor's movement from a base that both sides hold is written in fewer bytes, and read again by rows.

A codec knows one tensor at a time and only its difference from the base. Everything else is the same for all of them and stands
in `encoding` and `decoder`: names, tensors that travel as they are, products, what an earlier round left over, and all checks.
What is decoded must be the same bits on every machine, so a codec decodes by operations on single elements only, whose results
IEEE 754 fixes; a matrix product of a library adds in an order that depends on the processor.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trunkline.choices import Choice
from trunkline.tensors import FLOATS, Array, SetSpec, TensorSpec

Read = Callable[[str, slice], Array]
"""Rows of a tensor, by name, in the tensor's own dtype; by suffix where it reads the parts of one tensor on the wire."""

Moved = Callable[[slice], NDArray[np.float32]]
"""Rows of what is to be sent of a tensor: its difference from the base. Fresh each time: the codec may work in it."""

Write = Callable[[str, slice, Array], None]
"""Takes rows of a part of a tensor on the wire, by suffix."""


class Codec(Choice):
    """One way to write a difference; a subclass names itself, declares its options and is final."""

    lossy: ClassVar[bool] = True

    @abstractmethod
    def parts(self, tensor: TensorSpec) -> Mapping[str, TensorSpec]:
        """What a float tensor's difference becomes on the wire, by the suffix of its name. Decided by shape and dtype alone."""

    @abstractmethod
    def encode(self, tensor: TensorSpec, moved: Moved, write: Write) -> None:
        """Write every row of every part. What is not finite must stay so, for the other side to refuse."""

    @abstractmethod
    def decode(self, tensor: TensorSpec, part: Read, rows: slice) -> NDArray[np.float32]:
        """Rows of the difference: as many elements, in any shape, in an array that is the caller's to change."""

    def check(self, name: str, tensor: TensorSpec, part: Read) -> None:
        """Look at what shapes and dtypes do not tell, before anything is decoded.

        :raises RefusedValue: `malformed`, `not_finite`: a part cannot have come from this codec.
        """

    def forms(self, tensor: TensorSpec) -> Mapping[str, TensorSpec] | None:
        """The parts of a tensor, or None if it travels as it is: it is not of floats, or would not become smaller."""
        if tensor.dtype not in FLOATS:
            return None
        parts = self.parts(tensor)
        return parts if sum(part.nbytes for part in parts.values()) < tensor.nbytes else None


@dataclass(frozen=True, slots=True)
class Owed:
    """What earlier rounds did not send, in float32, by name: error feedback adds it to what is sent next."""

    spec: SetSpec
    read: Read
