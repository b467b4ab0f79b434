"""GradNorm."""

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from tasks.balance import adam
from tasks.balance.losses import LEAST
from tasks.balance.rule import Floats, Rule, Seen, State, Weighed

SMALLEST = 1e-3
"""Of a weight. The paper says nothing of one that becomes negative."""


class GradNorm(Rule):
    """GradNorm (Chen et al., 2018, arXiv:1711.02257, algorithm 1): weights of the losses are learned so that the weighed gradients
    become alike, and longer for a task whose loss has fallen less since it began.

    The gradients are those of all shared layers; the paper takes the last one to save time, which is no matter here. The weights of
    the tasks that are there keep their sum, and move by Adam.
    """

    name: ClassVar[str] = "gradnorm"
    moves_heads: ClassVar[bool] = True
    alpha: Annotated[float, Field(ge=0, le=10, description="How strongly slow tasks are helped; 0: lengths become alike.")] = 1.5
    rate: Annotated[float, Field(gt=0, le=1, description="Learning rate of the weights, by Adam.")] = 0.025

    def weigh(self, seen: Seen, state: State) -> Weighed:
        keys = [f"gradnorm/weight/{task}" for task in seen.tasks]
        weights = np.array([state.get(key, 1.0) for key in keys])
        losses = np.maximum(seen.losses, LEAST)
        first = {f"gradnorm/first/{task}": loss for task, loss in zip(seen.tasks, losses.tolist(), strict=True)}
        first = {key: state.get(key, loss) for key, loss in first.items()}
        changed = dict(first)
        slopes = self._slopes(seen.norms, weights, losses / np.array(list(first.values())))
        for key, slope in zip(keys, slopes.tolist(), strict=True):
            changed |= adam.moved(state, key, 1.0, slope, self.rate)
        after = np.maximum([changed[key] for key in keys], SMALLEST)
        after *= weights.sum() / after.sum()
        return Weighed(len(weights) * weights / weights.sum(), changed | dict(zip(keys, after.tolist(), strict=True)))

    def _slopes(self, norms: Floats, weights: Floats, left: Floats) -> Floats:
        """Of the sum of |G_i - wanted_i| by the weights, with G_i = w_i |g_i|.

        :param left: each loss in parts of its first one.
        """
        lengths = weights * norms
        wanted = lengths.mean() * (left / left.mean()) ** self.alpha
        return np.asarray(np.sign(lengths - wanted) * norms)
