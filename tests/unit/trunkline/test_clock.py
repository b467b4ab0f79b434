"""Time is an argument."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.clock import Deadline, ManualClock, SystemClock
from trunkline.errors import DeadlineExceeded


@given(st.lists(st.floats(0.001, 100), max_size=10), st.floats(0.001, 300))
def test_a_deadline_is_over_exactly_when_its_seconds_have_passed(sleeps: list[float], seconds: float) -> None:
    clock = ManualClock(seconds=0.0)
    deadline = Deadline(clock, seconds, "it")
    for pause in sleeps:
        clock.sleep(pause)
        assert deadline.over() == (clock.monotonic() >= seconds)
        assert deadline.left() == max(0.0, seconds - clock.monotonic())
    assert clock.slept == sleeps


def test_check_says_what_was_waited_for() -> None:
    clock = ManualClock()
    deadline = Deadline(clock, 2.5, "the updates of round 3")
    deadline.check()
    clock.sleep(2.5)
    with pytest.raises(DeadlineExceeded, match=r"waited 2\.5 s for the updates of round 3\."):
        deadline.check()


def test_nothing_left_is_never_negative() -> None:
    clock = ManualClock()
    deadline = Deadline(clock, 1.0, "it")
    clock.sleep(9.0)
    assert deadline.left() == 0.0


def test_sleeping_backwards_does_not_turn_time_back() -> None:
    clock = ManualClock(seconds=5.0)
    clock.sleep(-1.0)
    assert clock.now() == 5.0


def test_the_system_clock_never_goes_back_and_takes_a_negative_pause() -> None:
    clock = SystemClock()
    first = clock.monotonic()
    clock.sleep(-1.0)
    assert clock.monotonic() >= first
    assert clock.now() > 1_600_000_000
