"""What the elements of a tensor are distributed as. Fans are those of the whole tensor, whatever part is made.

Kaiming: He et al., Delving deep into rectifiers (2015), section 2.2. Xavier: Glorot and Bengio, Understanding the difficulty of
training deep feedforward neural networks (2010), equation 16.
"""

from math import prod, sqrt
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tasks.seeded.quantiles import FAR
from trunkline.errors import SpecError
from trunkline.values import Finite, Value

Spread = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Constant(Value):
    """One value everywhere."""

    kind: Literal["constant"] = "constant"
    value: Finite = 0.0


class Uniform(Value):
    """Evenly between `low` and `high`, in 2^24 steps; never `low` or `high` themselves where they are opposite numbers."""

    kind: Literal["uniform"] = "uniform"
    low: Finite = 0.0
    high: Finite = 1.0

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.low <= self.high:
            raise ValueError(f"`high` should be at least {self.low:g}, which is `low`, found {self.high:g}")
        return self


class Normal(Value):
    """Normal."""

    kind: Literal["normal"] = "normal"
    mean: Finite = 0.0
    std: Spread = 1.0


class Truncated(Value):
    """Normal, but never outside [low, high], nor further than 4.5 standard deviations from the mean."""

    kind: Literal["truncated"] = "truncated"
    mean: Finite = 0.0
    std: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    low: Finite = -2.0
    high: Finite = 2.0

    @model_validator(mode="after")
    def _fits(self) -> Self:
        low, high = self.bounds()
        if not low < high:
            raise ValueError(
                f"`low` and `high` should hold some of the normal distribution within {FAR} standard deviations between them, "
                f"found {self.low:g} and {self.high:g} at mean {self.mean:g} and standard deviation {self.std:g}"
            )
        return self

    def bounds(self) -> tuple[float, float]:
        """In standard deviations from the mean."""
        return max(-FAR, (self.low - self.mean) / self.std), min(FAR, (self.high - self.mean) / self.std)


Law = Annotated[Constant | Uniform | Normal | Truncated, Field(discriminator="kind")]
"""A distribution with all its numbers."""

Form = Literal["uniform", "normal"]


def fans(shape: tuple[int, ...], stacked: int = 0) -> tuple[int, int]:
    """How many inputs an output has, and how many outputs an input: of `(out, in, …)`, where the rest is a kernel's extent.

    :param stacked: leading axes that count independent matrices, such as the experts of (E, R, C).
    :raises SpecError: it is no matrix.

    >>> fans((64, 3, 7, 7)), fans((8, 128, 512), stacked=1)
    ((147, 3136), (512, 128))
    """
    own = shape[stacked:]
    if len(own) < 2:
        raise SpecError(f"`shape` should have 2 axes at least for a fan, found {own}.")
    extent = prod(own[2:])
    return own[1] * extent, own[0] * extent


def kaiming(
    shape: tuple[int, ...], form: Form = "normal", fan: Literal["in", "out"] = "in", gain: float = sqrt(2.0), stacked: int = 0
) -> Uniform | Normal:
    """Standard deviation `gain / sqrt(fan)`; the default gain is that of ReLU.

    :raises SpecError: `shape` is no matrix.
    """
    into, out = fans(shape, stacked)
    return _spread(form, gain / sqrt(max(1, into if fan == "in" else out)))


def xavier(shape: tuple[int, ...], form: Form = "uniform", gain: float = 1.0, stacked: int = 0) -> Uniform | Normal:
    """Standard deviation `gain sqrt(2 / (fan in + fan out))`.

    :raises SpecError: `shape` is no matrix.
    """
    return _spread(form, gain * sqrt(2.0 / max(1, sum(fans(shape, stacked)))))


def _spread(form: Form, std: float) -> Uniform | Normal:
    bound = sqrt(3.0) * std
    return Normal(std=std) if form == "normal" else Uniform(low=-bound, high=bound)
