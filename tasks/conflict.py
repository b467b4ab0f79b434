"""Conflict-averse weights by `torchjd`, an optional extra. The only module that knows it.

Gradients of several tasks (or the movements of parameters, which are gradients as well here) may pull against each other. Each
method answers with weights for them, and needs their inner products alone: the Gramian `G = J J'`, `(T, T)`, float64. So nothing
large comes here, and the gradients may lie in other processes. What comes out is `w`, `(T,)`; the common direction is `w J`.

torchjd, torch and cvxpy take seconds to import, so they are imported when a weight is asked for.
"""

from importlib.util import find_spec
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trunkline.errors import SpecError

Floats = NDArray[np.float64]


def check_installed() -> None:
    """Whether the extra is here. Imports nothing.

    :raises SpecError: it is not.
    """
    missing = [name for name in ("torchjd", "cvxpy", "scipy") if find_spec(name) is None]
    if missing:
        raise SpecError(
            f"the package {missing[0]} should be installed for conflict-averse rules, found none.",
            hint="pip install 'trunkline[conflict]'",
        )


def upgrad(gramian: Floats) -> Floats:
    """UPGrad (Quinton and Rey, 2024, arXiv:2406.16232): the mean of the gradients, each projected to where it is against no
    other.
    """
    from torchjd.aggregation import UPGradWeighting

    return _weights(UPGradWeighting(projector=cast(Any, _project)), gramian)


def pcgrad(gramian: Floats, orders: int, seed: int) -> Floats:
    """PCGrad (Yu et al., 2020, arXiv:2001.06782): each gradient loses what it has against each other, one after the other.

    torchjd draws the order of the others anew for every gradient, from torch's own generator, which is put back afterwards.

    :param orders: draws that the weights are the mean of.
    """
    import torch
    from torchjd.aggregation import PCGradWeighting

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn = [_weights(PCGradWeighting(), gramian) for _ in range(orders if len(gramian) > 2 else 1)]
    return np.asarray(np.mean(drawn, axis=0))


def cagrad(gramian: Floats, c: float) -> Floats:
    """CAGrad (Liu et al., 2021, arXiv:2110.14048): within `c` times the mean's norm around the mean, best for the worst-off task.

    All zero where no direction is good for every task.
    """
    from torchjd.aggregation import CAGradWeighting

    return _weights(CAGradWeighting(c=c, norm_eps=1e-6), gramian)


def imtl_g(gramian: Floats) -> Floats:
    """IMTL-G (Liu et al., 2021, ICLR): the direction that has the same projection onto every gradient's direction; weights sum to
    ±1.

    torchjd is asked with the matrix of cosines, the same problem for unit gradients: so a gradient of 1e-10 is as good as one of
    1e15, and every projection is positive, whereas the paper's weights lead backwards where their sum is negative. A little on its
    diagonal keeps gradients that are almost the same, or opposite, from weights that are rounding errors.
    """
    from torchjd.aggregation import IMTLGWeighting

    norms = np.sqrt(np.diag(gramian))
    found = _weights(IMTLGWeighting(), gramian / np.outer(norms, norms) + 1e-10 * np.eye(len(gramian))) / norms
    total = abs(float(found.sum()))
    return found / total if total > 0 else found


def _weights(weighting: Any, gramian: Floats) -> Floats:
    """Ask torchjd, in float64, of a Gramian whose trace is 1: its thresholds are meant for numbers of that size."""
    import torch

    with torch.no_grad():
        return np.asarray(weighting(torch.from_numpy(gramian / np.trace(gramian))).numpy(), dtype=np.float64)


def _project(weights: Any, gramian: Any) -> Any:
    """Weights of the projections onto the dual cone: for each row u of `weights`, the v >= u with the least `v' G v`.

    torchjd's own projector needs quadprog, which is under the GPL, and adds 1e-4 to the diagonal. With `G = A' A` and `x = v - u`
    this is a non-negative least squares problem, `min |A x + A u|, x >= 0`, which scipy solves exactly. A is the root of the matrix
    of cosines, so that a gradient of 1e-10 is as good as one of 1e15.
    """
    import torch
    from scipy.optimize import nnls

    g: Floats = gramian.numpy()
    norms = np.sqrt(np.diag(g))
    values, vectors = np.linalg.eigh(g / np.outer(norms, norms))
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T  # root' root is the matrix of cosines
    found = [u + nnls(root, -root @ (norms * u), maxiter=100 * len(g))[0] / norms for u in weights.numpy()]
    return torch.from_numpy(np.stack(found))
