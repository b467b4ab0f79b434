"""How long movements are, for filters that look at it."""

from collections.abc import Sequence
from math import sqrt

import numpy as np

from master.rules.deltas import floats, moved, pieces
from master.rules.rule import Contribution, Parameters
from trunkline.tensors import row_slices


def lengths(base: Parameters, updates: Sequence[Contribution]) -> dict[str, float]:
    """The Euclidean length of what each child moved by, over all float tensors; in one pass.

    Children who have applied nothing count nowhere and are left out: what they sent may be anything.
    """
    return {update.child: _length(base, update) for update in updates if sum(update.samples.values()) > 0}


def _length(base: Parameters, update: Contribution) -> float:
    total = 0.0
    for name in floats(base):
        for rows in row_slices(base.spec[name]):
            for piece in pieces(base, name, rows, 1):
                values = moved(update, base, name, piece)
                with np.errstate(over="ignore"):
                    total += float(np.sum(values * values))
    return sqrt(total)
