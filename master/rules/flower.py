"""A strategy of Flower's as a rule."""

from collections.abc import Sequence
from types import ModuleType
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field

from master.rules import weights
from master.rules.deltas import floats, rows_of
from master.rules.rule import Combine, Combined, Contribution, Matrix, Parameters
from trunkline.choices import pairs
from trunkline.tensors import Array


class Flower(Combine):
    """`flower:STRATEGY,KEY=VALUE`: what `aggregate_train` of a Flower 1.42 strategy (Beutel et al., 2020, arXiv:2007.14390) makes
    of the updates: FedAvg, FedProx, FedMedian, FedTrimmedAvg, Krum, MultiKrum or Bulyan, with the strategy's own options, for
    example `flower:FedTrimmedAvg,beta=0.1`. It is here to compare with, and to move over from Flower step by step.

    Flower works on whole sets: all updates are held in memory at once. It computes in float32 and knows no tasks. Strategies that
    keep something from round to round are refused, since it would be gone when the master is started again; `momentum`, `adam`,
    `yogi` and `adagrad` keep theirs in files. Counters and masks are not shown to Flower; they follow the job's policy.
    """

    name: ClassVar[str] = "flower"
    strategy: Annotated[str, Field(description="Name of the strategy; it stands by itself, before the options.")]
    options: Annotated[tuple[tuple[str, float | int], ...], Field(description="The strategy's own, as KEY=VALUE.")] = ()

    def __str__(self) -> str:
        return ",".join([f"{self.name}:{self.strategy}", *(f"{key}={value!r}" for key, value in self.options)])

    @classmethod
    def of_options(cls, parts: Sequence[str], what: str) -> Self:
        strategy = parts[0].strip() if parts else ""
        given = pairs(parts[1:], f"`{what}` {cls.name}:{strategy[:80]}")
        return cls(strategy=strategy, options=tuple(_flower().read_options(strategy, given).items()))

    @property
    def least(self) -> int:
        return _flower().least(self.strategy, dict(self.options))

    def combine(self, base: Parameters, updates: Sequence[Contribution], most: float) -> Combined:
        shares = weights.share_out(updates, "samples", most)
        names = [name for name in floats(base) if base.spec[name].elements]
        taken = [update for update in updates if shares[update.child] > 0]
        sets = [{name: _whole(update.parameters, name) for name in names} for update in taken]
        found = _flower().aggregate(self.strategy, dict(self.options), sets, [shares[update.child] for update in taken])

        def read(name: str, rows: slice) -> Matrix:
            tensor = base.spec[name]
            if not tensor.elements:
                return np.zeros((rows.stop - rows.start, *tensor.shape[1:]))
            return np.asarray(found[name][rows] if tensor.shape else found[name], dtype=np.float64)

        return Combined(read, shares)


def _whole(parameters: Parameters, name: str) -> Array:
    """A tensor as Flower would get it: float32, or float64 where it is that."""
    tensor = parameters.spec[name]
    values = rows_of(parameters, name, slice(0, tensor.rows))
    return values if tensor.dtype == "F64" else values.astype(np.float32)


def _flower() -> ModuleType:
    """Flower takes seconds to load, and only this rule needs it."""
    from master.flower import strategies

    return strategies
