"""Time as an argument: production hands in `SystemClock`, tests a `ManualClock` that never sleeps."""

import time
from dataclasses import dataclass, field
from typing import Protocol

from trunkline.errors import DeadlineExceeded


class Clock(Protocol):
    """Where a component reads the time and waits. Seconds, float, everywhere."""

    def now(self) -> float:
        """Seconds since the epoch; for records people read."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; for deadlines."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))


@dataclass
class ManualClock:
    """A clock that moves only when told to, or when somebody sleeps on it."""

    seconds: float = 1_000_000.0
    slept: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += max(0.0, seconds)


class Deadline:
    """A wait that ends.

    >>> clock = ManualClock()
    >>> deadline = Deadline(clock, 5.0, "the confirmations of round 1")
    >>> clock.sleep(6.0)
    >>> deadline.check()
    Traceback (most recent call last):
    ...
    trunkline.errors.DeadlineExceeded: waited 5 s for the confirmations of round 1.
    """

    def __init__(self, clock: Clock, seconds: float, what: str) -> None:
        self.clock, self.seconds, self.what = clock, seconds, what
        self._end = clock.monotonic() + seconds

    def again(self) -> "Deadline":
        """The same wait, from now on."""
        return Deadline(self.clock, self.seconds, self.what)

    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - self.clock.monotonic())

    def over(self) -> bool:
        return self.clock.monotonic() >= self._end

    def check(self) -> None:
        """:raises DeadlineExceeded: nothing is left."""
        if self.over():
            raise DeadlineExceeded(f"waited {self.seconds:g} s for {self.what}.")
