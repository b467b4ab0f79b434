"""Rules that look at whether the gradients pull against each other, by their inner products. Each asks `tasks.conflict`."""

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from tasks import conflict
from tasks.balance.rule import Rule, Seen, State, Weighed
from trunkline.errors import SettingsError, SpecError


class Averse(Rule):
    """A rule that needs the extra `conflict`, and nothing but the Gramian."""

    def check_installed(self) -> None:
        try:
            conflict.check_installed()
        except SpecError as error:
            raise SettingsError(f"`rule` {self.name}: {error.message}", hint=error.hint) from None

    def weigh(self, seen: Seen, state: State) -> Weighed:
        if len(seen.tasks) == 1:
            return Weighed(np.ones(1))
        self.check_installed()
        return self.among(seen, state)

    @abstractmethod
    def among(self, seen: Seen, state: State) -> Weighed:
        """A weight for each of at least two tasks."""


class PCGrad(Averse):
    """PCGrad (Yu et al., 2020, arXiv:2001.06782, algorithm 1): each task's gradient loses what it has against each other task's,
    one after the other in a random order. The sum of what is left.
    """

    name: ClassVar[str] = "pcgrad"
    orders: Annotated[int, Field(ge=1, le=1_000, description="Random orders that it is the mean of; the paper draws one.")] = 1

    def among(self, seen: Seen, state: State) -> Weighed:
        return Weighed(conflict.pcgrad(seen.gramian, self.orders, seen.seed))


class GradVac(Averse):
    """GradVac (Wang et al., 2021, arXiv:2010.05874): PCGrad, but a pair's gradients are turned towards each other where their
    cosine is below what it was in the mean of the last steps, and not only where it is below zero. It remembers a number for each
    pair.
    """

    name: ClassVar[str] = "gradvac"
    beta: Annotated[float, Field(ge=0, le=1, description="Part of the newest cosine in the decayed mean; the paper's is 0.01.")] = (
        0.01
    )

    def among(self, seen: Seen, state: State) -> Weighed:
        keys = [[f"gradvac/{one}/{other}" for other in seen.tasks] for one in seen.tasks]
        wanted = np.array([[state.get(key, 0.0) for key in row] for row in keys])
        weights, after = conflict.gradvac(seen.gramian, wanted, self.beta, seen.seed)
        pairs = [(i, j) for i in range(len(keys)) for j in range(len(keys)) if i != j]
        return Weighed(weights, {keys[i][j]: float(after[i, j]) for i, j in pairs})


class CAGrad(Averse):
    """CAGrad (Liu et al., 2021, arXiv:2110.14048, algorithm 1): within `c` times the mean's length around the mean of the
    gradients, the one that is best for the task that gains least. `c=0` is the mean.
    """

    name: ClassVar[str] = "cagrad"
    c: Annotated[float, Field(ge=0, lt=1, description="How far it may turn away from the mean; the paper tries 0.2 to 0.8.")] = 0.4

    def among(self, seen: Seen, state: State) -> Weighed:
        return Weighed(conflict.cagrad(seen.gramian, self.c))


class UPGrad(Averse):
    """UPGrad (Quinton and Rey, 2024, arXiv:2406.16232): the mean of the gradients, each projected to where it is against no
    other. No task loses by the step, to first order.
    """

    name: ClassVar[str] = "upgrad"

    def among(self, seen: Seen, state: State) -> Weighed:
        return Weighed(conflict.upgrad(seen.gramian))


class DualProj(Averse):
    """DualProj (Lopez-Paz and Ranzato, 2017, arXiv:1706.08840, equation 11): the mean of the gradients, turned as little as it
    takes so that no task loses.
    """

    name: ClassVar[str] = "dualproj"

    def among(self, seen: Seen, state: State) -> Weighed:
        return Weighed(conflict.dualproj(seen.gramian))


class MGDA(Averse):
    """MGDA (Désidéri, 2012; Sener and Koltun, 2018, arXiv:1810.04650): the shortest convex combination of the gradients; it is
    ruled by the shortest gradient, and so by the task that has learned most.
    """

    name: ClassVar[str] = "mgda"

    def among(self, seen: Seen, state: State) -> Weighed:
        return Weighed(conflict.mgda(seen.gramian))


class IMTLG(Averse):
    """IMTL-G (Liu et al., 2021, ICLR, "Towards Impartial Multi-task Learning"): the direction that goes as far along each task's
    gradient as along every other's, however long these are.
    """

    name: ClassVar[str] = "imtl_g"

    def among(self, seen: Seen, state: State) -> Weighed:
        return Weighed(conflict.imtl_g(seen.gramian))


class AlignedMTL(Averse):
    """Aligned-MTL (Senushkin et al., 2023, arXiv:2305.19000): the mean of the gradients, after these are made orthogonal and of
    one length, changed as little as that takes.
    """

    name: ClassVar[str] = "aligned_mtl"
    scale: Annotated[
        Literal["min", "median", "rmse"], Field(description="That length: the least, median or mean singular value.")
    ] = "min"

    def among(self, seen: Seen, state: State) -> Weighed:
        return Weighed(conflict.aligned_mtl(seen.gramian, self.scale))
