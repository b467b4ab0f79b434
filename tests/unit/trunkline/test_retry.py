"""Trying again."""

import random
from itertools import pairwise

import pytest

from trunkline.clock import Deadline, ManualClock
from trunkline.errors import NotAuthorized, Unreachable
from trunkline.retry import persist


def test_it_ends_with_the_first_success() -> None:
    clock, calls = ManualClock(), []

    def once() -> str:
        calls.append(clock.seconds)
        if len(calls) < 4:
            raise Unreachable("no")
        return "yes"

    assert persist(once, Deadline(clock, 60, "x"), random.Random(0), first=1.0, most=2.0) == "yes"
    gaps = [later - earlier for earlier, later in pairwise(calls)]
    for gap, whole in zip(gaps, (1.0, 2.0, 2.0), strict=True):
        assert 0.8 * whole <= gap <= 1.2 * whole


def test_it_ends_with_the_deadline() -> None:
    clock = ManualClock()
    begun = clock.seconds

    def once() -> None:
        raise Unreachable("no")

    with pytest.raises(Unreachable):
        persist(once, Deadline(clock, 10, "x"), random.Random(0))
    assert clock.seconds - begun == 10.0, "no pause goes beyond it"


def test_what_will_not_get_better_is_not_tried_again() -> None:
    clock = ManualClock()

    def once() -> None:
        raise NotAuthorized("no")

    with pytest.raises(NotAuthorized):
        persist(once, Deadline(clock, 10, "x"), random.Random(0))
    assert clock.slept == []


def test_it_can_be_told_to_stop() -> None:
    clock = ManualClock()

    def once() -> None:
        raise Unreachable("no")

    with pytest.raises(Unreachable):
        persist(once, Deadline(clock, 10, "x"), random.Random(0), stop=lambda: len(clock.slept) == 2)
    assert len(clock.slept) == 2


def test_a_gain_gives_the_whole_time_again_and_the_pauses_begin_anew() -> None:
    clock, calls = ManualClock(), list[float]()

    def once() -> None:
        calls.append(clock.seconds)
        raise Unreachable("no")

    with pytest.raises(Unreachable):
        persist(
            once,
            Deadline(clock, 10, "x"),
            random.Random(0),
            first=1.0,
            most=4.0,
            gained=lambda: len(calls) // 4 if len(calls) < 9 else 2,
        )
    assert clock.seconds == calls[7] + 10.0, "the eighth try was the last that gained"
    for number in (0, 3, 7):
        assert 0.8 <= calls[number + 1] - calls[number] <= 1.2
