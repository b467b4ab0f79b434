"""How far from zero a set reaches: where a movement is bounded too, nothing that they come to can overflow."""

import numpy as np

from trunkline.sets import SetFile
from trunkline.tensors import real, row_slices


class Reach:
    """The largest magnitude in each tensor of floats of one set: looked up when it is first asked for, and remembered."""

    def __init__(self) -> None:
        self._known: dict[str, float] = {}

    def of(self, file: SetFile, name: str) -> float:
        """In one tensor; NaN if it holds one.

        :param file: the set, the same at every call; it may have been opened anew.
        """
        if name not in self._known:
            self._known[name] = _largest(file, name)
        return self._known[name]


def _largest(file: SetFile, name: str) -> float:
    tensor, ends = file.spec[name], [0.0]
    for rows in row_slices(tensor):
        with file.lent(name, rows) as lent:
            values = real(lent, tensor.dtype)
            ends += [float(values.max()), -float(values.min())]
    return float(np.max(ends))
