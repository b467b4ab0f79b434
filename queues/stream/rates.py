"""How fast counters grow."""

import threading
from collections import deque
from collections.abc import Mapping

from trunkline.clock import Clock

SPAN = 60.0
"""Seconds that a rate is the mean over."""


class Rates:
    """Growth a second of counters, over the last minute. Any thread may use it.

    >>> from trunkline.clock import ManualClock
    >>> clock = ManualClock()
    >>> rates = Rates(clock)
    >>> rates.note({"pushed": 10})
    >>> clock.sleep(2.0)
    >>> rates.note({"pushed": 30})
    >>> rates.a_second("pushed")
    10.0
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: deque[tuple[float, Mapping[str, int]]] = deque()

    def note(self, counters: Mapping[str, int]) -> None:
        """What they are now."""
        with self._lock:
            now = self._clock.monotonic()
            self._seen.append((now, dict(counters)))
            while len(self._seen) > 2 and now - self._seen[1][0] >= SPAN:
                self._seen.popleft()

    def a_second(self, name: str) -> float:
        """0 until it was noted twice. A counter that went back, with a server that did, counts as one that stood still."""
        with self._lock:
            if len(self._seen) < 2:
                return 0.0
            (began, first), (ended, last) = self._seen[0], self._seen[-1]
            return max(0, last.get(name, 0) - first.get(name, 0)) / (ended - began) if ended > began else 0.0
