"""The mean of the updates that lie most among the others."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from master.rules import weights
from master.rules.distances import krum_scores, squared_distances
from master.rules.krum import Faulty
from master.rules.mean import weighted
from master.rules.robust import Robust
from master.rules.rule import Combined, Contribution, Parameters


class MultiKrum(Robust):
    """Multi-Krum (Blanchard et al., 2017, arXiv:1703.02757): the mean, by samples, of the `keep` updates with the best Krum scores.
    It needs `2 faulty + 3` children, and as many more than the faulty ones as it keeps. Of equal scores the first child counts.
    """

    name: ClassVar[str] = "multi_krum"
    faulty: Faulty = 1
    keep: Annotated[int, Field(ge=0, le=10_000, description="Updates that are averaged; 0: all but the faulty ones and two.")] = 0

    @property
    def least(self) -> int:
        return max(2 * self.faulty + 3, self.keep + self.faulty)

    def among(self, base: Parameters, updates: Sequence[Contribution], shares: Mapping[str, float]) -> Combined:
        scores = krum_scores(squared_distances(base, updates), self.faulty)
        best = np.argsort(scores, kind="stable")[: self.keep or len(updates) - self.faulty - 2]
        chosen = sorted(updates[int(at)].child for at in best)
        counted = weights.shares({child: share if child in chosen else 0.0 for child, share in shares.items()})
        return Combined(weighted(base, updates, counted), counted, {"chosen": chosen})
