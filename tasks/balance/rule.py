"""What a rule that brings the gradients of several tasks to one is, and the values that go in and out.

Every task of a step has a gradient of the shared parameters, a loss, and a number of samples. A rule answers a weight for each task
and, where it remembers something, a new state. It is told the inner products of the gradients and never sees the gradients: `sums`
alone touches those, a slice at a time, so memory is the gradients and one more.

Legend: K tasks that take part, J the matrix of their gradients `(K, d)`, G = J J' their Gramian `(K, K)`, float64.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trunkline.choices import Choice
from trunkline.errors import Reason, RefusedValue, SpecError

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]

Gradients = Mapping[str, Mapping[str, "Tensor"]]
"""Task -> name of a shared tensor -> float32. A tensor that a task has not counts as zero there."""

State = Mapping[str, float]
"""What a rule remembers, as numbers for JSON: `RULE/WHAT/TASK`. What is of a task that is absent stays as it is."""

NOWHERE = 1e-6
"""A sum that is shorter than this share of the lengths it is made of is rounding: no direction suits all tasks."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a rule is told of a step: of the tasks that are there and have a gradient other than zero, in the order of their
    names.
    """

    tasks: tuple[str, ...]
    gramian: Floats  # (K, K)
    losses: Floats  # (K,), means over the samples of the batch
    samples: Floats  # (K,)
    seed: int  # of what a rule draws in this step

    @property
    def norms(self) -> Floats:
        """(K,), of the gradients."""
        return np.sqrt(np.diag(self.gramian))

    def cosines(self) -> dict[tuple[str, str], float]:
        """Of the gradients of each two tasks."""
        found = np.clip(self.gramian / np.outer(self.norms, self.norms), -1.0, 1.0)
        return {(one, self.tasks[j]): float(found[i, j]) for i, one in enumerate(self.tasks) for j in range(i + 1, len(self.tasks))}


@dataclass(frozen=True, slots=True)
class Weighed:
    """What a rule answers."""

    weights: Floats  # (K,)
    changed: State = field(default_factory=dict)  # entries of the state


@dataclass(frozen=True, slots=True)
class Combined:
    """What the gradients of a step come to."""

    gradient: Mapping[str, "Tensor"] = field(repr=False)  # of the shared parameters, float32, every name that a task has
    weights: Mapping[str, float]  # what the gradient of each task was multiplied by
    heads: Mapping[str, float]  # what the gradient of each task's head should be multiplied by
    cosines: Mapping[tuple[str, str], float]  # of each two tasks whose gradients are not zero, in the order of their names
    stretch: float  # how much longer it was made, to be as long as the mean; 0: no direction suits all tasks
    state: State


class Rule(Choice):
    """How the gradients of a step's tasks become one. Its docstring is what people read about it."""

    moves_heads: ClassVar[bool] = False
    """Whether its weight is one of the loss, so that the head's gradient has it too."""

    norm: Annotated[
        Literal["mean", "own"],
        Field(description="`mean`: as long as the mean of the tasks' gradients; `own`: as the paper's weights make it."),
    ] = "mean"

    @abstractmethod
    def weigh(self, seen: Seen, state: State) -> Weighed:
        """A weight for each task; K is at least 1, and no gradient is zero."""

    def check_installed(self) -> None:
        """Asked when a stream is configured.

        :raises SettingsError: a library that this rule needs is not there.
        """

    def combine(
        self, gradients: Gradients, losses: Mapping[str, float], samples: Mapping[str, int], state: State, rng_seed: int
    ) -> Combined:
        """Combine the gradients of the tasks that are there. The same bits, in whatever order they are.

        :param losses: of each task, the mean over its batch.
        :param state: what the last step left; empty in the first.
        :param rng_seed: of what the rule draws in this step; another one for each step.
        :raises RefusedValue: `not_finite`, `shape`, `dtype`: a gradient or a loss; the message names the task.
        :raises SpecError: there is no task, or losses and samples are not those of the tasks.
        """
        from tasks.balance import sums  # torch

        _check(gradients, losses, samples)
        names = sums.check(gradients)
        products = sums.gramian(gradients, sorted(gradients), names)
        seen = _moving(tuple(sorted(gradients)), products, losses, samples, rng_seed)
        found = self.weigh(seen, state) if seen.tasks else Weighed(np.zeros(0))
        weights, stretch = self._stretched(found.weights, seen.gramian)
        of_task = dict.fromkeys(sorted(gradients), 0.0) | dict(zip(seen.tasks, weights.tolist(), strict=True))
        heads = dict.fromkeys(sorted(gradients), 1.0) | self._heads(seen.tasks, found.weights)
        mixed = sums.mixed(gradients, of_task, names)
        return Combined(mixed, of_task, heads, seen.cosines(), stretch, {**state, **found.changed})

    def _stretched(self, weights: Floats, gramian: Floats) -> tuple[Floats, float]:
        """The weights as they are applied, and how much longer that made the sum."""
        if not len(weights):
            return weights, 0.0
        lengths = np.sqrt(np.diag(gramian))
        cosines = gramian / np.outer(lengths, lengths)
        length = _length(weights * lengths, cosines)
        if length <= NOWHERE * float(np.abs(weights * lengths).sum()):
            return np.zeros_like(weights), 0.0
        if self.norm == "own":
            return weights, 1.0
        of_mean = _length(np.full(len(lengths), 1 / len(lengths)) * lengths, cosines)
        if len(weights) == 1:
            return np.sign(weights), of_mean / length  # the gradient itself, bit for bit
        return weights * (of_mean / length), of_mean / length

    def _heads(self, tasks: tuple[str, ...], weights: Floats) -> dict[str, float]:
        """With `norm=own` the head's gradient is that of the weighed loss; else their weights have the mean 1."""
        if not self.moves_heads or not tasks:
            return {}
        factors = weights if self.norm == "own" else weights / weights.mean()
        return dict(zip(tasks, factors.tolist(), strict=True))


def _check(gradients: Gradients, losses: Mapping[str, float], samples: Mapping[str, int]) -> None:
    if not gradients:
        raise SpecError("`gradients` should be of at least one task, found none.")
    for what, found in (("losses", losses), ("samples", samples)):
        if found.keys() != gradients.keys():
            raise SpecError(f"`{what}` should be of {', '.join(sorted(gradients))}, found {', '.join(sorted(found)) or 'none'}.")
    for task in sorted(losses):
        if not isfinite(losses[task]):
            raise RefusedValue(Reason.NOT_FINITE, f"the loss of {task} should be finite, found {losses[task]}.")
        if samples[task] < 1:
            raise SpecError(f"`samples` of {task} should be at least 1, found {samples[task]}.")


def _moving(tasks: tuple[str, ...], products: Floats, losses: Mapping[str, float], samples: Mapping[str, int], seed: int) -> Seen:
    """Without the tasks whose gradient is zero: some rules would stop all for one."""
    at = [place for place in range(len(tasks)) if products[place, place] > 0]
    names = tuple(tasks[place] for place in at)
    loss, count = np.array([losses[name] for name in names]), np.array([float(samples[name]) for name in names])
    return Seen(names, products[np.ix_(at, at)], loss, count, seed)


def _length(along: Floats, cosines: Floats) -> float:
    """Of a sum that goes so far along each of some unit vectors."""
    return float(np.sqrt(max(0.0, float(along @ cosines @ along))))
