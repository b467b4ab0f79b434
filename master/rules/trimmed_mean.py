"""The mean of each coordinate without its ends."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from master.rules.deltas import by_pieces
from master.rules.order import keys_of, ordered, ordered_with, sort, values_of
from master.rules.orders import FEW, order_of, orders
from master.rules.robust import Robust
from master.rules.rule import Combined, Contribution, Matrix, Parameters
from trunkline.tensors import Array

_SAFE = 1e-9
"""Further from an edge than this, no rounding of sums of shares reaches it."""


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
        parts = [float(_kept(end - share, end, trim)) for share, end in zip(shares, edges, strict=True)]
        wanted = [rank for rank, part in enumerate(parts) if part > 0]
        rows = ordered(values, wanted)
        return _mean((rows[rank], parts[rank]) for rank in wanted)
    return _mean(_parts_of_few(values, shares, trim) if len(shares) <= FEW else _parts(values, shares, trim))


def _parts_of_few(values: Array, shares: Matrix, trim: float) -> Iterator[tuple[Array, Matrix | float]]:
    """The same as `_parts`: looked up by the order that the children stand in."""
    keys = keys_of(values)
    order = order_of(keys)
    for row, parts in zip(sort(keys, tuple(range(len(keys)))), _by_order(tuple(shares), trim), strict=True):
        yield values_of(row, values.dtype), parts.take(order, mode="clip") if parts.any() else 0.0


@lru_cache(maxsize=16)
def _by_order(shares: tuple[float, ...], trim: float) -> list[Matrix]:
    """By rank, how much is not cut off in each order `(n!,)` of the children."""
    start, found = np.zeros(1), []
    for theirs in np.array(shares)[orders(len(shares))].T:
        end = start + theirs
        found.append(_kept(start, end, trim))
        start = end
    return found


def _parts(values: Array, shares: Matrix, trim: float) -> Iterator[tuple[Array, Matrix | float]]:
    """By rank, the values and how much of the weight of each is not cut off.

    Most ranks are cut off or kept whole in every coordinate, whoever's values they are: the lightest and the heaviest children
    bound what can lie before them.
    """
    rising = np.sort(shares)
    least, most = (np.cumsum([0.0, *line]) for line in (rising, rising[::-1]))  # that lies before a rank
    start = np.zeros(values.shape[1:])
    for rank, (row, share) in enumerate(ordered_with(values, shares)):
        end = start + share
        if most[rank + 1] < trim - _SAFE or least[rank] > 1 - trim + _SAFE:
            yield row, 0.0
        elif least[rank] > trim + _SAFE and most[rank + 1] < 1 - trim - _SAFE and rising[0] > _SAFE:
            yield row, end - start
        else:
            yield row, _kept(start, end, trim)
        start = end


def _kept(start: Matrix, end: Matrix, trim: float) -> Matrix:
    """How much of a value that lies from `start` to `end` on the line of weights, of length 1, is not cut off."""
    left = np.minimum(end, 1 - trim) - np.maximum(start, trim)
    return np.where(left > 1e-12, left, 0.0)  # what is left of a value by rounding of the weights may be a wild one's


def _mean(pairs: Iterable[tuple[Array, Matrix | float]]) -> Matrix:
    """The weighted mean of values in order, never outside them: so equal values come back as they are.

    :param pairs: rows `(d,)` of values, and the weight of each, one number or `(d,)`.
    """
    pairs = iter(pairs)
    first, weight = last, _ = next(pairs)
    total = np.multiply(first, weight, dtype=np.float64)
    for last, part in pairs:
        total += np.multiply(last, part, dtype=np.float64)
        weight = weight + part
    return np.clip(total / weight, first, last)
