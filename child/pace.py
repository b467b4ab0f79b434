"""How often a child looks for messages."""

import random


class Pace:
    """How long to wait before looking for the next message, in seconds.

    The wait is a twentieth of the time since the last message, so waiting never adds more than about 5 % to what a job's next
    step takes: 20 ms while messages come, seconds when idle, longer where a look itself takes long. While nobody is there it
    doubles, with chance in it, so that many children do not come back at once.

    >>> pace = Pace(random.Random(0))
    >>> pace.seen(100.0)
    >>> pace.idle(100.1), pace.idle(110.0), pace.idle(1000.0)
    (0.02, 0.5, 3.0)
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        fastest: float = 0.02,
        slowest: float = 3.0,
        first_away: float = 0.5,
        longest_away: float = 30.0,
    ) -> None:
        self.rng, self.fastest, self.slowest = rng, fastest, slowest
        self.first_away, self.longest_away = first_away, longest_away
        self._last, self._failures = float("-inf"), 0

    def seen(self, now: float) -> None:
        """A message came (or is expected at once, after a request)."""
        self._last, self._failures = now, 0

    def idle(self, now: float, took: float = 0.0) -> float:
        """There was no message.

        :param took: how long the look took, in seconds. A child looks for a quarter of its time at most: where a look takes long,
            many children look at once, and whatever else they ask of the master waits behind their looks.
        """
        self._failures = 0
        return min(self.slowest, max(self.fastest, (now - self._last) / 20, 3 * took))

    def away(self) -> float:
        """Nobody was there: between half and all of a doubling wait."""
        wait = min(self.longest_away, self.first_away * 2 ** min(self._failures, 16))
        self._failures += 1
        return wait * self.rng.uniform(0.5, 1.0)
