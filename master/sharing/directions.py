"""Whether tasks pull against each other: the cosines of what they moved the shared tensors by in one round.

Legend: n children, T tasks, d elements of a row slice.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from master.rules.by_task import blocks, sharers, shares_by_task
from master.rules.deltas import line_of
from master.rules.rule import Contribution, Matrix, Parameters


def directions(base: Parameters, updates: Sequence[Contribution], target: Parameters) -> dict[str, Any] | None:
    """Compare what tasks, children and the encoder itself moved by. One pass over the updates, a slice of each in memory.

    :param updates: in the order of the child ids.
    :param target: what the round came to, after rule, step and codec.
    :returns: as JSON data, None where fewer than two tasks trained: `names` of the tasks; by task `samples`, `norms`, `within`
        (mean cosine among its own children), `kept` (how much of the task's way the encoder went; below 0 it went back) and
        `cosines`, a symmetric table; `mixed`, pairs of tasks that some child trains both, so that one update stands for both; and
        of each child its `norm` and its cosine to the encoder's movement. A number is None where nothing moved.
    """
    shares = shares_by_task(updates)
    if len(shares) < 2:
        return None
    taken, table = sharers(updates, shares)
    among, along, own = _products(base, taken, target, table)
    with np.errstate(all="ignore"):
        norms, lengths = np.sqrt(np.diag(among)), np.sqrt(own)  # the encoder's own movement is the last of `norms`
        cosines = _ratios(among[:-1, :-1], np.outer(norms[:-1], norms[:-1]), bound=True)
        (to_fused,) = _ratios(along[None, :], norms[-1] * lengths[None, :], bound=True)
        of_each = table**2 @ own  # what children have with themselves in a task's square
        (within,) = _ratios((np.diag(among)[:-1] - of_each)[None, :], ((table @ lengths) ** 2 - of_each)[None, :], bound=True)
        (kept,) = _ratios(among[-1:, :-1], np.diag(among)[None, :-1])
    names = list(shares)
    return {
        "names": names,
        "samples": [sum(update.samples.get(task, 0) for update in taken) for task in names],
        "norms": [_short(norm) for norm in norms[:-1]],
        "within": [value if len(shares[name]) > 1 else None for name, value in zip(names, within, strict=True)],
        "kept": kept,
        "cosines": cosines,
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

    In float32 within a piece and float64 over all of them: cosines are told to four digits, and half the bytes take half the time.
    """
    count, tasks = len(updates), len(shares)
    among, along, own = np.zeros((tasks + 1, tasks + 1)), np.zeros(count), np.zeros(count)
    weights = shares.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for name, rows, start, children in blocks(base, updates, np.float32):
            vectors = np.empty((tasks + 1, len(start)), np.float32)
            np.matmul(weights, children, vectors[:-1])
            np.subtract(line_of(target, name, rows), start, vectors[-1], casting="same_kind")
            among += vectors @ vectors.T
            along += children @ vectors[-1]
            own += np.vecdot(children, children)
    return among, along, own


def _ratios(above: Matrix, below: Matrix, *, bound: bool = False) -> list[list[float | None]]:
    """Quotients to four digits; None where there is none. Cosines are bound to -1 to 1, which rounding may leave."""
    found = above / below
    found = np.clip(found, -1.0, 1.0) if bound else found
    return [[round(float(value), 4) if np.isfinite(value) else None for value in row] for row in found]


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None
