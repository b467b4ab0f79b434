"""Weighted means of parameter sets.

The sum runs in float64 over the contributions in the order they are given (that of the child ids), slice by slice, and is rounded
once: the result does not depend on who answered first, bit for bit, and is within one unit in the last place of the float64 mean.
Integers are rounded to the nearest even whole number and booleans go with the weighted majority; both keep their dtype.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from master.rules import weights
from master.rules.rule import Contribution, Fused, Parameters, Rule
from trunkline.tensors import DTYPES, FLOATS, Array, narrow, widen


def mean(parameters: Parameters, updates: Sequence[Contribution]) -> Fused:
    """Federated averaging: every child counts by its samples (McMahan et al., 2017, arXiv:1602.05629, algorithm 1)."""
    return weighted(parameters, updates, weights.by_samples(updates))


def mean_by_task(parameters: Parameters, updates: Sequence[Contribution]) -> Fused:
    """Every task counts the same, and within it every child by its samples of that task."""
    return weighted(parameters, updates, weights.by_task(updates))


def limited(rule: Rule, most: float) -> Rule:
    """The same rule, with no child's share above `most`."""

    def run(parameters: Parameters, updates: Sequence[Contribution]) -> Fused:
        fused = rule(parameters, updates)
        return weighted(parameters, updates, weights.capped(fused.weights, most))

    return rule if most >= 1.0 else run


def weighted(parameters: Parameters, updates: Sequence[Contribution], shares: Mapping[str, float]) -> Fused:
    """The mean of the updates with the shares given; a share of zero leaves a child out altogether."""
    taken = [(update.parameters, shares[update.child]) for update in updates if shares[update.child] > 0]

    def read(name: str, rows: slice) -> Array:
        spec = parameters.spec[name]
        total: NDArray[np.float64] | None = None
        for theirs, share in taken:
            part = np.asarray(widen(theirs.read(name, rows), spec.dtype))  # arithmetic makes scalars of 0-d arrays
            part *= share
            total = part if total is None else np.add(total, part, out=total)
        assert total is not None, "shares sum to 1, so somebody has one"
        if spec.dtype in FLOATS:
            return narrow(total, spec.dtype)
        if spec.dtype == "BOOL":
            return np.asarray(total > 0.5)
        return np.asarray(np.rint(total)).astype(DTYPES[spec.dtype])

    return Fused(Parameters(parameters.spec, read), dict(shares))
