"""Torch tensors that are filled where they lie, whole or as the shard that this process holds.

A shard asks nobody: its places in the whole tensor follow from the mesh, the placements and this process's own coordinate, and its
values from the places. So there is nothing to send, and no order in which processes must come.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tasks.seeded.grid import Places
from tasks.seeded.tensor import SeededTensor
from trunkline.errors import UsageError
from trunkline.tensors import Array

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64"}
"""Dtypes that can be made, as safetensors names them."""

_PIECE = 1 << 22  # elements that are on their way to another device at a time


@torch.no_grad()
def fill_(tensor: Tensor, seeded: SeededTensor, threads: int = 1) -> Tensor:
    """Make a tensor what it should be, in place; of a DTensor, the part that lies here. No process hears of it.

    :param tensor: of the whole shape that `seeded` has; a DTensor may be sharded or replicated in any way, unevenly too.
    :returns: `tensor`.
    :raises UsageError: another shape or dtype; a partial sum, which has no values of its own; a shard whose places cannot be told.
    """
    if tuple(tensor.shape) != seeded.shape or NAMES.get(tensor.dtype) != seeded.dtype:
        raise UsageError(
            f"`tensor` should be {seeded.dtype} {seeded.shape} for {seeded.name!r}, found {tensor.dtype} {tuple(tensor.shape)}."
        )
    if not hasattr(tensor, "placements"):
        _fill(tensor, seeded, [range(length) for length in seeded.shape], threads)
        return tensor
    part: DTensor = tensor  # type: ignore[assignment]
    coordinate = part.device_mesh.get_coordinate()
    if coordinate is not None:  # else this process holds nothing of it
        local: Tensor = part._local_tensor  # `to_local` makes another tensor of it where it requires a gradient
        index = places_of(seeded.shape, tuple(part.device_mesh.shape), part.placements, coordinate, tuple(local.shape))
        _fill(local, seeded, index, threads)
    return tensor


def _fill(local: Tensor, seeded: SeededTensor, index: Sequence[Places], threads: int) -> None:
    if local.device.type == "cpu" and local.is_contiguous():
        seeded.fill(_array(local), *index, threads=threads)
        return
    if not local.ndim or not local.numel():
        local.copy_(_tensor(seeded.read(*index, threads=threads), local.dtype))
        return
    rows = max(1, _PIECE * len(local) // local.numel())
    for at in range(0, len(local), rows):
        piece = seeded.read(index[0][at : at + rows], *index[1:], threads=threads)
        local[at : at + rows].copy_(_tensor(piece, local.dtype))


def _array(tensor: Tensor) -> Array:
    plain = tensor.detach()
    return (plain.view(torch.uint16) if plain.dtype == torch.bfloat16 else plain).numpy()


def _tensor(array: Array, dtype: torch.dtype) -> Tensor:
    made = torch.from_numpy(array)
    return made.view(torch.bfloat16) if dtype == torch.bfloat16 else made


# -- where a shard lies ------------------------------------------------------------------------------------------------


def places_of(
    shape: Sequence[int], mesh: Sequence[int], placements: Sequence[Any], coordinate: Sequence[int], local: Sequence[int]
) -> list[Places]:
    """For each axis, the places of the whole tensor that a process holds.

    Axes that several mesh axes share may have been cut from the left, as DTensor does, or with the strided ones last, as FSDP2 does
    over tensor parallelism. Where the length is uneven the two differ for some processes, and the local shape tells which it was.

    :param mesh: processes along each axis of the mesh.
    :param placements: one for each axis of the mesh.
    :param coordinate: this process's.
    :param local: shape of what it holds.
    :raises UsageError: no such cut gives `local`, or two do; or a placement is partial.
    """
    found: list[list[Places]] = []
    for cut in (_from_the_left, _strided_last):
        index = cut(shape, mesh, placements, coordinate)
        if [len(axis) for axis in index] == list(local) and not any(_same(index, other) for other in found):
            found.append(index)
    if len(found) != 1:
        some = "none" if not found else "two"
        raise UsageError(
            f"`tensor` should be a part of {tuple(shape)} by {tuple(placements)} on a mesh {tuple(mesh)}, "
            f"found {tuple(local)} at {tuple(coordinate)}, for which there are {some}."
        )
    return found[0]


def _same(one: list[Places], other: list[Places]) -> bool:
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(one, other, strict=True))


def _from_the_left(shape: Sequence[int], mesh: Sequence[int], placements: Sequence[Any], coordinate: Sequence[int]) -> list[Places]:
    index: list[Places] = [range(length) for length in shape]
    for count, placement, at in zip(mesh, placements, coordinate, strict=True):
        if (axis := _axis(placement)) is None:
            continue
        factor = getattr(placement, "split_factor", 1)
        pieces = [_chunk(_chunk(index[axis], factor, number), count, at) for number in range(factor)]
        index[axis] = pieces[0] if factor == 1 else np.concatenate([np.asarray(piece, np.int64) for piece in pieces])
    return index


def _strided_last(shape: Sequence[int], mesh: Sequence[int], placements: Sequence[Any], coordinate: Sequence[int]) -> list[Places]:
    index: list[Places] = [range(length) for length in shape]
    cuts = list(zip(mesh, placements, coordinate, strict=True))
    plain = [cut for cut in cuts if getattr(cut[1], "split_factor", 1) == 1]
    strided = [cut for cut in cuts if getattr(cut[1], "split_factor", 1) != 1]
    for count, placement, at in [*plain, *reversed(strided)]:
        if (axis := _axis(placement)) is not None:
            index[axis] = _chunk(index[axis], count, at)
    return index


def _axis(placement: Any) -> int | None:
    """Of the tensor, that a placement shards; None: it replicates.

    :raises UsageError: it does neither.
    """
    if placement.is_replicate():
        return None
    if (axis := getattr(placement, "dim", None)) is None:
        raise UsageError(f"`placements` should be Shard or Replicate, found {placement}.")
    return int(axis)


def _chunk(index: Places, count: int, at: int) -> Places:
    """As `torch.chunk`, with empty ones at the end."""
    size = -(-len(index) // count)
    return index[at * size : (at + 1) * size]
