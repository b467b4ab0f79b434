"""The one update that lies most among the others."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from master.rules.distances import krum_scores, squared_distances
from master.rules.mean import weighted
from master.rules.robust import Robust
from master.rules.rule import Combined, Contribution, Parameters

Faulty = Annotated[int, Field(ge=0, le=10_000, description="Children of a task that may send anything at all.")]


class Krum(Robust):
    """Krum (Blanchard et al., 2017, arXiv:1703.02757, section 4): the target is the one update whose summed squared distance to the
    `n - faulty - 2` updates closest to it is least. It needs `2 faulty + 3` children. Whoever is chosen counts alone: with data
    that differ from child to child that is little, and `multi_krum` is the better choice. Of equal scores the first child's counts.
    """

    name: ClassVar[str] = "krum"
    faulty: Faulty = 1

    @property
    def least(self) -> int:
        return 2 * self.faulty + 3

    def among(self, base: Parameters, updates: Sequence[Contribution], shares: Mapping[str, float]) -> Combined:
        scores = krum_scores(squared_distances(base, updates), self.faulty)
        chosen = updates[int(np.argmin(scores))].child
        counted = {update.child: float(update.child == chosen) for update in updates}
        return Combined(weighted(base, updates, counted), counted, {"chosen": [chosen]})
