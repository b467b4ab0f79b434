"""How often a child looks for messages."""

import random


class Pace:
    """How long to wait before looking for the next message, in seconds.

    The wait is a twentieth of the time since the last message, so waiting never adds more than about 5 % to what a job's next
    step takes: 20 ms while messages come, seconds when idle. A look that takes longer than looks do here says that many children
    look at once, and that messages wait behind their looks: then each waits longer. While nobody is there it doubles, with chance
    in it, so that many children do not come back at once.

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
        self._quickest = float("inf")  # seconds of the quickest look: what one takes when nobody else is there

    def seen(self, now: float) -> None:
        """A message came (or is expected at once, after a request)."""
        self._last, self._failures = now, 0

    def idle(self, now: float, took: float = 0.0) -> float:
        """There was no message.

        :param took: how long the look took, in seconds. Up to twice the quickest counts for nothing; beyond that the wait grows
            with its square, so that the queue at the master grows only with the root of the number of children.
        """
        self._failures = 0
        self._quickest = min(self._quickest, took) if took > 0 else self._quickest
        crowd = max(1.0, took / (2 * self._quickest))
        return min(self.slowest, max(self.fastest * crowd**2, (now - self._last) / 20))

    def away(self) -> float:
        """Nobody was there: between half and all of a doubling wait."""
        wait = min(self.longest_away, self.first_away * 2 ** min(self._failures, 16))
        self._failures += 1
        return wait * self.rng.uniform(0.5, 1.0)
