"""Whether tasks pull against each other: the cosines of what they moved the shared tensors by in one round.

Legend: n children, T tasks, d elements of a row slice.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from master.rules.by_task import shares_by_task
from master.rules.deltas import floats, moved, pieces, rows_of
from master.rules.rule import Contribution, Matrix, Parameters
from trunkline.tensors import row_slices


def directions(base: Parameters, updates: Sequence[Contribution], target: Parameters) -> dict[str, Any] | None:
    """Compare what tasks, children and the encoder itself moved by. One pass over the updates, a slice of each in memory.

    :param updates: in the order of the child ids.
    :param target: what the round came to, after rule, step and codec.
    :returns: as JSON data, None where fewer than two tasks trained: `names` of the tasks; by task `samples`, `norms`, `fused`
    (cosine to the encoder's own movement) and `cosines`, a symmetric table; `mixed`, pairs of tasks that some child trains both, so
    that one update stands for both; and of each child its `norm` and its cosine to the encoder's movement. A cosine is None where
        something did not move.
    """
    shares = shares_by_task(updates)
    if len(shares) < 2:
        return None
    taken = [update for update in updates if any(update.child in of_task for of_task in shares.values())]
    table = np.array([[of_task.get(update.child, 0.0) for update in taken] for of_task in shares.values()])  # (T, n)
    among, along, own = _products(base, taken, target, table)
    norms, lengths = np.sqrt(np.diag(among)), np.sqrt(own)  # the encoder's own movement is the last of `norms`
    cosines = _cosines(among, norms, norms)
    to_fused = _cosines(along[None, :], norms[-1:], lengths)[0]
    names = list(shares)
    return {
        "names": names,
        "samples": [sum(update.samples.get(task, 0) for update in taken) for task in names],
        "norms": [_short(norm) for norm in norms[:-1]],
        "fused": cosines[-1][:-1],
        "cosines": [row[:-1] for row in cosines[:-1]],
        "mixed": [[one, two] for at, one in enumerate(names) for two in names[at + 1 :] if set(shares[one]) & set(shares[two])],
        "children": {
            update.child: {"norm": _short(norm), "cosine": cosine}
            for update, norm, cosine in zip(taken, lengths, to_fused, strict=True)
        },
    }


def _products(
    base: Parameters, updates: Sequence[Contribution], target: Parameters, shares: Matrix
) -> tuple[Matrix, Matrix, Matrix]:
    """Inner products over all float tensors, in the order of the file: of the tasks and the encoder `(T + 1, T + 1)`, of the
    encoder with each child `(n,)`, and of each child with itself.
    """
    count, tasks = len(updates), len(shares)
    among, along, own = np.zeros((tasks + 1, tasks + 1)), np.zeros(count), np.zeros(count)
    for name in floats(base):
        for rows in row_slices(base.spec[name]):
            for piece in pieces(base, name, rows, count + tasks + 1):
                children = np.stack([moved(update, base, name, piece).reshape(-1) for update in updates])  # (n, d)
                fused = (rows_of(target, name, piece) - rows_of(base, name, piece)).reshape(-1)
                with np.errstate(over="ignore", invalid="ignore"):
                    vectors = np.vstack([shares @ children, fused])  # (T + 1, d)
                    among += vectors @ vectors.T
                    along += children @ fused
                    own += np.einsum("nd,nd->n", children, children)
    return among, along, own


def _cosines(products: Matrix, left: Matrix, right: Matrix) -> list[list[float | None]]:
    with np.errstate(all="ignore"):
        found = products / np.outer(left, right)
    return [[round(float(np.clip(value, -1.0, 1.0)), 4) if np.isfinite(value) else None for value in row] for row in found]


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None
