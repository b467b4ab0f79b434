"""Small whole numbers times a scale that a run of elements shares.

A run is a row of the tensor (a row is all that one index of the first axis names; a vector is one row), or, where rows are long,
a part of one: an outlier then spoils the resolution of its own run only. `x` becomes `round(x / scale)`, with the scale such that
the run's largest element becomes `levels`; so no element is off by more than half a scale (Dettmers et al., 2022,
arXiv:2110.02861, section 2, without the quantile map: a uniform grid is decoded by one product).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trunkline.codecs.codec import Read
from trunkline.errors import Reason, RefusedValue
from trunkline.tensors import SLICE_ELEMENTS, TensorSpec, row_slices

_SMALLEST = np.finfo(np.float32).smallest_normal
"""No scale but 0 is below: the quotient by a smaller one could overflow."""

_ROUND = np.float32(1.5 * 2**23)
"""A float32 this large has no bits below one. Adding it to `|x| < 2^22` rounds x to the nearest whole number, ties to even, and
leaves it in two's complement in the low bits: a cast without a conversion."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Where the runs of a tensor lie.

    :param most: elements in one run at most.
    """

    tensor: TensorSpec
    most: int

    @property
    def vector(self) -> bool:
        return len(self.tensor.shape) < 2

    @property
    def length(self) -> int:
        """Elements of a row."""
        return self.tensor.elements if self.vector else self.tensor.row

    @property
    def count(self) -> int:
        """Runs of a row."""
        return -(-self.length // self.most)

    @property
    def scales(self) -> TensorSpec:
        """Their scales: `(rows, runs)`, or `(runs,)` of a vector."""
        return TensorSpec((self.count,) if self.vector else (self.tensor.rows, self.count))

    def slices(self) -> Iterator[slice]:
        """Rows of the tensor, in slices of bounded size that cut no run."""
        if not self.vector:
            yield from row_slices(self.tensor)
            return
        for runs in row_slices(self.scales, max(1, SLICE_ELEMENTS // self.most)):
            yield slice(runs.start * self.most, min(runs.stop * self.most, self.length))

    def around(self, rows: slice) -> tuple[slice, slice, slice]:
        """The least rows around the given ones that cut no run, their rows of `scales`, and where the given ones lie in them."""
        if not self.vector:
            return rows, rows, slice(0, rows.stop - rows.start)
        runs = slice(rows.start // self.most, -(-rows.stop // self.most))
        whole = slice(runs.start * self.most, min(runs.stop * self.most, self.length))
        return whole, runs, slice(rows.start - whole.start, rows.stop - whole.start)

    def lines(self, elements: int) -> int:
        """How many rows that many elements are."""
        return 1 if self.vector else elements // self.length


def quantise(runs: Runs, values: NDArray[np.float32], levels: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Scales, and whole numbers from -levels to levels in the low bits; the work is done in `values`, which is lost.

    Not a number, or infinite: so is the scale, whatever the whole numbers are.

    :param values: elements of rows that cut no run.
    """
    lines = values.reshape(runs.lines(values.size), -1)  # (rows, elements)
    count = -(-lines.shape[1] // runs.most)
    starts = np.add.outer(np.arange(len(lines)) * lines.shape[1], np.arange(count) * runs.most)
    with np.errstate(invalid="ignore", over="ignore"):
        largest = np.maximum.reduceat(np.abs(lines).reshape(-1), starts.reshape(-1)).reshape(starts.shape)
        scales = np.where(largest == 0, np.float32(0), np.maximum(largest / np.float32(levels), _SMALLEST))
        for run, scale in _pieces(lines, np.where(scales == 0, np.float32(1), scales), runs.most):
            np.divide(run, scale, out=run)
        lines += _ROUND
    return scales.reshape(-1) if runs.vector else scales, lines.view(np.int32).reshape(values.shape)


def spread(runs: Runs, whole: NDArray[np.float32], scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """Whole numbers times the scales of their runs, in place.

    :param whole: elements of rows that cut no run.
    """
    lines = whole.reshape(runs.lines(whole.size), -1)
    for run, scale in _pieces(lines, scales.reshape(len(lines), -1), runs.most):
        np.multiply(run, scale, out=run)
    return whole


def _pieces(
    lines: NDArray[np.float32], scales: NDArray[np.float32], most: int
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Views of the full runs `(rows, runs, most)` and of the short ones at the rows' ends, each beside its scales."""
    full = lines.shape[1] // most
    if full:
        yield lines[:, : full * most].reshape(len(lines), full, most), scales[:, :full, None]
    if full < scales.shape[1]:
        yield lines[:, full * most :], scales[:, full:]


def largest_scale(runs: Runs, part: Read) -> float:
    """Of all runs; 0 where there are none."""
    return max((float(part("@scale", rows).max()) for rows in row_slices(runs.scales)), default=0.0)


def check_scales(name: str, runs: Runs, part: Read) -> None:
    """:raises RefusedValue: `not_finite`, `malformed`: a scale is NaN, infinite or negative."""
    for rows in row_slices(runs.scales):
        scales = part("@scale", rows)
        if not np.isfinite(scales).all():
            raise RefusedValue(Reason.NOT_FINITE, f"the scales of {name!r} should be finite, found NaN or infinity.")
        if (scales < 0).any():
            raise RefusedValue(Reason.MALFORMED, f"the scales of {name!r} should not be negative, found {scales.min():g}.")
