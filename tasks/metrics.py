"""How well a head does, from arrays: plain formulas, no torch.

Shapes: N samples, C labels. Where a formula divides by zero, the answer is 0.0.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.integer[Any]]


def accuracy(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Share of samples that are right; with several labels a sample (N, C), all of them.

    >>> accuracy(np.array([0, 1, 1, 2]), np.array([0, 1, 2, 2]))
    0.75
    """
    right = found == wanted
    return float(right.all(axis=tuple(range(1, right.ndim))).mean()) if len(right) else 0.0


def f1_micro(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Over all decisions of 0/1 arrays (N, C) together.

    >>> f1_micro(np.array([[1, 0], [1, 1]]), np.array([[1, 1], [1, 0]]))
    0.6666666666666666
    """
    hits = float(np.logical_and(found == 1, wanted == 1).sum())
    total = float((found == 1).sum() + (wanted == 1).sum())
    return 2 * hits / total if total else 0.0


def f1_macro(found: Integers, wanted: Integers) -> float:
    """Mean over the classes that are found or wanted, of class numbers (N,).

    >>> f1_macro(np.array([0, 0, 1]), np.array([0, 1, 1]))
    0.6666666666666666
    """
    classes = np.union1d(found, wanted)
    each = [f1_micro((found == name).astype(int)[:, None], (wanted == name).astype(int)[:, None]) for name in classes]
    return float(np.mean(each)) if each else 0.0


def mse(found: Floats, wanted: Floats) -> float:
    """Mean squared error."""
    return float(np.mean((found.astype(np.float64) - wanted.astype(np.float64)) ** 2)) if len(found) else 0.0


def pearson(found: Floats, wanted: Floats) -> float:
    """Linear correlation.

    >>> round(pearson(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])), 6)
    1.0
    """
    if len(found) < 2:
        return 0.0
    x, y = found.astype(np.float64), wanted.astype(np.float64)
    x, y = x - x.mean(), y - y.mean()
    spread = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / spread if spread > 0 else 0.0


def spearman(found: Floats, wanted: Floats) -> float:
    """Correlation of ranks; equal values share their mean rank."""
    return pearson(_ranks(found), _ranks(wanted))


def _ranks(values: Floats) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((2 * last - counts + 1) / 2)[inverse]


def recall_at(k: int, first: Floats, second: Floats, block: int = 256) -> float:
    """Share of rows whose own partner is among the k nearest by cosine. Embeddings (N, H); a tie counts for the partner.

    :param block: rows compared at a time.
    """
    if not len(first):
        return 0.0
    a, b = _unit(first), _unit(second)
    hits = 0
    for start in range(0, len(a), block):
        scores = a[start : start + block] @ b.T
        own = np.take_along_axis(scores, np.arange(start, start + len(scores))[:, None], axis=1)
        # Equal texts among the candidates differ by rounding only; they do not push the partner down.
        hits += int(((scores > own + 1e-6).sum(axis=1) < k).sum())
    return hits / len(a)


def _unit(rows: Floats) -> Floats:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def score(metric: str, head: str, found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """The metric of a task by its name. For pairs, `found` and `wanted` are the embeddings of the two sides."""
    if metric.startswith("recall@"):
        return recall_at(int(metric.removeprefix("recall@")), found, wanted)
    if metric == "f1":
        return f1_micro(found, wanted) if head == "multi" else f1_macro(found, wanted)
    return {"accuracy": accuracy, "mse": mse, "pearson": pearson, "spearman": spearman}[metric](found, wanted)
