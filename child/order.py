"""In which order a child's samples are delivered: seeded, endless, and able to go on where it stopped.

Each task has its own order: epoch after epoch, each a permutation drawn from (seed, task, epoch). Tasks are interleaved in
proportion to their samples, smoothly, so a task with a tenth of the samples fills its queue a tenth as often.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Line:
    """The endless order of one task's samples."""

    task: str
    samples: NDArray[np.int64]  # rows of the table
    seed: int
    epoch: int = 0
    position: int = 0  # deliveries of this epoch that were made
    turns: float = 0.0  # virtual time: deliveries so far over samples
    _order: NDArray[np.int64] | None = field(default=None, repr=False)

    def next(self) -> int:
        """The next delivery."""
        if self._order is None:
            self._order = permutation(self.samples, self.seed, self.task, self.epoch)
        sample = int(self._order[self.position])
        self.position += 1
        self.turns += 1.0 / len(self.samples)
        if self.position == len(self.samples):
            self.epoch, self.position, self._order = self.epoch + 1, 0, None
        return sample

    def state(self) -> dict[str, Any]:
        """What `restored` needs to go on here."""
        return {"epoch": self.epoch, "position": self.position, "turns": self.turns, "samples": len(self.samples)}

    def restored(self, state: Mapping[str, Any] | None) -> "Line":
        """Go on where a state says; start afresh where the samples have changed in number."""
        if state and state["samples"] == len(self.samples):
            self.epoch, self.position, self.turns = state["epoch"], state["position"], state["turns"]
        return self


def permutation(samples: NDArray[np.int64], seed: int, task: str, epoch: int) -> NDArray[np.int64]:
    """The order of one epoch; the same on every machine."""
    key = int.from_bytes(hashlib.sha256(f"{seed}/{task}/{epoch}".encode()).digest()[:16], "little")
    return np.random.Generator(np.random.Philox(key=key)).permutation(samples)


def next_task(lines: Mapping[str, Line]) -> str:
    """The task whose turn it is: the one that is furthest behind in its samples, ties by name."""
    return min(lines, key=lambda task: (lines[task].turns, task))


def dropout_seed(seed: int, task: str, job_step: int) -> int:
    """A function of run, task and batch, never of the attempt."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{task}/{job_step}/dropout".encode()).digest()[:7], "little")
