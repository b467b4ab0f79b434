"""Rules that weigh the tasks by their losses. The weight is one of the loss, so the gradient of the head has it too."""

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from tasks.balance import adam
from tasks.balance.rule import Floats, Rule, Seen, State, Weighed

LEAST = 1e-8
"""Losses are taken to be positive; one below this counts as this."""

FAR = 10.0
"""A learned logarithm stays between this and its negative: of a loss that is zero, it would go on for ever."""

Rate = Annotated[float, Field(gt=0, le=1, description="Learning rate of what it learns for each task, by Adam.")]


class OfLosses(Rule):
    """A rule that weighs losses."""

    moves_heads: ClassVar[bool] = True


class Uncertainty(OfLosses):
    """Uncertainty weighting (Kendall et al., 2018, arXiv:1705.07115): a task counts by `exp(-s) / 2`, with s the logarithm of its
    noise, which is learned: `exp(-s) L / 2 + s / 2` is least.
    """

    name: ClassVar[str] = "uncertainty"
    rate: Rate = 0.01

    def weigh(self, seen: Seen, state: State) -> Weighed:
        keys = [f"uncertainty/log_variance/{task}" for task in seen.tasks]
        weights = 0.5 * np.exp(-_learned(state, keys))
        return Weighed(weights, _stepped(state, keys, 0.5 - weights * seen.losses, self.rate))


class IMTLL(OfLosses):
    """IMTL-L (Liu et al., 2021, ICLR, "Towards Impartial Multi-task Learning"): a task counts by `exp(s)`, which is learned so
    that all weighed losses become alike: `exp(s) L - s` is least.
    """

    name: ClassVar[str] = "imtl_l"
    rate: Rate = 0.01

    def weigh(self, seen: Seen, state: State) -> Weighed:
        keys = [f"imtl_l/log_scale/{task}" for task in seen.tasks]
        weights = np.exp(_learned(state, keys))
        return Weighed(weights, _stepped(state, keys, weights * seen.losses - 1, self.rate))


class DWA(OfLosses):
    """Dynamic weight average (Liu et al., 2019, arXiv:1803.10704, equation 7): a task whose loss falls more slowly than the others'
    counts for more. A stream has no epochs: the mean losses are of each task's last `every` batches, and of as many before.
    """

    name: ClassVar[str] = "dwa"
    temperature: Annotated[float, Field(gt=0, le=1e6, description="The higher, the more alike the weights.")] = 2.0
    every: Annotated[int, Field(ge=1, le=1_000_000, description="Batches of a task that stand for an epoch.")] = 100

    def weigh(self, seen: Seen, state: State) -> Weighed:
        powers = np.exp([self._ratio(state, task) / self.temperature for task in seen.tasks])
        changed: dict[str, float] = {}
        for task, loss in zip(seen.tasks, seen.losses.tolist(), strict=True):
            changed |= self._counted(state, task, loss)
        return Weighed(len(powers) * powers / powers.sum(), changed)

    def _ratio(self, state: State, task: str) -> float:
        """1 until there are two epochs. Kept from overflowing: a loss may have been zero."""
        newer, older = state.get(f"dwa/newer/{task}"), state.get(f"dwa/older/{task}")
        if newer is None or older is None:
            return 1.0
        return float(np.clip(newer / max(older, LEAST), 0.0, 100 * self.temperature))

    def _counted(self, state: State, task: str, loss: float) -> dict[str, float]:
        total, count = state.get(f"dwa/total/{task}", 0.0) + loss, state.get(f"dwa/count/{task}", 0.0) + 1
        if count < self.every:
            return {f"dwa/total/{task}": total, f"dwa/count/{task}": count}
        ended = {f"dwa/total/{task}": 0.0, f"dwa/count/{task}": 0.0, f"dwa/newer/{task}": total / count}
        before = state.get(f"dwa/newer/{task}")
        return ended if before is None else ended | {f"dwa/older/{task}": before}


class FAMO(OfLosses):
    """FAMO (Liu et al., 2023, arXiv:2306.03792): all losses should fall by the same share. Its weights move by what the last step
    did to each loss. The paper computes the losses of the same batches again after the step; here that is the loss of the task's
    next batch, which costs nothing and is noisier.
    """

    name: ClassVar[str] = "famo"
    rate: Rate = 0.025
    decay: Annotated[float, Field(ge=0, le=1, description="Pulls the weights together.")] = 0.001

    def weigh(self, seen: Seen, state: State) -> Weighed:
        losses = np.maximum(seen.losses, 0.0) + LEAST
        keys = [f"famo/logit/{task}" for task in seen.tasks]
        changed = self._moved(state, seen.tasks, keys, losses)
        logits = np.array([changed.get(key, state.get(key, 0.0)) for key in keys])
        weights = _softmax(logits) / losses
        kept = {f"famo/loss/{task}": loss for task, loss in zip(seen.tasks, losses.tolist(), strict=True)}
        return Weighed(weights / weights.sum(), changed | kept)

    def _moved(self, state: State, tasks: tuple[str, ...], keys: list[str], losses: Floats) -> dict[str, float]:
        """Adam's step for the tasks that had a loss before, which alone are weighed against each other here."""
        known = [place for place, task in enumerate(tasks) if f"famo/loss/{task}" in state]
        if not known:
            return {}
        shares = _softmax(np.array([state.get(keys[place], 0.0) for place in known]))
        fell = np.log([state[f"famo/loss/{tasks[place]}"] for place in known]) - np.log(losses[known])
        slopes = shares * (fell - shares @ fell)
        return _entries(state, [keys[place] for place in known], slopes, self.rate, self.decay)


class Geometric(OfLosses):
    """The gradient of the geometric mean of the losses (Chennupati et al., 2019, arXiv:1904.08492): a task counts by one over its
    loss.
    """

    name: ClassVar[str] = "geometric"

    def weigh(self, seen: Seen, state: State) -> Weighed:
        losses = np.maximum(seen.losses, LEAST)
        return Weighed(np.exp(np.log(losses).mean()) / (len(losses) * losses))


class STCH(OfLosses):
    """The gradient of a smooth maximum of the losses (Lin et al., 2024, arXiv:2402.19078): the task with the largest loss counts
    most.
    """

    name: ClassVar[str] = "stch"
    mu: Annotated[float, Field(gt=0, le=1e6, description="The lower, the more the largest loss counts alone.")] = 0.5

    def weigh(self, seen: Seen, state: State) -> Weighed:
        return Weighed(_softmax(seen.losses / len(seen.losses) / self.mu) / len(seen.losses))


def _learned(state: State, keys: list[str]) -> Floats:
    return np.array([state.get(key, 0.0) for key in keys])


def _stepped(state: State, keys: list[str], slopes: Floats, rate: float) -> dict[str, float]:
    """Adam's step of logarithms, which stay within bounds."""
    found = _entries(state, keys, slopes, rate, 0.0)
    return found | {key: min(FAR, max(-FAR, found[key])) for key in keys}


def _entries(state: State, keys: list[str], slopes: Floats, rate: float, decay: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for key, slope in zip(keys, slopes.tolist(), strict=True):
        found |= adam.moved(state, key, 0.0, slope, rate, decay)
    return found


def _softmax(numbers: Floats) -> Floats:
    powers = np.exp(numbers - numbers.max())
    return np.asarray(powers / powers.sum())
