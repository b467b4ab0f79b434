"""The conflict-averse methods as their papers write them: on whole gradients `(T, d)`, float64, slow, without a Gramian.

Each returns the common direction `(d,)`.
"""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def pcgrad(gradients: Floats, orders: Sequence[Sequence[int]]) -> Floats:
    """Yu et al., 2020, arXiv:2001.06782, algorithm 1. `orders[i]`: in which the others are looked at for task i."""
    total = np.zeros(gradients.shape[1])
    for i, order in enumerate(orders):
        mine = gradients[i].copy()
        for j in order:
            if j != i and mine @ gradients[j] < 0:
                mine = mine - (mine @ gradients[j]) / (gradients[j] @ gradients[j]) * gradients[j]
        total += mine
    return total


def upgrad(gradients: Floats) -> Floats:
    """Quinton and Rey, 2024, arXiv:2406.16232: the mean of the gradients, each projected onto the dual cone of all.

    The projection `x` of `g` onto the x with `J x >= 0` is `g + J' m` with `m >= 0` and, where `m_i > 0`, `g_i x = 0`: every choice
    of such i is tried.
    """
    return np.asarray(np.mean([_onto_dual_cone(gradients, gradient) for gradient in gradients], axis=0))


def _onto_dual_cone(gradients: Floats, vector: Floats) -> Floats:
    count, slack = len(gradients), 1e-9 * np.abs(gradients).max() ** 2
    found: list[Floats] = []
    for size in range(count + 1):
        for chosen in combinations(range(count), size):
            rows = gradients[list(chosen)]
            m = np.linalg.lstsq(rows @ rows.T, -rows @ vector, rcond=None)[0] if size else np.zeros(0)
            x = vector + rows.T @ m
            if (m >= -1e-9).all() and (gradients @ x >= -slack).all() and np.abs(rows @ x).max(initial=0.0) <= slack:
                found.append(x)
    return min(found, key=lambda x: float(np.linalg.norm(x - vector)))


def imtl_g(gradients: Floats) -> Floats:
    """Liu et al., 2021, "Towards Impartial Multi-task Learning" (ICLR): the same projection onto every unit gradient."""
    units = gradients / np.linalg.norm(gradients, axis=1, keepdims=True)
    differences, of_units = gradients[0] - gradients[1:], units[0] - units[1:]
    others = gradients[0] @ of_units.T @ np.linalg.inv(differences @ of_units.T)
    return np.asarray(np.concatenate([[1 - others.sum()], others]) @ gradients)


def cagrad(gradients: Floats, c: float, step: float = 0.02) -> Floats:
    """Liu et al., 2021, arXiv:2110.14048, algorithm 1; the weights are looked for on a grid that is made finer around the best."""
    mean = gradients.mean(axis=0)
    radius = c * float(np.linalg.norm(mean))

    def worst(w: Floats) -> float:
        mixed = w @ gradients
        return float(mixed @ mean + radius * np.linalg.norm(mixed))

    best = min(_simplex(len(gradients), round(1 / step)), key=worst)
    while step > 1e-7:
        step /= 2
        moves = [np.array(move) * step for move in product((-1, 0, 1), repeat=len(best)) if sum(move) == 0]
        while (near := min((best + move for move in moves if (best + move >= 0).all()), key=worst)) is not None and worst(
            near
        ) < worst(best):
            best = near
    mixed = best @ gradients
    return np.asarray(mean + radius * mixed / np.linalg.norm(mixed))


def _simplex(size: int, parts: int) -> list[Floats]:
    found: list[Any] = [point for point in product(range(parts + 1), repeat=size - 1) if sum(point) <= parts]
    return [np.array([*point, parts - sum(point)]) / parts for point in found]
