"""How often a child looks for messages."""

import heapq
import random

from child.pace import Pace


def test_waiting_costs_a_twentieth_of_what_went_before() -> None:
    pace = Pace(random.Random(0))
    pace.seen(1000.0)
    now, looks = 1000.0, 0
    while now < 1060.0:
        wait = pace.idle(now)
        assert wait <= max(0.02, (now - 1000.0) / 20)
        now, looks = now + wait, looks + 1
    assert looks < 180  # in the first minute
    assert pace.idle(5000.0) == 3.0


def test_it_begins_idle() -> None:
    assert Pace(random.Random(0)).idle(0.0) == 3.0


def test_away_doubles_with_chance_up_to_a_limit() -> None:
    pace = Pace(random.Random(0))
    waits = [pace.away() for _ in range(40)]
    for index, wait in enumerate(waits):
        full = min(30.0, 0.5 * 2**index)
        assert full / 2 <= wait <= full
    pace.idle(0.0)
    assert pace.away() <= 0.5


def test_two_hundred_do_not_come_back_together() -> None:
    """After a master's restart no tenth of a second sees more than a few times its share of 200 children."""
    paces = [Pace(random.Random(seed)) for seed in range(200)]
    arrivals = sorted(sum(pace.away() for _ in range(6)) for pace in paces)
    for start in arrivals:
        assert sum(start <= one < start + 0.1 for one in arrivals) < 20


def test_a_child_looks_for_a_quarter_of_its_time_at_most() -> None:
    pace = Pace(random.Random(0))
    pace.seen(10.0)
    assert [pace.idle(10.0, took) for took in (0.005, 0.05, 0.5, 50.0)] == [0.02, 3 * 0.05, 3 * 0.5, 3.0]


def test_a_crowd_of_children_keeps_the_queue_at_the_master_short() -> None:
    """Given a master that answers a look in 8 ms, one after the other, When 100 children look, Then few of them wait."""
    service, count = 0.008, 100
    paces = [Pace(random.Random(seed), slowest=2.0) for seed in range(count)]
    for pace in paces:
        pace.seen(0.0)
    free, queued, looks = 0.0, list[float](), [(0.0, child) for child in range(count)]
    while (look := heapq.heappop(looks))[0] < 10.0:
        begun, child = look
        free = max(free, begun) + service
        if begun > 1.0:
            queued.append((free - begun) / service)
        heapq.heappush(looks, (free + paces[child].idle(free, free - begun), child))
    assert sum(queued) / len(queued) < 35, "without regard to how long a look takes it would be 70"
