"""Whether the gradients of the tasks pull against each other: their cosines on the shared parameters, kept as rows over time.

Where the tasks of a step are all there, the cosines are exact. Where each batch is applied by itself, the gradients of two tasks
are never there at one time: then a sketch of each is kept (see `sketch`), as a decayed mean over the task's batches. A sketch is
linear, so that is the sketch of the mean gradient, in which the noise of single batches is averaged out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tasks.balance.rule import Combined, Floats, Gradients
from trunkline.errors import Reason, RefusedValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

Sketches = Mapping[str, "NDArray[np.float32]"]
"""Task -> the sketch of its decayed mean gradient: small tensors for a checkpoint."""


@dataclass(frozen=True, slots=True)
class Row:
    """The cosine of the gradients of two tasks at a step."""

    step: int
    one: str  # before the other in the alphabet
    other: str
    cosine: float

    def table(self) -> dict[str, int | str | float]:
        """As JSON data."""
        return {"step": self.step, "one": self.one, "other": self.other, "cosine": self.cosine}


def told(combined: Combined, step: int) -> list[Row]:
    """Of the tasks of a step whose gradients were combined, which has their inner products anyway."""
    return [Row(step, one, other, cosine) for (one, other), cosine in combined.cosines.items()]


def exact(gradients: Gradients, step: int) -> list[Row]:
    """Of each pair of tasks whose gradients are not zero. Products and sums in float64, a slice at a time.

    :raises RefusedValue: `not_finite`, `shape`, `dtype`: a gradient is none; the message names the task.
    """
    from tasks.balance import sums  # torch

    tasks = sorted(gradients)
    return list(_pairs(tasks, sums.gramian(gradients, tasks, sums.check(gradients)), step))


def met(state: Sketches, task: str, sketch: Floats, step: int, decay: float = 0.9) -> tuple[Sketches, list[Row]]:
    """A batch of a task came by: the state after it, and the task's cosine with each other task that was seen.

    A gradient of zeros changes nothing and has no rows.

    :param sketch: of its gradient, of the size and seed of all others.
    :param decay: part that the task's earlier gradients have in its mean; 0: only the last one is looked at.
    :raises RefusedValue: `not_finite`: the sketch is not finite.
    """
    if not np.isfinite(sketch).all():
        raise RefusedValue(Reason.NOT_FINITE, f"the gradient of {task} should be finite, found that its sketch is not.")
    if not sketch.any():
        return state, []
    before = state.get(task)
    mean = sketch if before is None else decay * before.astype(np.float64) + (1 - decay) * sketch
    after = {**state, task: mean.astype(np.float32)}
    return after, [row for other in sorted(after) if other != task for row in estimated(after, (task, other), step)]


def estimated(state: Sketches, tasks: tuple[str, ...], step: int) -> list[Row]:
    """Of each pair of some tasks, by their sketches. Off by about one over the root of the sketches' size."""
    known = sorted(task for task in tasks if task in state)
    rows = np.stack([state[task] for task in known]).astype(np.float64) if known else np.zeros((0, 0))
    return list(_pairs(known, rows @ rows.T, step))


def _pairs(tasks: list[str], products: Floats, step: int) -> Iterator[Row]:
    """:param tasks: in the order of the alphabet."""
    lengths = np.sqrt(np.diag(products))
    for i, one in enumerate(tasks):
        for j in range(i + 1, len(tasks)):
            if lengths[i] > 0 and lengths[j] > 0:
                cosine = float(products[i, j] / (lengths[i] * lengths[j]))
                yield Row(step, one, tasks[j], min(1.0, max(-1.0, cosine)))
