"""Optimiser steps at the server that divide by a second moment: what Adam, Yogi and Adagrad share.

    Delta = combined - base;   m = beta1 m + (1 - beta1) Delta;   v = second(v, Delta);   target = base + rate m / (sqrt(v) + tau)

Moments are kept in float32 and start at m = 0, v = tau^2 (Reddi et al., 2021, arXiv:2003.00295, algorithm 2, no bias correction).
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from master.rules.deltas import rows_of
from master.rules.memory import earlier, recalled, remembered
from master.rules.rule import Combined, Contribution, Matrix, Parameters, Rows, State, Step


class Adaptive(Step):
    """An optimiser step at the server."""

    rate: Annotated[float, Field(gt=0, allow_inf_nan=False, description="Learning rate of the server.")] = 0.01
    beta1: Annotated[float, Field(ge=0, lt=1, description="Memory of the first moment.")] = 0.9
    tau: Annotated[
        float, Field(gt=0, le=1e6, description="Added to the root of the second moment: how adaptive it is, less being more.")
    ] = 1e-3

    @abstractmethod
    def second(self, before: Matrix, moved: Matrix) -> Matrix:
        """The next second moment."""

    def remember(self, base: Parameters, updates: Sequence[Contribution], combined: Combined, state: State | None) -> State:
        def read(letter: str, name: str, rows: slice) -> Matrix:
            moved = combined.read(name, rows) - rows_of(base, name, rows)
            if letter == "m":
                return np.asarray(self.beta1 * earlier(state, base, "m", name, rows) + (1 - self.beta1) * moved)
            return self.second(earlier(state, base, "v", name, rows, self.tau**2), moved)

        return State(remembered(base, "mv", read), {})

    def move(self, base: Parameters, combined: Combined, state: Parameters) -> Rows:
        def read(name: str, rows: slice) -> Matrix:
            first, second = (recalled(state, letter, name, rows) for letter in "mv")
            return np.asarray(rows_of(base, name, rows) + self.rate * first / (np.sqrt(second) + self.tau))

        return read
