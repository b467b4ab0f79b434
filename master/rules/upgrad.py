"""Unconflicting projection of tasks."""

from typing import ClassVar

from master.rules.conflict import ConflictAverse
from master.rules.rule import Matrix
from tasks import conflict


class UPGrad(ConflictAverse):
    """UPGrad (Quinton and Rey, 2024, arXiv:2406.16232): each task's movement is projected to where it is against no other
    task's, and these are averaged. No task is moved against.
    """

    name: ClassVar[str] = "upgrad"

    def weigh(self, products: Matrix) -> Matrix:
        return conflict.upgrad(products)
