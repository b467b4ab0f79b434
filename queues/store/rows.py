"""An embedding's gradient is zero in the rows of tokens that a batch has not: half of what a small model would send."""

from collections.abc import Mapping

import torch
from torch import Tensor

from queues.store.store import Rows

LONG = 1024
"""Rows from which it is looked whether some are zero."""


def thinned(tensors: Mapping[str, Tensor | Rows]) -> dict[str, Tensor | Rows]:
    """Each long matrix of which fewer than half of the rows hold anything, as these rows."""
    return {name: _thin(tensor) for name, tensor in tensors.items()}


def _thin(tensor: Tensor | Rows) -> Tensor | Rows:
    if isinstance(tensor, Rows) or tensor.ndim != 2 or len(tensor) < LONG:
        return tensor
    if tensor.dtype != torch.float32 or not tensor.is_contiguous():
        return tensor
    held = tensor.view(torch.int32).any(1)  # bits: a minus zero is something, for the moments that it makes have its sign
    index = held.nonzero().view(-1)
    return tensor if 2 * len(index) > len(tensor) else Rows(index, tensor[index])
