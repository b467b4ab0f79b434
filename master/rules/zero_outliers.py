"""Updates that moved much further than the others did not move at all."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Annotated, ClassVar

from pydantic import Field

from master.rules.lengths import lengths
from master.rules.rule import Contribution, Filter, Notes, Parameters


class ZeroOutliers(Filter):
    """Zeroing of outliers, as TensorFlow Federated does it with the quantile of Andrew et al., 2021, arXiv:1905.03871, here of
    the round itself: an update that moved further than `times` the median of all is taken for one that did not move. It keeps its
    weight, and so draws the target back to the base. Where most did not move, whoever did is an outlier.
    """

    name: ClassVar[str] = "zero_outliers"
    times: Annotated[
        float, Field(ge=1, allow_inf_nan=False, description="How many times as far as the median child one may have moved.")
    ] = 5.0

    def filter(self, base: Parameters, updates: Sequence[Contribution]) -> tuple[list[Contribution], Notes]:
        found = lengths(base, updates)
        most = self.times * median(found.values()) if found else 0.0
        zeroed = sorted(child for child, length in found.items() if length > most)
        kept = [replace(update, parameters=update.base or base) if update.child in zeroed else update for update in updates]
        return kept, {"norms": found, "zeroed": zeroed}
