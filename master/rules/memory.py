"""What a step remembers of each float tensor: float32 in the tensor's own shape, under a letter of its algorithm, `m/NAME`."""

from collections.abc import Callable

import numpy as np

from master.rules.deltas import floats, rows_of
from master.rules.rule import Matrix, Parameters, State
from trunkline.tensors import Array, TensorSpec


def remembered(base: Parameters, letters: str, read: Callable[[str, str, slice], Matrix]) -> Parameters:
    """A recipe of what is remembered.

    :param letters: of the algorithm, one for each thing that it remembers of a tensor.
    :param read: rows in float64, by letter, the tensor's name and rows.
    """
    spec = {f"{letter}/{name}": TensorSpec(base.spec[name].shape) for letter in letters for name in floats(base)}

    def rounded(key: str, rows: slice) -> Array:
        letter, name = key.split("/", 1)
        return np.asarray(read(letter, name, rows), dtype=np.float32)

    return Parameters(spec, rounded)


def recalled(state: Parameters, letter: str, name: str, rows: slice) -> Matrix:
    """Rows of what is remembered, in float64."""
    return rows_of(state, f"{letter}/{name}", rows)


def earlier(state: State | None, base: Parameters, letter: str, name: str, rows: slice, first: float = 0.0) -> Matrix:
    """Rows as the last round left them; in the first round `first` everywhere."""
    if state is None:
        return np.full_like(rows_of(base, name, rows), first)
    return recalled(state.tensors, letter, name, rows)
