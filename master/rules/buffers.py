"""What becomes of tensors that are no floats: counters and masks. They keep their dtype and shape, whatever the rule."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from master.rules.rule import Contribution, Matrix, Parameters
from trunkline.tensors import DTYPES, Array
from trunkline.values import Section


class Buffers(Section):
    """The policy of a job."""

    integers: Literal["mean", "max", "min", "keep"] = "mean"  # mean: weighted, rounded to the nearest even whole number
    booleans: Literal["majority", "any", "all", "keep"] = "majority"  # majority: by weight; a tie is false

    def read(
        self, base: Parameters, updates: Sequence[Contribution], weights: Mapping[str, float], name: str, rows: slice
    ) -> Array:
        """Rows of an integer or boolean tensor of the target set. Children without a share have no say."""
        dtype = base.spec[name].dtype
        way = self.booleans if dtype == "BOOL" else self.integers
        taken = [update for update in updates if weights.get(update.child, 0.0) > 0]
        if way == "keep" or not taken:
            return base.read(name, rows)
        values = [update.parameters.read(name, rows) for update in taken]
        if way in _ENDS:
            return np.asarray(_ENDS[way](np.stack(values), axis=0)).astype(DTYPES[dtype])
        total: Matrix = np.zeros(values[0].shape)
        for update, value in zip(taken, values, strict=True):
            total = np.asarray(total + value.astype(np.float64) * weights[update.child])
        return np.asarray(total > 0.5) if dtype == "BOOL" else _whole(total, np.stack(values))


def _whole(mean: Matrix, values: Array) -> Array:
    """Rounded to whole numbers in the dtype of the values, and never outside them: float64 does not hold every large one."""
    rounded = np.clip(np.rint(mean), -(2.0**63), np.nextafter(2.0**63, 0.0)).astype(values.dtype)
    return np.clip(rounded, values.min(axis=0), values.max(axis=0))


_ENDS = {"max": np.max, "min": np.min, "any": np.any, "all": np.all}
