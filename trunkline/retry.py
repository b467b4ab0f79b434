"""Trying again: a jittered, doubling pause between tries, inside a limit."""

import random
from collections.abc import Callable
from typing import TypeVar

from trunkline.clock import Clock, Deadline
from trunkline.errors import TrunklineError

Result = TypeVar("Result")


def persist(
    once: Callable[[], Result],
    deadline: Deadline,
    rng: random.Random,
    *,
    first: float = 0.05,
    most: float = 2.0,
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Call `once` until it works, for as long as its error says `retryable` and the deadline is not over.

    :param first: the first pause, in seconds; each is twice the one before, up to `most`, and 20 % shorter or longer by chance.
    :param stop: asked before each pause; true ends the tries.
    :raises TrunklineError: what the last try said.
    """
    pause = first
    while True:
        try:
            return once()
        except TrunklineError as error:
            if not error.retryable or stop() or deadline.over():
                raise
        sleep(deadline.clock, min(pause, deadline.left()), rng)
        pause = min(2 * pause, most)


def sleep(clock: Clock, seconds: float, rng: random.Random) -> None:
    """Sleep 20 % less or more, so that many who failed together do not come back together."""
    clock.sleep(seconds * rng.uniform(0.8, 1.2))
