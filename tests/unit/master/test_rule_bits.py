"""Rules of coordinates written out plainly, one coordinate and one number at a time: what ours must equal to the last bit.

A version that is computed again, or by a later release, must have the digest that it had. So these say not only what a rule means
but in which order it adds.
"""

from collections.abc import Callable, Sequence
from math import copysign

import numpy as np
import pytest

from master.rules.bulyan import near_median
from master.rules.median import weighted_median
from master.rules.rule import Matrix
from master.rules.trimmed_mean import trimmed_mean
from trunkline.tensors import Array

COUNTS = [1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 33, 64]
KINDS = ["equal", "close", "uneven", "halves", "heavy"]


def shares_of(kind: str, count: int) -> Matrix:
    """Shares that sum to 1, of whole numbers of samples."""
    rng = np.random.default_rng(count)
    samples = {
        "equal": np.full(count, 7),
        "close": 100 + np.arange(count),
        "uneven": np.floor(1.7 ** rng.integers(0, 20, count)),
        "halves": rng.integers(1, 3, count),  # half of the weight is often met exactly
        "heavy": np.array([count, *[1] * (count - 1)]),  # one has more than all others together
    }[kind].astype(np.float64)
    if kind == "halves":
        samples[-1] += samples.sum() % 2
    return samples / samples.sum()


def columns(count: int, dtype: type[np.floating]) -> Array:
    """Values of so many children: drawn ones, few different ones, equal ones, and signed zeros, `(count, d)`."""
    rng = np.random.default_rng(count + 100)
    large = float(np.finfo(dtype).max) / 128  # of which the sum is finite
    parts = [
        rng.standard_normal((count, 300)),
        rng.integers(-2, 3, (count, 200)) / 3,
        np.broadcast_to(rng.standard_normal(20), (count, 20)),
        rng.choice([0.0, -0.0], (count, 60)),
        rng.choice([0.0, -0.0, 1e-40, -1e-40, 1.0, -1.0, large, -large], (count, 120)),
    ]
    return np.concatenate(parts, axis=1).astype(dtype)


def in_order(line: Sequence[float], shares: Matrix) -> tuple[list[float], list[float]]:
    """Values and their shares: a negative zero before a positive one, equal ones in the order of the children."""
    order = sorted(range(len(line)), key=lambda child: (line[child], copysign(1.0, line[child]), child))
    return [line[child] for child in order], [float(shares[child]) for child in order]


def plain_median(line: Sequence[float], shares: Matrix) -> float:
    values, theirs = in_order(line, shares)
    half = float(shares.sum()) / 2
    slack = 1e-12 * half
    below, reaching, passing = 0.0, [], []
    for value, share in zip(values, theirs, strict=True):
        below += share
        reaching += [value] if below >= half - slack else []
        passing += [value] if below > half + slack else []
    low, high = reaching[0], passing[0]
    return low if low == high else low + (high - low) / 2


def plain_trimmed_mean(line: Sequence[float], shares: Matrix, trim: float) -> float:
    values, theirs = in_order(line, shares)
    equal, end = len(set(theirs)) == 1, 0.0
    pairs = []
    for value, share in zip(values, theirs, strict=True):
        start, end = end, end + share
        start = end - share if equal else start  # whoever it is, so it is a constant
        left = min(end, 1 - trim) - max(start, trim)
        part = left if left > 1e-12 else 0.0
        pairs += [] if equal and not part else [(value, part)]
    total, weight = pairs[0][0] * pairs[0][1], pairs[0][1]
    for value, part in pairs[1:]:
        total += value * part
        weight += part
    first, last, mean = pairs[0][0], pairs[-1][0], total / weight
    return last if mean >= last else first if mean <= first else mean  # of zeros, that of the bound


def plain_near_median(line: Sequence[float], near: int) -> float:
    values, _ = in_order(line, np.ones(len(line)))
    middle = values[(len(values) - 1) // 2] / 2 + values[len(values) // 2] / 2
    first = sum(into - middle < middle - out for out, into in zip(values, values[near:], strict=False))
    total = -0.0
    for value in values[first : first + near]:
        total += value
    return total / near


def all_columns(values: Array, rule: Callable[[list[float]], float]) -> Matrix:
    return np.array([rule([float(value) for value in column]) for column in values.T])


def same(found: Matrix, expected: Matrix) -> None:
    assert found.dtype == np.float64
    wrong = np.flatnonzero(found.view(np.int64) != expected.view(np.int64))
    assert not len(wrong), (wrong[:5], found[wrong[:5]], expected[wrong[:5]])


CASES = [pytest.param(kind, dtype, id=f"{kind}-{dtype.__name__}") for kind in KINDS for dtype in (np.float32, np.float64)]


@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_the_median_has_the_bits_of_the_plain_one(kind: str, dtype: type[np.floating]) -> None:
    for count in COUNTS:
        values, shares = columns(count, dtype), shares_of(kind, count)
        same(weighted_median(values.copy(), shares), all_columns(values, lambda line: plain_median(line, shares)))  # noqa: B023


@pytest.mark.parametrize("trim", [0.0, 0.1, 0.25, 0.49])
@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_the_trimmed_mean_has_the_bits_of_the_plain_one(kind: str, dtype: type[np.floating], trim: float) -> None:
    for count in COUNTS:
        values, shares = columns(count, dtype), shares_of(kind, count)
        expected = all_columns(values, lambda line: plain_trimmed_mean(line, shares, trim))  # noqa: B023
        same(trimmed_mean(values.copy(), shares, trim), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_mean_near_the_median_has_the_bits_of_the_plain_one(dtype: type[np.floating]) -> None:
    for count in COUNTS:
        values = columns(count, dtype)
        for near in {1, (count + 1) // 2, max(1, count - 2), count}:
            same(near_median(values.copy(), near), all_columns(values, lambda line: plain_near_median(line, near)))  # noqa: B023


def test_half_of_the_weight_is_met_exactly_in_some_columns_and_not_in_others() -> None:
    """Else the columns above would try one case only. Where it is, the median is no child's value."""
    values = columns(8, np.float32)[:, :300]
    for kind, expected in (("halves", {True, False}), ("heavy", {False})):
        found = weighted_median(values.copy(), shares_of(kind, 8))
        assert set((values != found).all(axis=0).tolist()) == expected, kind
