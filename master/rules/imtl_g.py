"""The same progress for every task."""

from typing import ClassVar

from master.rules.conflict import ConflictAverse
from master.rules.rule import Matrix
from tasks import conflict


class IMTLG(ConflictAverse):
    """IMTL-G (Liu et al., 2021, "Towards Impartial Multi-task Learning", ICLR; for dependent movements as in arXiv:2406.16232): the
    movement that goes equally far along every task's own. A task that is small or slow gets as much as a large one.
    """

    name: ClassVar[str] = "imtl_g"

    def weigh(self, products: Matrix) -> Matrix:
        return conflict.imtl_g(products)
