"""The mean of each coordinate without its ends."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from master.rules.deltas import by_pieces
from master.rules.order import ordered, ordered_with
from master.rules.robust import Robust
from master.rules.rule import Combined, Contribution, Matrix, Parameters
from trunkline.tensors import Array


class TrimmedMean(Robust):
    """Weighted coordinate-wise trimmed mean (Yin et al., 2018, arXiv:1803.01498, definition 2, with weights): a share of the weight
    is cut off at either end of the values, and the rest is averaged. Children with at most this share of a task's weight cannot
    move a coordinate beyond what the others sent.

    A value on the edge counts with the part of its weight that is left, so a share that is no whole number of children is cut
    exactly.
    """

    name: ClassVar[str] = "trimmed_mean"
    trim: Annotated[float, Field(ge=0, lt=0.5, description="Share of the weight that is cut off at either end.")] = 0.1

    def among(self, base: Parameters, updates: Sequence[Contribution], shares: Mapping[str, float]) -> Combined:
        share = np.array([shares[update.child] for update in updates])
        return Combined(by_pieces(base, updates, lambda values: trimmed_mean(values, share, self.trim)), dict(shares))


def trimmed_mean(values: Array, shares: Matrix, trim: float) -> Matrix:
    """Of each column of `values` `(n, d)` with the shares `(n,)`, which sum to 1: the mean without the ends; `(d,)`.

    :param values: float32 or float64; it is worked in.

    >>> trimmed_mean(np.array([[1.0], [2.0], [4.0], [9.0]]), np.full(4, 0.25), 0.25).tolist()
    [3.0]
    """
    if (shares == shares[0]).all():
        edges = np.cumsum(shares)
        left = [_kept(end - share, end, trim) for share, end in zip(shares, edges, strict=True)]
        wanted = [rank for rank, part in enumerate(left) if part > 0]
        rows, parts = ordered(values, wanted), left
    else:
        wanted = list(range(len(values)))
        rows, theirs = ordered_with(values, shares)
        parts, start = [], np.zeros(values.shape[1:])
        for share in theirs:
            parts.append(_kept(start, start + share, trim))
            start += share
    return _mean([rows[rank] for rank in wanted], [parts[rank] for rank in wanted])


def _kept(start: Matrix, end: Matrix, trim: float) -> Matrix:
    """How much of a value that lies from `start` to `end` on the line of weights, of length 1, is not cut off."""
    left = np.minimum(end, 1 - trim) - np.maximum(start, trim)
    return np.where(left > 1e-12, left, 0.0)  # what is left of a value by rounding of the weights may be a wild one's


def _mean(rows: Sequence[Array], parts: Sequence[Matrix]) -> Matrix:
    """The weighted mean of values in order, never outside them: so equal values come back as they are.

    :param parts: the weight of each row, one number or `(d,)`.
    """
    total, weight = rows[0] * parts[0], parts[0]
    for row, part in zip(rows[1:], parts[1:], strict=True):
        total += row * part
        weight = weight + part
    return np.clip(total / weight, rows[0], rows[-1])
