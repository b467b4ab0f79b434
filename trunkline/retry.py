"""Trying again: a jittered, doubling pause between tries, inside a limit that a gain renews."""

import random
from collections.abc import Callable
from typing import TypeVar

from trunkline.clock import Deadline
from trunkline.errors import TrunklineError

Result = TypeVar("Result")


def persist(
    once: Callable[[], Result],
    deadline: Deadline,
    rng: random.Random,
    *,
    first: float = 0.05,
    most: float = 2.0,
    spread: float = 0.2,
    gained: Callable[[], int] = lambda: 0,
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Call `once` until it works, for as long as its error says `retryable` and the deadline is not over.

    :param first: the first pause, in seconds; each is twice the one before, up to `most`. None goes beyond the deadline.
    :param spread: a pause is longer or shorter by chance, by up to this share, so that many who failed together do not come back
        together.
    :param gained: a number that grows with every gain; each gives the whole time again, and the pauses begin anew.
    :param stop: asked before each pause; true ends the tries.
    :raises TrunklineError: what the last try said.
    """
    pause, before = first, gained()
    while True:
        try:
            return once()
        except TrunklineError as error:
            if not error.retryable or stop():
                raise
            if (now := gained()) > before:
                pause, before, deadline = first, now, deadline.again()
            if deadline.over():
                raise
        deadline.clock.sleep(min(deadline.left(), pause * rng.uniform(1 - spread, 1 + spread)))
        pause = min(2 * pause, most)
