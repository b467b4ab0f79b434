"""The alarm for tasks that harm each other."""

import json

import pytest

from tasks.balance.alarm import Alarm, State, Watch, heard, ringing, scored
from tasks.balance.matrix import Row

WATCH = Watch(cosine=-0.1, rows=3, margin=0.05, looks=2)


def told(cosines: list[float], state: State | None = None) -> tuple[State, list[Alarm | None]]:
    state, alarms = state or {}, []
    for step, cosine in enumerate(cosines):
        state, found = heard(WATCH, state, [Row(step, "a", "b", cosine)])
        alarms.append(found[0] if found else None)
    return state, alarms


def test_a_cosine_that_stays_negative_is_told_once() -> None:
    state, alarms = told([0.2, -0.2, -0.3, -0.4, -0.5, -0.6])
    assert alarms == [None, None, None, Alarm(3, 1, ("a", "b"), -0.4), None, None]
    assert ringing(WATCH, state) == [("a", "b")]
    assert str(alarms[3]) == "the gradients of a and b are against each other since step 1 (cosine -0.40)"


def test_it_is_over_when_the_cosine_is_not_negative_and_may_start_again() -> None:
    state, alarms = told([-0.2, -0.2, -0.2, 0.0])
    assert ringing(WATCH, state) == [] and state == {}
    state, alarms = told([-0.2, -0.2, -0.2], state)
    assert [alarm is not None for alarm in alarms] == [False, False, True]


def test_a_little_below_zero_neither_counts_nor_ends_the_count() -> None:
    alarms = told([-0.2, -0.05, -0.2, -0.05, -0.2])[1]
    assert [alarm is not None for alarm in alarms] == [False, False, False, False, True]
    assert told([-0.05] * 50)[1] == [None] * 50


def test_pairs_are_counted_apart() -> None:
    rows = [Row(step, "a", other, -0.9) for step in range(2) for other in "bc"]
    state, alarms = heard(WATCH, {}, rows)
    assert alarms == []
    state, alarms = heard(WATCH, state, [Row(2, "a", "c", -0.9)])
    assert [alarm.tasks for alarm in alarms] == [("a", "c")] and ringing(WATCH, state) == [("a", "c")]
    assert heard(WATCH, {}, [*rows, *(Row(2, "a", other, -0.9) for other in "bc")])[1] == [
        Alarm(2, 0, ("a", "b"), -0.9),
        Alarm(2, 0, ("a", "c"), -0.9),
    ]


def scores(found: list[float]) -> tuple[State, list[Alarm | None]]:
    state: State = {}
    alarms = []
    for look, score in enumerate(found):
        state, alarm = scored(WATCH, state, "a", 100 * look, score)
        alarms.append(alarm)
    return state, alarms


def test_a_score_that_falls_below_its_best_is_told_once() -> None:
    state, alarms = scores([0.6, 0.8, 0.74, 0.7, 0.6])
    assert alarms[:3] == [None] * 3 and alarms[4] is None
    assert alarms[3] == Alarm(300, 100, ("a",), pytest.approx(0.1))  # type: ignore[arg-type]
    assert ringing(WATCH, state) == [("a",)]
    assert str(alarms[3]) == "the score of a is 0.1 below its best of step 100"


@pytest.mark.parametrize("back", [0.76, 0.9])
def test_it_is_over_when_the_score_is_back(back: float) -> None:
    alarms = scores([0.8, 0.7, 0.7, back, 0.6, 0.6])[1]
    assert [alarm is not None for alarm in alarms] == [False, False, True, False, False, True]


def test_one_bad_look_is_no_alarm() -> None:
    assert scores([0.8, 0.7, 0.8, 0.7, 0.8])[1] == [None] * 5


def test_a_score_that_is_not_finite_is_below_the_best_and_never_the_best() -> None:
    nan, infinite = float("nan"), float("inf")
    assert scores([nan, infinite])[0] == {}
    state, alarms = scores([0.8, nan, infinite])
    assert alarms[2] is not None and state["score/best/a"] == 0.8


def test_the_state_is_json_and_is_not_changed_in_place() -> None:
    state: State = {}
    state, _ = heard(WATCH, state, [Row(1, "a", "b", -0.5)])
    state, _ = scored(WATCH, state, "a", 1, 0.25)
    assert json.loads(json.dumps(state)) == state
    before = dict(state)
    heard(WATCH, state, [Row(2, "a", "b", 0.5)])
    scored(WATCH, state, "a", 2, 0.5)
    assert state == before
