"""What the server of a stream tells of its work: counters since it started, as JSON values. Any thread may ask."""

import threading
from collections import Counter, deque
from typing import Any

from queues.stream.rates import Rates
from trunkline.clock import Clock

REFUSED = 50
"""Refusals that are remembered, the newest."""


class Tally:
    """Counts what became of gradients."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._rates, self._noted = Rates(clock), clock.monotonic()
        self._rates.note({})
        self._batches: Counter[str] = Counter()  # applied, by task
        self._samples: Counter[str] = Counter()
        self._losses: dict[str, float] = {}
        self._staleness: Counter[int] = Counter()  # of what was applied, in steps
        self._stale: Counter[str] = Counter()  # the same, summed by task
        self._back: Counter[str] = Counter()  # why batches came back
        self._refused: deque[dict[str, Any]] = deque(maxlen=REFUSED)

    def applied(self, task: str, samples: int, loss: float, staleness: int) -> None:
        """A gradient changed the parameters."""
        with self._lock:
            self._batches[task] += 1
            self._samples[task] += samples
            self._losses[task] = loss
            self._staleness[staleness] += 1
            self._stale[task] += staleness
            self._note()

    def back(self, why: str, **details: Any) -> None:
        """A batch came back.

        :param why: `stale`, `lost`, `refused`.
        :param details: of one that was refused.
        """
        with self._lock:
            self._back[why] += 1
            if details:
                self._refused.append({"at": round(self._clock.now(), 3), **details})

    def _note(self) -> None:
        """Once a second is enough for a rate."""
        if self._clock.monotonic() - self._noted >= 1.0:
            self._noted = self._clock.monotonic()
            self._rates.note(self._samples)

    def table(self) -> dict[str, Any]:
        """All of it, as JSON values."""
        with self._lock:
            self._note()
            tasks = {
                task: {
                    "batches": self._batches[task],
                    "samples": self._samples[task],
                    "samples_a_second": round(self._rates.a_second(task), 3),
                    "loss": self._losses[task],
                    "staleness": round(self._stale[task] / self._batches[task], 3),  # mean, in steps
                }
                for task in sorted(self._batches)
            }
            return {
                "applied": self._batches.total(),
                "tasks": tasks,
                "staleness": {str(steps): self._staleness[steps] for steps in sorted(self._staleness)},
                "came_back": dict(self._back),
                "refused": list(self._refused),
            }
