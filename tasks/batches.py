"""What goes into an encoder, what comes out of it, and a batch of one task.

Shapes: B samples, T tokens, F... one sample's features, H hidden, C labels.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Inputs = Mapping[str, Tensor]
"""Text: `input_ids` and `attention_mask`, both (B, T) int64. Vectors: `features` (B, F...) float32."""

IGNORED = -100
"""The label of a token that has none: special, padding, or not the first piece of its word."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """What the encoder makes of one side of a batch."""

    pooled: Tensor  # (B, H)
    tokens: Tensor | None = None  # (B, T, H); None where there are no tokens
    mask: Tensor | None = None  # (B, T) int64


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one task, padded to the longest of them."""

    task: str
    inputs: tuple[Inputs, ...]  # one a side: two for pairs
    labels: Tensor  # single (B,) int64; multi (B, C) float32; regression (B,) float32; tokens (B, T) int64; pairs (B,), unused
    size: int  # B

    def pieces(self, size: int | None) -> Iterator["Batch"]:
        """This batch in parts of at most `size` samples, in order; None: itself."""
        if size is None or size >= self.size:
            yield self
            return
        for start in range(0, self.size, size):
            part = slice(start, min(start + size, self.size))
            inputs = tuple({name: tensor[part] for name, tensor in side.items()} for side in self.inputs)
            yield Batch(self.task, inputs, self.labels[part], part.stop - start)

    def to(self, device: torch.device) -> "Batch":
        """This batch on a device."""
        if self.labels.device == device:
            return self
        inputs = tuple({name: tensor.to(device, non_blocking=True) for name, tensor in side.items()} for side in self.inputs)
        return Batch(self.task, inputs, self.labels.to(device, non_blocking=True), self.size)
