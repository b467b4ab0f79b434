"""Gradient surgery between tasks."""

from typing import Annotated, ClassVar

from pydantic import Field

from master.rules.conflict import ConflictAverse
from master.rules.rule import Matrix
from tasks import conflict


class PCGrad(ConflictAverse):
    """PCGrad (Yu et al., 2020, arXiv:2001.06782, algorithm 1): each task's movement loses what it has against each other task's,
    one after the other in a random order.

    The paper draws an order for every step of a batch. A round is one large step, so it takes the mean over `orders` draws; they
    come from `seed`, so that a round that is computed again is the same.
    """

    name: ClassVar[str] = "pcgrad"
    orders: Annotated[int, Field(ge=1, le=1_000, description="Random orders that it is the mean of.")] = 16
    seed: Annotated[int, Field(ge=0, lt=2**53, description="Of the random orders.")] = 0

    def weigh(self, products: Matrix) -> Matrix:
        return conflict.pcgrad(products, self.orders, self.seed)
