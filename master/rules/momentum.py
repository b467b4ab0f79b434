"""Momentum at the server."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from master.rules.deltas import rows_of
from master.rules.memory import earlier, recalled, remembered
from master.rules.rule import Combined, Contribution, Matrix, Parameters, Rows, State, Step


class Momentum(Step):
    """FedAvgM: what the children moved by is the gradient of a step with momentum (Hsu et al., 2019, arXiv:1909.06335, 4.3)."""

    name: ClassVar[str] = "momentum"
    rate: Annotated[float, Field(gt=0, allow_inf_nan=False, description="Learning rate of the server.")] = 1.0
    beta: Annotated[float, Field(ge=0, lt=1, description="Memory of the movement.")] = 0.9

    def remember(self, base: Parameters, updates: Sequence[Contribution], combined: Combined, state: State | None) -> State:
        def read(letter: str, name: str, rows: slice) -> Matrix:
            moved = combined.read(name, rows) - rows_of(base, name, rows)
            return np.asarray(self.beta * earlier(state, base, letter, name, rows) + moved)

        return State(remembered(base, "m", read), {})

    def move(self, base: Parameters, combined: Combined, state: Parameters) -> Rows:
        def read(name: str, rows: slice) -> Matrix:
            return np.asarray(rows_of(base, name, rows) + self.rate * recalled(state, "m", name, rows))

        return read
