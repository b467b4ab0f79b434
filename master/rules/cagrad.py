"""Conflict-averse descent."""

from typing import Annotated, ClassVar

from pydantic import Field

from master.rules.conflict import ConflictAverse
from master.rules.rule import Matrix
from tasks import conflict


class CAGrad(ConflictAverse):
    """CAGrad (Liu et al., 2021, arXiv:2110.14048, algorithm 1): within `c` times the mean's length around the mean of the tasks,
    the movement that is best for the task that gains least. `c=0` is the mean of the tasks.
    """

    name: ClassVar[str] = "cagrad"
    c: Annotated[float, Field(ge=0, lt=1, description="How far it may turn away from the mean; the paper tries 0.2 to 0.8.")] = 0.5

    def weigh(self, products: Matrix) -> Matrix:
        return conflict.cagrad(products, self.c)
