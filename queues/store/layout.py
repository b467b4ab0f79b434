"""Where each parameter and its moments lie in a slot: one flat float32 tensor that holds all that a step changes.

A slot is `values | moment | moment | counts`, each part in the order of the layout, each tensor on a boundary of 64 bytes. The
order is that of the parameters as they were given: norms are summed in it, so another order would be another sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from queues.stream.spec import Learning
from trunkline.errors import NotFound, SpecError

ALIGN = 16
"""Elements: a cache line. The fused kernels cut their work at such places, so a part of a tensor is computed as the whole is."""

SHARED = "shared/"


def moments_of(learning: Learning) -> tuple[str, ...]:
    """What an optimiser keeps of each parameter, by torch's own names."""
    if learning.optimizer == "adamw":
        return ("exp_avg", "exp_avg_sq")
    return ("momentum_buffer",) if learning.momentum else ()


@dataclass(frozen=True)
class Layout:
    """Names and shapes in their order, and what is kept of each.

    :raises SpecError: a name is neither of the encoder nor of a head.
    """

    shapes: Mapping[str, tuple[int, ...]]
    moments: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in self.shapes:
            if not name.startswith((SHARED, "head/")):
                raise SpecError(f"a parameter's name should begin with shared/ or head/TASK/, found {name!r}.")

    @staticmethod
    def of(parameters: Mapping[str, Tensor], learning: Learning) -> "Layout":
        """:raises SpecError: a parameter is not float32."""
        for name, parameter in parameters.items():
            if parameter.dtype != torch.float32:
                raise SpecError(f"parameters of a stream should be float32, found {parameter.dtype} for {name!r}.")
        return Layout({name: tuple(p.shape) for name, p in parameters.items()}, moments_of(learning))

    @property
    def part(self) -> int:
        """Elements of the values, and of each moment."""
        return sum(_padded(prod(shape)) for shape in self.shapes.values())

    @property
    def size(self) -> int:
        """Elements of a slot."""
        return self.part * (1 + len(self.moments)) + _padded(len(self.shapes))

    def starts(self) -> dict[str, int]:
        """Where in a part each tensor begins."""
        found, start = {}, 0
        for name, shape in self.shapes.items():
            found[name] = start
            start += _padded(prod(shape))
        return found

    def slot(self, flat: Tensor) -> "Slot":
        """The views of a slot.

        :param flat: (size,) float32.
        """
        parts = [flat[i * self.part : (i + 1) * self.part] for i in range(1 + len(self.moments))]
        values, *moments = ({} for _ in parts)
        for part, views in zip(parts, (values, *moments), strict=True):
            for name, start in self.starts().items():
                shape = self.shapes[name]
                views[name] = part[start : start + prod(shape)].view(shape)
        counts = flat[self.part * len(parts) :]
        return Slot(values, dict(zip(self.moments, moments, strict=True)), {name: counts[i] for i, name in enumerate(self.shapes)})

    def shared(self) -> tuple[str, ...]:
        """Names of what all tasks share."""
        return tuple(name for name in self.shapes if name.startswith(SHARED))


@dataclass(frozen=True, slots=True)
class Slot:
    """Views of all that one step has."""

    values: Mapping[str, Tensor]
    moments: Mapping[str, Mapping[str, Tensor]]  # by moment, then by parameter
    counts: Mapping[str, Tensor]  # () float32: the steps that each parameter has made

    def parts(self, name: str) -> tuple[Tensor, ...]:
        """A parameter and its moments."""
        return (self.values[name], *(moment[name] for moment in self.moments.values()))

    def forget(self, name: str) -> None:
        """Have the moments of a parameter begin anew."""
        self.counts[name].zero_()
        for moment in self.moments.values():
            moment[name].zero_()

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name: `value/NAME`, `MOMENT/NAME`, `count/NAME`."""
        kept = {"value": self.values, **self.moments, "count": self.counts}
        return {f"{what}/{name}": tensor for what, views in kept.items() for name, tensor in views.items()}


def missing(name: str, wanted: tuple[int, ...], found: tuple[int, ...] | None) -> NotFound:
    """What a store says that is asked for a parameter that it has not, or not of this shape."""
    return NotFound(f"the store should have {name[:200]!r} of shape {wanted}, found {found or 'none'}.")


def _padded(elements: int) -> int:
    return -(-elements // ALIGN) * ALIGN
