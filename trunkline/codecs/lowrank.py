"""A matrix as two thin ones."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trunkline.codecs.bf16 import Bf16
from trunkline.codecs.codec import Codec, Moved, Read, Write
from trunkline.codecs.product import factor_specs
from trunkline.tensors import TensorSpec, narrow, row_slices

_SEED = 0
"""Of the first guess of the directions: the same difference gives the same file."""


class Lowrank(Codec):
    """The difference of each matrix as a product of two thin ones in bfloat16; what is no matrix as `bf16` sends it."""

    name: ClassVar = "lowrank"

    rank: Annotated[int, Field(ge=1, le=256, description="Columns of the thin matrices: what a difference is made of.")] = 8

    def parts(self, tensor: TensorSpec) -> Mapping[str, TensorSpec]:
        if len(tensor.shape) > 1:
            factors = factor_specs(tensor, min(self.rank, tensor.rows, tensor.row), "BF16")
            if sum(factor.nbytes for factor in factors.values()) < 2 * tensor.elements:
                return factors
        return Bf16().parts(tensor)

    def encode(self, tensor: TensorSpec, moved: Moved, write: Write) -> None:
        parts = self.parts(tensor)
        if "@A" not in parts:
            Bf16().encode(tensor, moved, write)
            return
        for suffix, values in zip(("@A", "@B"), _factors(tensor, moved, parts["@A"].rows), strict=True):
            write(suffix, slice(0, len(values)), narrow(values, "BF16"))

    def decode(self, tensor: TensorSpec, part: Read, rows: slice) -> NDArray[np.float32]:
        return Bf16().decode(tensor, part, rows)  # products are read alike in every codec, see `decoder`


def _factors(tensor: TensorSpec, moved: Moved, rank: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A `(r, in)` and B `(out, r)` whose product is near the nearest of that rank; the matrix is read by slices, four times.

    Directions that the matrix stretches most, by one step of subspace iteration from a random start (Halko et al., 2011,
    arXiv:0909.4061, algorithm 4.4 with q = 1); B is their orthonormal basis, A what the matrix is in it (algorithm 5.1, step 1).
    PowerSGD (Vogels et al., 2019, arXiv:1905.13727) sends the same two matrices.
    """
    start = np.random.default_rng(_SEED).standard_normal((tensor.row, rank))
    across = _orthonormal(_transposed_times(tensor, moved, _orthonormal(_times(tensor, moved, start))))
    columns = _orthonormal(_times(tensor, moved, across))
    return _transposed_times(tensor, moved, columns).T, columns


def _times(tensor: TensorSpec, moved: Moved, right: NDArray[np.float64]) -> NDArray[np.float64]:
    """`M @ right`: (out, r)."""
    return np.concatenate([_matrix(moved(rows)) @ right for rows in row_slices(tensor)])


def _transposed_times(tensor: TensorSpec, moved: Moved, left: NDArray[np.float64]) -> NDArray[np.float64]:
    """`M.T @ left`: (in, r)."""
    total = np.zeros((tensor.row, left.shape[1]))
    for rows in row_slices(tensor):
        total += _matrix(moved(rows)).T @ left[rows]
    return total


def _matrix(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """In float64: the squares of what float32 can hold overflow it."""
    return values.reshape(len(values), -1).astype(np.float64)


def _orthonormal(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.linalg.qr(columns)[0]
