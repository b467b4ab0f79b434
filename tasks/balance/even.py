"""Rules that look at neither gradients nor losses."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from tasks.balance.rule import Rule, Seen, State, Weighed


class Equal(Rule):
    """The mean of the gradients: every task alike."""

    name: ClassVar[str] = "equal"

    def weigh(self, seen: Seen, state: State) -> Weighed:
        return Weighed(np.full(len(seen.tasks), 1 / len(seen.tasks)))


class Sum(Rule):
    """The sum of the gradients: a step with two tasks is as long as two steps with one."""

    name: ClassVar[str] = "sum"
    norm: Annotated[
        Literal["mean", "own"], Field(description="`own`: the sum; `mean`: as long as the mean, which makes it `equal`.")
    ] = "own"

    def weigh(self, seen: Seen, state: State) -> Weighed:
        return Weighed(np.ones(len(seen.tasks)))


class Samples(Rule):
    """The mean over the samples of all batches: a task with larger batches counts for more."""

    name: ClassVar[str] = "samples"

    def weigh(self, seen: Seen, state: State) -> Weighed:
        return Weighed(seen.samples / seen.samples.sum())


class Random(Rule):
    """Random weights, drawn anew for each step (Lin et al., 2022, arXiv:2111.10603, RLW): what a rule should be better than."""

    name: ClassVar[str] = "random"
    moves_heads: ClassVar[bool] = True

    def weigh(self, seen: Seen, state: State) -> Weighed:
        powers = np.exp(np.random.default_rng(seen.seed).standard_normal(len(seen.tasks)))
        return Weighed(powers / powers.sum())
