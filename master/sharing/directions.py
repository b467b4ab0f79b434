"""Whether tasks pull against each other: the cosines of what they moved the shared tensors by in one round.

Legend: n children, T tasks, d elements of a row slice.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from master.rules.by_task import shares_by_task
from master.rules.deltas import floats
from master.rules.rule import Contribution, Matrix, Parameters
from trunkline.tensors import from_bf16, row_slices

AT_ONCE = 1 << 19
"""Elements that are worked on at a time, of all children together: 2 MB, which caches hold."""


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
    taken = [update for update in updates if any(update.child in of_task for of_task in shares.values())]
    table = np.array([[of_task.get(update.child, 0.0) for update in taken] for of_task in shares.values()])  # (T, n)
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
        for name in floats(base):
            for rows in row_slices(base.spec[name], AT_ONCE // (count + tasks + 2)):
                start = _flat(base, name, rows)
                children = np.empty((count, len(start)), np.float32)
                for line, update in zip(children, updates, strict=True):
                    np.subtract(
                        _flat(update.parameters, name, rows), start if update.base is None else _flat(update.base, name, rows), line
                    )
                vectors = np.empty((tasks + 1, len(start)), np.float32)
                np.matmul(weights, children, vectors[:-1])
                np.subtract(_flat(target, name, rows), start, vectors[-1])
                among += vectors @ vectors.T
                along += children @ vectors[-1]
                own += np.vecdot(children, children)
    return among, along, own


def _flat(parameters: Parameters, name: str, rows: slice) -> NDArray[np.float32]:
    """Rows of a float tensor in a line."""
    values, dtype = parameters.read(name, rows), parameters.spec[name].dtype
    return np.asarray(from_bf16(values) if dtype == "BF16" else values, dtype=np.float32).reshape(-1)


def _ratios(above: Matrix, below: Matrix, *, bound: bool = False) -> list[list[float | None]]:
    """Quotients to four digits; None where there is none. Cosines are bound to -1 to 1, which rounding may leave."""
    found = above / below
    found = np.clip(found, -1.0, 1.0) if bound else found
    return [[round(float(value), 4) if np.isfinite(value) else None for value in row] for row in found]


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None
