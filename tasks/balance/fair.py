"""Rules that share the gain of a step out among the tasks, fairly in the sense of economics. No solver is needed for these."""

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from tasks.balance.rule import Floats, Rule, Seen, State, Weighed

TURNS = 200
"""Newton's method takes some ten, and forty where gradients are almost opposite."""

HALVINGS = 20
"""Of one step."""

RIDGE = 1e-10
"""Of the diagonal, added: with opposite gradients there is no solution. The sum is then rounding, and counts as none."""


class FairGrad(Rule):
    """FairGrad (Ban and Ji, 2024, arXiv:2402.15638): the gains of the tasks are alpha-fair. `alpha=0` would be the sum, a large
    one is best for the task that gains least.
    """

    name: ClassVar[str] = "fairgrad"
    alpha: Annotated[float, Field(ge=0.5, le=10, description="How fair; the paper's is 2 in most trials.")] = 2.0

    def weigh(self, seen: Seen, state: State) -> Weighed:
        return Weighed(alpha_fair(seen.gramian, self.alpha))


class Nash(Rule):
    """Nash-MTL (Navon et al., 2022, arXiv:2202.01017): what the tasks would agree on if they bargained: `G w = 1 / w`. It does not
    matter how long a task's gradient is. The same as `fairgrad:alpha=1`.
    """

    name: ClassVar[str] = "nash"

    def weigh(self, seen: Seen, state: State) -> Weighed:
        return Weighed(alpha_fair(seen.gramian, 1.0))


def alpha_fair(gramian: Floats, alpha: float) -> Floats:
    """The w > 0 with `G w = w ** (-1 / alpha)`.

    It is where a convex function is least, whose Newton steps are shortened until w stays positive and the function falls. The
    papers approximate it, by a sequence of convex problems or by least squares.
    """
    scale = float(np.trace(gramian)) / len(gramian)
    matrix = gramian / scale + np.diag(RIDGE * np.diag(gramian) / scale)
    w: Floats = np.diag(matrix) ** (-alpha / (1 + alpha))  # the answer for orthogonal gradients
    for _ in range(TURNS):
        slope = matrix @ w - w ** (-1 / alpha)
        step = np.asarray(np.linalg.solve(matrix + np.diag(w ** (-1 / alpha - 1) / alpha), -slope), np.float64)
        share = _damped(matrix, alpha, w, step, float(slope @ step))
        w = np.asarray(w + share * step)
        if share == 0 or float(np.abs(step / w).max()) < 1e-12:
            break
    return np.asarray(w * scale ** (-alpha / (1 + alpha)))


def _damped(matrix: Floats, alpha: float, w: Floats, step: Floats, fall: float) -> float:
    """Share of a step; 0: the function does not fall any more, but for rounding."""
    back = float((-step / w).max())
    share = 1.0 if back < 0.95 else 0.95 / back
    now = _potential(matrix, alpha, w)
    for _ in range(HALVINGS):
        if _potential(matrix, alpha, w + share * step) <= now + 1e-4 * share * fall:
            return share
        share /= 2
    return 0.0


def _potential(matrix: Floats, alpha: float, w: Floats) -> float:
    gain = np.log(w).sum() if alpha == 1 else (w ** (1 - 1 / alpha)).sum() / (1 - 1 / alpha)
    return float(0.5 * w @ matrix @ w - gain)
