"""What a codec is: how one tensor's movement from a base that both sides hold is written in fewer bytes, and read again by rows.

A codec knows one tensor at a time and only its difference from the base. Everything else is the same for all of them and stands
in `encoding` and `decoder`: names, tensors that travel as they are, products, what an earlier round left over, and all checks.
What is decoded must be the same bits on every machine, so a codec decodes by operations on single elements only, whose results
IEEE 754 fixes; a matrix product of a library adds in an order that depends on the processor.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from trunkline.choices import Choice
from trunkline.tensors import FLOATS, Array, SetSpec, TensorSpec

Read = Callable[[str, slice], Array]
"""Rows of a tensor, by name, in the tensor's own dtype; by suffix where it reads the parts of one tensor on the wire."""

Moved = Callable[[slice], NDArray[np.float32]]
"""Rows of what is to be sent of a tensor: its difference from the base. Fresh each time: the codec may work in it."""

Write = Callable[[str, slice, Array], None]
"""Takes rows of a tensor, by name, or of a part of one on the wire, by suffix. The array is given away: nobody changes it after."""

Packed = Mapping[str, tuple[slice, Array]]
"""What some rows of a tensor became: rows of its parts on the wire, by suffix, in the shapes that a file would give them."""


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

    def most(self, tensor: TensorSpec, part: Read) -> float | None:
        """What no element of a difference is beyond, by magnitude, where little of a file tells that; None: decode it to see."""
        return None

    def forms(self, tensor: TensorSpec) -> Mapping[str, TensorSpec] | None:
        """The parts of a tensor, or None if it travels as it is: it is not of floats, or would not become smaller."""
        if tensor.dtype not in FLOATS:
            return None
        parts = self.parts(tensor)
        return parts if sum(part.nbytes for part in parts.values()) < tensor.nbytes else None


class Sliced(Codec):
    """A codec that looks at each row once: what some rows become depends on no others, so they can be read again at once."""

    @abstractmethod
    def slices(self, tensor: TensorSpec) -> Iterator[slice]:
        """Rows that are written together: in order, all of them, each slice of bounded size."""

    @abstractmethod
    def pack(self, tensor: TensorSpec, rows: slice, moved: NDArray[np.float32]) -> Packed:
        """What one of these slices becomes, which is all that decoding it asks for; the work may be done in `moved`."""

    def encode(self, tensor: TensorSpec, moved: Moved, write: Write) -> None:
        for rows in self.slices(tensor):
            for suffix, (where, values) in self.pack(tensor, rows, moved(rows)).items():
                write(suffix, where, values)


class Wire(Protocol):
    """A file that travels, or what can be read of it already."""

    @property
    def spec(self) -> SetSpec: ...

    def read(self, name: str, rows: slice | None = None) -> Array:
        """Rows of a tensor, or all of it, fresh."""
        ...


@dataclass(frozen=True, slots=True)
class Owed:
    """What earlier rounds did not send, in float32, by name: error feedback adds it to what is sent next."""

    spec: SetSpec
    read: Read
