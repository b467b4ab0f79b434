"""Conflict-averse weights by `torchjd`, an optional extra. The only module that knows it.

Gradients of several tasks (or the movements of parameters, which are gradients as well here) may pull against each other. Each
method answers with weights for them, and needs their inner products alone: the Gramian `G = J J'`, `(T, T)`, float64. So nothing
large comes here, and the gradients may lie in other processes. What comes out is `w`, `(T,)`; the common direction is `w J`.

torchjd, torch and cvxpy take seconds to import, so they are imported when a weight is asked for.
"""

from importlib.util import find_spec
from typing import Any, Literal, cast

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


def mgda(gramian: Floats) -> Floats:
    """MGDA (Désidéri, 2012; Sener and Koltun, 2018, arXiv:1810.04650): the shortest of all convex combinations.

    torchjd has a hundred steps of Frank and Wolfe, which end somewhere near. `min |A x|^2 + (1 - sum x)^2, x >= 0` with `G = A' A`
    is solved by the same x but for its length, also where the shortest combination is zero, and exactly.
    """
    from scipy.optimize import nnls

    count = len(gramian)
    root = _root(gramian / np.trace(gramian))
    found = nnls(np.vstack([root, np.ones(count)]), np.append(np.zeros(count), 1.0), maxiter=100 * count)[0]
    return np.asarray(found / found.sum(), dtype=np.float64)


def dualproj(gramian: Floats) -> Floats:
    """The mean of the gradients, projected to where it is against none (Lopez-Paz and Ranzato, 2017, arXiv:1706.08840, eq. 11)."""
    from torchjd.aggregation import DualProjWeighting

    return _weights(DualProjWeighting(projector=cast(Any, _project)), gramian)


def aligned_mtl(gramian: Floats, scale: Literal["min", "median", "rmse"]) -> Floats:
    """Aligned-MTL (Senushkin et al., 2023, arXiv:2305.19000): the mean, once the matrix of gradients has all singular values
    alike.

    :param scale: which they have then: the least, the median, or the root of the mean square.
    """
    from torchjd.aggregation import AlignedMTLWeighting

    return _weights(AlignedMTLWeighting(scale_mode=scale), gramian)


def gradvac(gramian: Floats, wanted: Floats, beta: float, seed: int) -> tuple[Floats, Floats]:
    """GradVac (Wang et al., 2021, arXiv:2010.05874): PCGrad, for cosines below what is wanted of the pair, not below zero.

    :param wanted: cosine for each ordered pair `(T, T)`, a decayed mean of those that were seen; torchjd keeps it in a buffer that
        is there after the first call only, and forgets it when T changes.
    :returns: the weights, and what is wanted from now on.
    """
    import torch
    from torchjd.aggregation import GradVacWeighting

    weighting = GradVacWeighting(beta=beta)
    with torch.random.fork_rng(devices=[]):
        _weights(weighting, gramian)
        weighting.load_state_dict({"_phi_t": torch.from_numpy(wanted)})
        torch.manual_seed(seed)
        found = _weights(weighting, gramian)
    return found, np.asarray(weighting.state_dict()["_phi_t"].numpy(), dtype=np.float64)


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
    root = _root(g / np.outer(norms, norms))
    rows = np.atleast_2d(weights.numpy())
    found = [u + nnls(root, -root @ (norms * u), maxiter=100 * len(g))[0] / norms for u in rows]
    return torch.from_numpy(np.stack(found).reshape(weights.shape))


def _root(matrix: Floats) -> Floats:
    """R with R' R the matrix, which is symmetric and has no negative eigenvalues but for rounding."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray(np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T)
