"""When something that ended by itself may be started again."""

import random
from dataclasses import dataclass

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds; doubled each time, jittered."""


@dataclass(slots=True)
class Pause:
    """A pause that grows with every end."""

    until: float = 0.0  # monotonic seconds
    length: float = FIRST_PAUSE

    def over(self, now: float) -> bool:
        """Whether it may be started."""
        return now >= self.until

    def grow(self, now: float, rng: random.Random) -> None:
        """It ended now."""
        self.until = now + self.length * rng.uniform(0.5, 1.0)
        self.length = min(LONGEST_PAUSE, self.length * 2)
