"""Buffered asynchronous averaging: nobody waits for the slowest."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from master.rules import weights
from master.rules.deltas import weighted_movement
from master.rules.rule import Combine, Combined, Contribution, Parameters

if TYPE_CHECKING:
    from master.jobs import JobSpec

Discount = Literal["polynomial", "hinge", "constant"]


class FedBuff(Combine):
    """FedBuff (Nguyen et al., 2022, arXiv:2106.06581, algorithm 1): a round closes with the first `size` updates, whichever round
    they were trained in. Who is not done goes on training, and counts later by its movement, the less the staler it is.

    Each child gives at most one update to a buffer. One that is staler than `most_stale` is refused, and its child begins anew.
    """

    name: ClassVar[str] = "fedbuff"
    size: Annotated[int, Field(ge=1, le=10_000, description="Updates that fill the buffer and close a round.")]
    by: Annotated[weights.Weighting, Field(description="What a child counts by: samples, sqrt, equal or tasks.")] = "samples"
    discount: Annotated[
        Discount, Field(description="How staleness s lessens an update: polynomial (1+s)^-power, hinge, or constant.")
    ] = "polynomial"
    power: Annotated[float, Field(ge=0, le=10, description="Of the polynomial discount; 0.5 is the paper's 1/sqrt(1+s).")] = 0.5
    slope: Annotated[float, Field(gt=0, le=1e6, description="Of the hinge: 1 up to `after`, then 1/(1+slope(s-after)).")] = 1.0
    after: Annotated[int, Field(ge=0, le=10_000, description="Staleness up to which the hinge discounts nothing.")] = 2
    most_stale: Annotated[int, Field(ge=0, le=10_000, description="Rounds fused meanwhile after which an update is refused.")] = 8

    def objection(self, job: "JobSpec") -> str | None:
        wanted = job.children
        if wanted.close_at is not None:
            return f"`children.close_at` should be left out for `fedbuff`, whose size closes a round, found {wanted.close_at}"
        if wanted.fewest > self.size:
            return f"`fedbuff:size` should be at least `least_updates` ({wanted.fewest}), found {self.size}"
        return None

    @property
    def buffered(self) -> "FedBuff":
        return self

    def worth(self, staleness: int) -> float:
        """The factor of an update: in (0, 1], and never more for a staler one (Xie et al., 2019, arXiv:1903.03934, section 5.2)."""
        if self.discount == "polynomial":
            return float(1.0 + staleness) ** -self.power
        if self.discount == "hinge":
            return 1.0 / (1.0 + self.slope * max(0, staleness - self.after))
        return 1.0

    def combine(self, base: Parameters, updates: Sequence[Contribution], most: float) -> Combined:
        shares = weights.share_out(updates, self.by, most)
        worth = {update.child: self.worth(update.staleness) for update in updates}
        counted = {child: share * worth[child] for child, share in shares.items()}
        stale = {update.child: {"staleness": update.staleness, "worth": worth[update.child]} for update in updates}
        return Combined(weighted_movement(base, updates, counted), weights.shares(counted), stale)
