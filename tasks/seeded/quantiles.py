"""The normal distribution as tables of 65 536 bins of equal probability, so that 16 random bits pick a value.

Only sums, products, quotients and roots of float64 are used, each of which IEEE 754 rounds in one way on every machine; `exp`,
`log` and `erf` of the C library are not, and may differ in the last bit. So a table is the same everywhere by construction, and its
digest is checked as well, since a wrong table would make wrong encoders silently.
"""

import hashlib
from functools import cache
from math import fsum, sqrt

import numpy as np
from numpy.typing import NDArray

from trunkline.errors import FailedError

BINS = 1 << 16
FAR = 4.5
"""How far from the mean, in standard deviations, a truncated normal reaches at most; 7 in a million lie further out."""

DIGEST = "81e6e5c6c4112eea7a6b5cd3910c753204f7fc0807cec7388c5b1fb5fae22ec2"
"""SHA-256 of `normal_table`, little-endian."""

_ROOT_2PI = 2.5066282746310002
_TERMS = 90  # of either series; at |x| <= 4.5 the last is below 1e-20 of the sum
_STEPS, _FEW = 24, 10  # Newton's, from zero and from a neighbour 127 bins off at most

Floats = NDArray[np.float64]


@cache
def normal_table() -> NDArray[np.float32]:
    """The mean of each bin, scaled so that the sum and the difference of two entries have variance 1. (65 536,), read-only.

    :raises FailedError: this machine computes it otherwise than every other.
    """
    upper = _inverse(0.5 + np.arange(BINS // 2) / BINS)  # lower edges of the upper half
    heights = np.append(1.0 / _root_exp(upper), 0.0) / _ROOT_2PI
    means = (heights[:-1] - heights[1:]) * BINS  # of the upper bins: the integral of x phi(x)
    lost = fsum((means * means).tolist()) / (BINS // 2)  # the variance that is left; fsum rounds once
    half = (means / sqrt(2.0 * lost)).astype(np.float32)
    table = np.concatenate([-half[::-1], half])
    found = hashlib.sha256(table.astype("<f4").tobytes()).hexdigest()
    if found != DIGEST:
        raise FailedError(
            f"the table of the normal distribution should have digest {DIGEST[:12]}, found {found[:12]}.",
            hint="This machine's float64 arithmetic is not IEEE 754; seeded tensors cannot be made here.",
        )
    table.flags.writeable = False
    return table


@cache
def truncated_table(low: float, high: float) -> NDArray[np.float32]:
    """Lower edge and width of each bin of a standard normal that is cut to [low, high]. (2, 65 536), read-only.

    :param low: in standard deviations from the mean, as `high`; both within `FAR`.
    """
    ends = _cdf(np.array([low, high]))
    edges = _signed(ends[0] + np.arange(BINS + 1) / BINS * (ends[1] - ends[0]))
    edges[0], edges[-1] = low, high
    table = np.stack([edges[:-1], edges[1:] - edges[:-1]]).astype(np.float32)
    table.flags.writeable = False
    return table


def _root_exp(x: Floats) -> Floats:
    """exp(x^2 / 2), by its power series."""
    y = x * x * 0.5
    term, total = np.ones_like(y), np.ones_like(y)
    for n in range(1, _TERMS):
        term *= y / n
        total += term
    return total


def _tail(x: Floats) -> Floats:
    """(Phi(x) - 1/2) / phi(x) = x + x^3/3 + x^5/(3 5) + …, all terms of one sign, so that no digit is lost."""
    square = x * x
    term, total = x.copy(), x.copy()
    for n in range(1, _TERMS):
        term *= square / (2 * n + 1)
        total += term
    return total


def _cdf(x: Floats) -> Floats:
    """Phi, within 1e-15 for |x| <= FAR."""
    return 0.5 + _tail(x) / _root_exp(x) / _ROOT_2PI


def _newton(p: Floats, x: Floats, steps: int) -> Floats:
    """From the left of the root of Phi(x) = p >= 1/2, where Phi is concave, every step stays on the left: it cannot run off."""
    for _ in range(steps):
        x = x + ((p - 0.5) * _ROOT_2PI * _root_exp(x) - _tail(x))
    return x


def _inverse(p: Floats) -> Floats:
    """Phi's inverse for p in [1/2, Phi(FAR)], rising: every 128th from zero, then the others from the one before."""
    coarse = _newton(p[::128], np.zeros_like(p[::128]), _STEPS)
    return _newton(p, np.repeat(coarse, 128)[: len(p)], _FEW)


def _signed(p: Floats) -> Floats:
    """Phi's inverse for p in [Phi(-FAR), Phi(FAR)], rising."""
    split = int(np.searchsorted(p, 0.5))
    return np.concatenate([-_inverse(1.0 - p[:split][::-1])[::-1], _inverse(p[split:])])
