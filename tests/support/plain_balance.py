"""Rules for the gradients of several tasks as their papers write them: whole gradients `(K, d)`, float64, slow, no Gramian.

Those that answer a direction give `(d,)`; those that weigh losses are loops over the steps, by autograd or by torch's own Adam, and
give the weights `(steps, K)`. Every task is there at every step. PCGrad, CAGrad, UPGrad and IMTL-G are in `plain_conflict`.
"""

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.support.plain_conflict import _onto_dual_cone

Floats = NDArray[np.float64]


# -- directions --------------------------------------------------------------------------------------------------------


def mgda(gradients: Floats) -> Floats:
    """Sener and Koltun, 2018, arXiv:1810.04650, equation 3: the shortest convex combination; every choice of tasks that have a
    part in it is tried. Gradients of full rank.
    """
    found: list[Floats] = []
    for size in range(1, len(gradients) + 1):
        for chosen in combinations(range(len(gradients)), size):
            rows = gradients[list(chosen)]
            parts = np.linalg.solve(rows @ rows.T, np.ones(size))
            if (parts >= 0).all():
                found.append(parts / parts.sum() @ rows)
    return min(found, key=lambda mixed: float(np.linalg.norm(mixed)))


def dualproj(gradients: Floats) -> Floats:
    """Lopez-Paz and Ranzato, 2017, arXiv:1706.08840, equation 11: the mean projected onto the dual cone."""
    return _onto_dual_cone(gradients, gradients.mean(axis=0))


def aligned_mtl(gradients: Floats) -> Floats:
    """Senushkin et al., 2023, arXiv:2305.19000, section 4: all singular values become the least one. Gradients of full rank."""
    left, values, right = np.linalg.svd(gradients, full_matrices=False)
    return np.asarray((values.min() * left @ right).mean(axis=0))


def fairgrad(gradients: Floats, alpha: float, turns: int = 200_000) -> Floats:
    """Ban and Ji, 2024, arXiv:2402.15638: the w with `J J' w = w ** (-1 / alpha)`; `alpha=1`: Navon et al., 2022,
    arXiv:2202.01017. By plain descent on the logarithms of the w.
    """
    wanted = torch.zeros(len(gradients), dtype=torch.float64, requires_grad=True)
    rows = torch.from_numpy(gradients)
    optimizer = torch.optim.LBFGS([wanted], max_iter=turns, tolerance_grad=1e-14, tolerance_change=1e-18, history_size=20)

    def potential() -> Tensor:
        """Convex in w, and stationary there."""
        optimizer.zero_grad()
        w = wanted.exp()
        gain = wanted.sum() if alpha == 1 else (w ** (1 - 1 / alpha)).sum() / (1 - 1 / alpha)
        loss = 0.5 * ((w @ rows) ** 2).sum() - gain
        loss.backward()  # pyrefly: ignore
        return loss

    optimizer.step(potential)
    return np.asarray(wanted.detach().exp().numpy() @ gradients)


def gradvac(batches: Sequence[Floats], orders: Sequence[Sequence[Sequence[int]]], beta: float) -> list[Floats]:
    """Wang et al., 2021, arXiv:2010.05874, algorithm 1 (supplement): one direction for each step.

    :param orders: of a step, of a task: the others, as they are looked at.
    """
    count = len(batches[0])
    wanted, found = np.zeros((count, count)), []
    for gradients, order in zip(batches, orders, strict=True):
        total = np.zeros(gradients.shape[1])
        for i in range(count):
            mine = gradients[i].copy()
            for j in order[i]:
                other, long = gradients[j], float(np.linalg.norm(mine))
                cosine = float(mine @ other) / (long * float(np.linalg.norm(other)))
                hat = wanted[i, j]
                if cosine < hat:
                    up = long * (hat * np.sqrt(1 - cosine**2) - cosine * np.sqrt(1 - hat**2))
                    mine = mine + up / (float(np.linalg.norm(other)) * np.sqrt(1 - hat**2)) * other
                wanted[i, j] = (1 - beta) * hat + beta * cosine
            total += mine
        found.append(total)
    return found


# -- weights of losses -------------------------------------------------------------------------------------------------


def uncertainty(losses: Floats, rate: float) -> Floats:
    """Kendall et al., 2018, arXiv:1705.07115, section 3.2, with s the logarithm of the variance, moved by Adam."""
    return _learned(losses, rate, lambda loss, s: (0.5 * torch.exp(-s) * loss + 0.5 * s).sum(), lambda s: 0.5 * torch.exp(-s))


def imtl_l(losses: Floats, rate: float) -> Floats:
    """Liu et al., 2021, "Towards Impartial Multi-task Learning" (ICLR), section 3.2: `e^s L - s`, moved by Adam."""
    return _learned(losses, rate, lambda loss, s: (torch.exp(s) * loss - s).sum(), torch.exp)


def _learned(losses: Floats, rate: float, total: Callable[[Tensor, Tensor], Tensor], weight: Callable[[Tensor], Tensor]) -> Floats:
    s = torch.zeros(losses.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer, found = torch.optim.Adam([s], lr=rate), []
    for row in torch.from_numpy(losses):
        found.append(weight(s).detach().numpy().copy())
        optimizer.zero_grad()
        total(row, s).backward()
        optimizer.step()
    return np.stack(found)


def famo(losses: Floats, rate: float, decay: float) -> Floats:
    """Liu et al., 2023, arXiv:2306.03792, algorithm 1, where the losses after a step are those of the next row."""
    xi = torch.zeros(losses.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer, found = torch.optim.Adam([xi], lr=rate, weight_decay=decay), []
    for before, row in zip([None, *torch.from_numpy(losses)], torch.from_numpy(losses), strict=False):
        if before is not None:
            gain = (before + 1e-8).log() - (row + 1e-8).log()
            optimizer.zero_grad()
            xi.grad = torch.autograd.grad(torch.softmax(xi, 0), xi, gain)[0]
            optimizer.step()
        z = torch.softmax(xi.detach(), 0)
        found.append((z / (row + 1e-8) / (z / (row + 1e-8)).sum()).numpy())
    return np.stack(found)


def dwa(losses: Floats, temperature: float, every: int) -> Floats:
    """Liu et al., 2019, arXiv:1803.10704, equation 7, with epochs of `every` steps."""
    count, found = losses.shape[1], []
    for step in range(len(losses)):
        epoch = step // every
        rates = np.ones(count)
        if epoch >= 2:
            means = [losses[(epoch - back) * every : (epoch - back + 1) * every].mean(axis=0) for back in (1, 2)]
            rates = means[0] / means[1]
        powers = np.exp(rates / temperature)
        found.append(count * powers / powers.sum())
    return np.stack(found)


def gradnorm(batches: Sequence[Floats], losses: Floats, alpha: float, rate: float) -> Floats:
    """Chen et al., 2018, arXiv:1711.02257, algorithm 1, by autograd; the weights are moved by Adam and sum to K."""
    count, found = losses.shape[1], []
    w = torch.ones(count, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=rate)
    for gradients, row in zip(batches, losses, strict=True):
        found.append(w.detach().numpy().copy())
        lengths = w * torch.from_numpy(np.linalg.norm(gradients, axis=1))
        ratio = torch.from_numpy(row / losses[0])
        target = (lengths.mean() * (ratio / ratio.mean()) ** alpha).detach()
        optimizer.zero_grad()
        (lengths - target).abs().sum().backward()
        optimizer.step()
        with torch.no_grad():
            w.clamp_(min=1e-3)
            w *= count / w.sum()
    return np.stack(found)


# -- cosines -----------------------------------------------------------------------------------------------------------


def cosine(one: Floats, other: Floats) -> float:
    """Of two gradients `(d,)`."""
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
