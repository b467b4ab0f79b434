"""No update moves further than a given length."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from master.rules.deltas import moved, rows_of
from master.rules.lengths import lengths
from master.rules.rule import Contribution, Filter, Notes, Parameters
from trunkline.tensors import FLOATS, Array, TensorSpec


class Clip(Filter):
    """Norm clipping (Sun et al., 2019, arXiv:1911.07963): an update that moved further than `norm` is drawn back to that
    length, in its own direction. Others, and one that did not move, stay as they are, bit for bit. Counters and masks stay too.
    """

    name: ClassVar[str] = "clip"
    norm: Annotated[
        float, Field(gt=0, allow_inf_nan=False, description="Most that an update may move by, over all its float tensors.")
    ] = 1.0

    def filter(self, base: Parameters, updates: Sequence[Contribution]) -> tuple[list[Contribution], Notes]:
        found = lengths(base, updates)
        factors = {child: self.norm / length for child, length in found.items() if length > self.norm}
        kept = [
            replace(update, parameters=_shortened(update, base, factors[update.child])) if update.child in factors else update
            for update in updates
        ]
        return kept, {"norms": found, "clipped": sorted(factors)}


def _shortened(update: Contribution, base: Parameters, factor: float) -> Parameters:
    """What it was trained from, and a part of the movement; floats in float64, so that they are rounded once, at the end."""
    before, after = update.base or base, update.parameters
    spec = {name: TensorSpec(tensor.shape, "F64") if tensor.dtype in FLOATS else tensor for name, tensor in after.spec.items()}

    def read(name: str, rows: slice) -> Array:
        if after.spec[name].dtype not in FLOATS:
            return after.read(name, rows)
        return np.asarray(rows_of(before, name, rows) + factor * moved(update, base, name, rows))

    return Parameters(spec, read)
