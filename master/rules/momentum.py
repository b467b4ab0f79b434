"""Momentum at the server."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from master.rules.deltas import floats, rows_of
from master.rules.rule import Combined, Contribution, Matrix, Parameters, Rows, State, Step
from trunkline.tensors import Array, TensorSpec


class Momentum(Step):
    """FedAvgM: what the children moved by is the gradient of a step with momentum (Hsu et al., 2019, arXiv:1909.06335, 4.3)."""

    name: ClassVar[str] = "momentum"
    rate: Annotated[float, Field(gt=0, description="Learning rate of the server.")] = 1.0
    beta: Annotated[float, Field(ge=0, lt=1, description="Memory of the movement.")] = 0.9

    def remember(self, base: Parameters, updates: Sequence[Contribution], combined: Combined, state: State | None) -> State:
        spec = {f"m/{name}": TensorSpec(base.spec[name].shape) for name in floats(base)}

        def read(key: str, rows: slice) -> Array:
            name = key.removeprefix("m/")
            moved = combined.read(name, rows) - rows_of(base, name, rows)
            before = rows_of(state.tensors, key, rows) if state else np.zeros_like(moved)
            return np.asarray(self.beta * before + moved, dtype=np.float32)

        return State(Parameters(spec, read), {})

    def move(self, base: Parameters, combined: Combined, state: Parameters) -> Rows:
        def read(name: str, rows: slice) -> Matrix:
            return np.asarray(rows_of(base, name, rows) + self.rate * rows_of(state, f"m/{name}", rows))

        return read
