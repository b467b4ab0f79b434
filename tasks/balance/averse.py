"""Rules that look at whether the gradients pull against each other. Each asks `tasks.conflict`."""

from abc import abstractmethod
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from tasks import conflict
from tasks.balance.rule import Floats, Rule, Seen, State, Weighed
from trunkline.errors import SettingsError, SpecError


class Averse(Rule):
    """A rule that needs the extra `conflict`, and nothing but the Gramian."""

    def check_installed(self) -> None:
        try:
            conflict.check_installed()
        except SpecError as error:
            raise SettingsError(f"`rule` {self.name}: {error.message}", hint=error.hint) from None

    @abstractmethod
    def of(self, seen: Seen) -> Floats:
        """A weight for each of at least two tasks."""

    def weigh(self, seen: Seen, state: State) -> Weighed:
        if len(seen.tasks) == 1:
            return Weighed(np.ones(1))
        self.check_installed()
        return Weighed(self.of(seen))


class PCGrad(Averse):
    """PCGrad (Yu et al., 2020, arXiv:2001.06782, algorithm 1): each task's gradient loses what it has against each other task's,
    one after the other in a random order. The sum of what is left.
    """

    name: ClassVar[str] = "pcgrad"
    orders: Annotated[int, Field(ge=1, le=1_000, description="Random orders that it is the mean of; the paper draws one.")] = 1

    def of(self, seen: Seen) -> Floats:
        return conflict.pcgrad(seen.gramian, self.orders, seen.seed)


class UPGrad(Averse):
    """UPGrad (Quinton and Rey, 2024, arXiv:2406.16232): the mean of the gradients, each projected to where it is against no
    other. No task loses by the step, to first order.
    """

    name: ClassVar[str] = "upgrad"

    def of(self, seen: Seen) -> Floats:
        return conflict.upgrad(seen.gramian)


class CAGrad(Averse):
    """CAGrad (Liu et al., 2021, arXiv:2110.14048, algorithm 1): within `c` times the mean's length around the mean of the
    gradients, the one that is best for the task that gains least. `c=0` is the mean.
    """

    name: ClassVar[str] = "cagrad"
    c: Annotated[float, Field(ge=0, lt=1, description="How far it may turn away from the mean; the paper tries 0.2 to 0.8.")] = 0.4

    def of(self, seen: Seen) -> Floats:
        return conflict.cagrad(seen.gramian, self.c)
