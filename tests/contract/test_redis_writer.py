"""What the server of a stream says to its queues: it waits for the bell, holds the stream, looks, and mends what was set back."""

import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from queues.embedded import EmbeddedServer
from queues.queue import Claim, Outcome
from queues.settings import QueueSettings
from queues.writer import QueueWriter
from tests.support.streams import KINDS, client, raw, stream
from tests.support.streams import server as running
from trunkline.clock import ManualClock
from trunkline.errors import AlreadyRunning, Conflict, Fenced, NotFound, Unreachable

pytestmark = pytest.mark.contract


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> EmbeddedServer:
    found: EmbeddedServer = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture(params=KINDS)
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedServer]:
    with running(request.param, tmp_path / "server") as made:
        yield made


Make = Callable[..., QueueWriter]


@pytest.fixture
def make(server: EmbeddedServer, clock: ManualClock) -> Make:
    return lambda **settings: stream(server, clock=clock, **settings)


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def taken(queues: QueueWriter) -> Claim[bytes]:
    claim = queues.claim()
    assert claim is not None
    return claim


def rang(queues: QueueWriter) -> bool:
    return queues.wait(0.001)


# -- the bell ------------------------------------------------------------------------------------------------------------


def test_the_bell_is_rung_for_what_there_is_to_look_at_and_for_nothing_else(make: Make, clock: ManualClock) -> None:
    queues = make(lease_seconds=5.0, attempts=3)
    queues.open("a", 2)
    assert not rang(queues)
    queues.push("a", numbered(1, 1))
    assert not rang(queues), "not a batch yet"
    queues.push("a", numbered(2, 5))
    assert rang(queues)
    first = taken(queues)
    assert rang(queues), "there is another"
    second = taken(queues)
    assert not rang(queues)
    queues.renew(first)
    assert not rang(queues)
    queues.submit(first)
    assert rang(queues)
    queues.commit(first, 1)
    queues.release(1)
    assert not rang(queues)
    queues.nack(second, "why")
    assert rang(queues)
    queues.set_state("a", "paused")
    assert queues.claim() is None
    assert not rang(queues)
    queues.set_state("a", "open")
    assert rang(queues), "it comes back"
    queues.nack(taken(queues), "why")
    rang(queues)
    queues.nack(taken(queues), "why")
    assert not rang(queues), "it is dead"
    queues.retry("a")
    assert rang(queues)
    queues.commit(taken(queues), 2)
    queues.reopen(1)
    assert rang(queues)


def test_a_bell_that_nobody_hears_takes_no_room(make: Make) -> None:
    queues = make()
    queues.open("a", 1)
    for number in range(100):
        queues.push("a", [b"x"])
        queues.submit(taken(queues))
        assert raw(queues).llen(queues._key("bell")) <= 16, number
    assert rang(queues)
    assert not rang(queues), "who looks once has seen it all"


def test_who_waits_wakes_at_once(make: Make) -> None:
    queues = make()
    queues.open("a", 1)
    heard: list[bool] = []
    waiter = threading.Thread(target=lambda: heard.append(queues.wait(30.0)))
    waiter.start()
    key = queues._key("bell").encode()
    while not any(one["cmd"] == "blpop" for one in raw(queues).client_list()):
        time.sleep(0.001)
    queues.push("a", [b"x"])
    waiter.join(10.0)
    assert heard == [True]
    assert not raw(queues).exists(key)


def test_a_wait_ends_with_its_server_and_goes_on_with_the_next(own_server: EmbeddedServer) -> None:
    queues = stream(own_server)
    queues.open("a", 1)
    assert queues.wait(0.01) is False
    own_server.stop()
    with pytest.raises(Unreachable):
        queues.wait(0.01)
    own_server.start()
    queues.push("a", [b"x"])
    assert queues.wait(5.0) is True
    assert len([one for one in raw(queues).client_list() if one["cmd"] == "blpop"]) <= 1


# -- as many batches out as may be ---------------------------------------------------------------------------------------


def test_a_queue_gives_no_more_batches_than_may_be_out(make: Make, clock: ManualClock) -> None:
    queues = make(lease_seconds=5.0)
    queues.configure("a", QueueSettings(batch_size=2, out=2, flush_seconds=1.0))
    queues.open("b", 2)
    queues.push("a", numbered(1, 9))
    queues.push("b", numbered(1, 2))
    out = [taken(queues) for _ in range(3)]
    assert sorted(claim.task for claim in out) == ["a", "a", "b"]
    clock.sleep(2.0)
    assert queues.claim() is None, "also where samples waited for long enough"
    mine = [claim for claim in out if claim.task == "a"]
    queues.submit(mine[0])
    assert queues.claim() is None, "submitted is out"
    queues.nack(mine[0], "stale", counts=False)
    again = taken(queues)
    assert (again.id, again.attempt) == (mine[0].id, 2), "what comes back is the one that is out"
    assert queues.claim() is None
    rang(queues)
    queues.commit(again, 1)
    assert rang(queues)
    third = taken(queues)
    assert third.samples == tuple(numbered(5, 6))
    clock.sleep(6.0)
    lost = {taken(queues).id, taken(queues).id, taken(queues).id}
    others = {claim.id for claim in out if claim is not mine[0]}
    assert lost == {third.id} | others, "what is lost is handed out again, whatever may be out"
    assert queues.claim() is None
    queues.configure("a", QueueSettings(batch_size=2))
    assert taken(queues).samples == tuple(numbered(7, 8))


# -- one server ----------------------------------------------------------------------------------------------------------


def test_one_holds_the_stream_until_its_time_is_over(make: Make, clock: ManualClock) -> None:
    queues = make()
    queues.open("a", 1)
    other = QueueWriter(raw(queues), queues.name, epoch="epoch", clock=clock)
    queues.hold(1, "one", 10.0)
    with pytest.raises(AlreadyRunning, match=r"found another, start 1 of its store, that holds it for 10 s more"):
        other.hold(2, "two", 10.0)
    clock.sleep(6.0)
    queues.hold(1, "one", 10.0)
    clock.sleep(6.0)
    with pytest.raises(AlreadyRunning, match="4 s more"):
        other.hold(2, "two", 10.0)
    clock.sleep(5.0)
    other.hold(2, "two", 10.0)
    for act in (queues.work, lambda: queues.release(1), lambda: queues.reopen(0), lambda: queues.commit(Claim("x", 1, "a", ()))):
        with pytest.raises(Fenced, match="another that holds it"):
            act()
    with pytest.raises(AlreadyRunning):
        queues.hold(1, "one", 10.0)
    other.let_go(2)
    with pytest.raises(Fenced, match="from start 2 of its store, and should be from a later one now, found start 1"):
        queues.hold(1, "one", 10.0)
    queues.hold(1, "one", 10.0, anyway=True)
    assert queues.work().submitted == ()
    queues.let_go(1)
    for incarnation in (1, 2):
        with pytest.raises(Fenced):
            queues.hold(incarnation, "three", 10.0)
    queues.hold(3, "three", 10.0)


def test_workers_and_producers_do_not_care_who_holds_the_stream(make: Make, server: EmbeddedServer) -> None:
    queues = make()
    queues.hold(1, "one", 10.0)
    worker = QueueWriter(client(server), queues.name, epoch="epoch")
    worker.open("a", 1)
    worker.push("a", [b"x"])
    assert worker.submit(taken(worker)) is Outcome.OK


# -- what there is to do -------------------------------------------------------------------------------------------------


def test_work_is_told_in_the_order_of_submission(make: Make, clock: ManualClock) -> None:
    queues = make()
    queues.open("a", 2)
    queues.push("a", numbered(1, 10))
    claims = [taken(queues) for _ in range(4)]
    for place in (2, 0, 3, 1):
        queues.submit(claims[place])
        clock.sleep(1.0)
    work = queues.work()
    assert [one.claim for one in work.submitted] == [claims[place] for place in (2, 0, 3, 1)]
    assert [(one.worker, one.seconds) for one in work.submitted] == [("tester", float(age)) for age in (4, 3, 2, 1)]
    assert work.submitted[0].kept == [struct.pack(">d", 1_000_000_000.0) + sample for sample in claims[2].samples]
    assert (work.step, work.claimable) == (0, 1)
    assert [one.claim.id for one in queues.submitted(2)] == [claims[2].id, claims[0].id]


@pytest.mark.slow
def test_work_may_be_the_first_of_each_queue_and_is_never_more_than_a_reply_should_have(make: Make) -> None:
    queues = make()
    for queue in ("a", "b"):
        queues.open(queue, 1)
        queues.push(queue, [b"%d" % number + bytes(24 << 20) * (queue == "a") for number in range(5)])
    claims = {"a": [], "b": []}
    for _ in range(10):
        claim = taken(queues)
        claims[claim.task].append(claim.id)
    for task in ("a", "b", "a", "a", "b", "a", "a"):
        queues.submit(Claim(claims[task][0], 1, task, ()))
        claims[task].append(claims[task].pop(0))
    assert [one.claim.task for one in queues.work().submitted] == ["a", "b", "a", "a"], "64 MiB, and what is over"
    assert [one.claim.task for one in queues.work(2).submitted] == ["a", "b"]
    assert [one.claim.samples[0][:1] for one in queues.work(one_each=True).submitted] == [b"0", b"0"]


def test_what_is_out_is_told_with_its_age(make: Make, clock: ManualClock) -> None:
    queues = make(lease_seconds=10.0)
    queues.open("a", 1)
    queues.push("a", numbered(1, 4))
    claims = [taken(queues) for _ in range(4)]
    clock.sleep(3.0)
    queues.submit(claims[0])
    queues.nack(claims[1], "why")
    clock.sleep(2.0)
    queues.renew(claims[2])
    found = {one.batch: (one.where, one.seconds, one.worker, one.queue, one.attempt) for one in queues.out()}
    assert found == {
        claims[0].id: ("submitted", 2.0, "tester", "a", 1),
        claims[1].id: ("back", 5.0, "tester", "a", 1),
        claims[2].id: ("leased", 5.0, "tester", "a", 1),
        claims[3].id: ("leased", 5.0, "tester", "a", 1),
    }
    clock.sleep(6.0)
    assert {one.batch: one.where for one in queues.out()}[claims[3].id] == "back", "its lease is over"
    assert queues.out(0) == ()


# -- what was set back ---------------------------------------------------------------------------------------------------


def test_a_commit_tells_that_the_server_was_set_back(make: Make) -> None:
    queues = make()
    queues.open("a", 1)
    queues.push("a", numbered(1, 3))
    first, second, third = (taken(queues) for _ in range(3))
    assert queues.commit(first, 5, 0) is Outcome.OK
    assert queues.commit(second, 6, 5) is Outcome.OK
    with pytest.raises(Conflict, match="know of step 7"):
        queues.commit(third, 8, 7)
    assert queues.counts("a").leased == 1
    assert queues.hold(1, "one", 1.0).step == 6


def test_what_a_store_that_went_back_did_not_apply_comes_back_in_order_and_before_all_else(make: Make) -> None:
    queues = make(attempts=1)
    queues.open("a", 1)
    queues.push("a", numbered(1, 6))
    claims = [taken(queues) for _ in range(5)]
    for step, claim in zip((3, 1, 4, 2), claims, strict=False):
        queues.commit(claim, step)
    queues.nack(claims[4], "given back", counts=False)
    assert [(one.batch, one.step) for one in queues.applied_after(1)] == [
        (claims[place].id, step) for place, step in ((3, 2), (0, 3), (2, 4))
    ]
    assert queues.reopen(1) == 3
    assert [taken(queues).id for _ in range(4)] == [claims[place].id for place in (3, 0, 2, 4)], "and it counts against none"
    assert queues.commit(claims[3], 2) is Outcome.FENCED, "the attempt of before says nothing more"
    assert queues.hold(1, "one", 1.0).step == 1
    assert queues.reopen(1) == 0


def test_many_come_back(make: Make) -> None:
    queues = make()
    queues.open("a", 1)
    queues.push("a", numbered(1, 1203))
    for step in range(1, 1204):
        queues.commit(taken(queues), step)
    assert queues.reopen(2) == 1201
    assert queues.hold(1, "one", 1.0).step == 2
    assert [taken(queues).samples for _ in range(1201)] == [(sample,) for sample in numbered(3, 1203)]


def adopted(queues: QueueWriter, id: str, step: int, samples: list[bytes], stamps: list[float]) -> Any:
    packed = b"".join(struct.pack(">d", stamp) for stamp in stamps)
    return queues.adopt(Claim(id, 1, "a", tuple(samples)), step, packed)


def test_samples_that_were_applied_are_taken_from_wherever_they_are(make: Make, clock: ManualClock) -> None:
    queues = make()
    queues.open("a", 2)
    now = 1000 * clock.now()
    queues.push("a", numbered(1, 4), producer="p", first=1)
    lost = numbered(3, 6)  # 5 and 6 were pushed after the copy
    assert adopted(queues, "lost", 7, lost, [now] * 4) == 2
    counts = queues.counts("a")
    assert (counts.pushed, counts.applied, counts.queued, counts.conserved) == (6, 4, 2, True)
    assert queues.waiting("a") == tuple(numbered(1, 2))
    assert adopted(queues, "lost", 7, lost, [now] * 4) is None, "once"
    with pytest.raises(Conflict, match="sample 5"):
        queues.push("a", numbered(8, 8), producer="p", first=8)
    assert queues.push("a", numbered(5, 8), producer="p", first=5) == 4, "7 and 8 are new"
    assert queues.waiting("a") == (b"1", b"2", b"7", b"8")
    assert queues.push("a", numbered(5, 6), producer="q", first=1) == 6, "once each: these are others"
    assert queues.push("a", numbered(5, 5)) == 7, "and who does not count never sends again"
    assert queues.hold(1, "one", 1.0).step == 7
    assert queues.release(7) == 1
    assert adopted(queues, "lost", 7, lost, [now] * 4) is None
    assert queues.counts("a").conserved


def test_a_batch_that_is_out_or_dead_is_adopted_where_it_is(make: Make) -> None:
    queues = make(attempts=1)
    queues.open("a", 1)
    queues.push("a", numbered(1, 3))
    leased, submitted, dead = (taken(queues) for _ in range(3))
    queues.submit(submitted)
    queues.nack(dead, "why")
    for step, claim in enumerate((leased, submitted, dead), 1):
        assert adopted(queues, claim.id, step, list(claim.samples), [0.0]) == 1
    counts = queues.counts("a")
    assert (counts.applied, counts.conserved, queues.dead("a"), queues.out()) == (3, True, (), ())
    assert queues.commit(leased, 1) is Outcome.DUPLICATE
    assert queues.release(3) == 3
    with pytest.raises(NotFound, match="should have a queue"):
        queues.adopt(Claim("x", 1, "nobody", ()), 9, b"")
