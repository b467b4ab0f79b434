"""Movements that are a product of two thin matrices, `B A`: of low-rank training, and of the low-rank codec.

A tensor counts as the matrix of its rows: `(out, in)`, with all axes but the first in `in`. It travels as `NAME@A` (r, in) and
`NAME@B` (out, r), with any scale inside B. It is products that are fused, never factors: the mean of products is not the product of
means (Wang et al., 2024, arXiv:2409.05976, section 3).
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from trunkline.errors import Reason, RefusedValue
from trunkline.tensors import FLOATS, Array, SetSpec, TensorSpec, row_slices

BLOCK = 1 << 14
"""Elements that are added up at a time: they are gone over once a rank, so they should stay in the nearest cache."""


Factor = NDArray[np.float32] | NDArray[np.float64]


def multiplied(a: Factor, b: Factor) -> Array:
    """`b @ a`, added up in the order of the ranks, so the same bits everywhere.

    In a dtype that holds each term exactly, so that only the sum rounds: float32 of bfloat16 factors, float64 of float32 ones.

    :param a: `(r, in)`. :param b: `(rows, r)`, of the same dtype.
    """
    total = np.zeros((b.shape[0], a.shape[1]), dtype=a.dtype)
    for rows in row_slices(TensorSpec(total.shape), BLOCK):
        part, factor = total[rows], b[rows]
        term = np.empty_like(part)
        for rank in range(a.shape[0]):
            np.multiply(factor[:, rank, None], a[rank], out=term)
            part += term
    return total


def factor_specs(tensor: TensorSpec, rank: int, dtype: str) -> dict[str, TensorSpec]:
    """The two factors on the wire, by suffix."""
    return {"@A": TensorSpec((rank, tensor.row), dtype), "@B": TensorSpec((tensor.rows, rank), dtype)}


def ranks_in(wire: SetSpec, spec: SetSpec) -> Mapping[str, int]:
    """The ranks of the products in a file, by name.

    :raises RefusedValue: `shape`: a product of something that is no matrix, or of a rank that no product has.
    """
    ranks = {}
    for name, tensor in spec.items():
        factor = wire.get(f"{name}@A")
        if factor is None:
            continue
        most = min(tensor.rows, tensor.row) if len(tensor.shape) > 1 and tensor.dtype in FLOATS else 0
        if len(factor.shape) != 2 or not 1 <= factor.shape[0] <= most:
            raise RefusedValue(
                Reason.SHAPE,
                f"{name!r} should have a product of rank 1 to {most}, found factors {factor.shape} for {tensor.shape}.",
            )
        ranks[name] = factor.shape[0]
    return ranks
