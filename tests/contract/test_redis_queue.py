"""What only queues on a server have: producers that send again, limits, turns, what was put aside, epochs, and a full memory."""

import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from queues.embedded import EmbeddedServer
from queues.queue import Claim, Outcome
from queues.redis import SAMPLE_LIMIT, RedisQueues, connect
from queues.settings import QueueSettings, StreamSettings
from queues.writer import QueueWriter
from tests.support.streams import KINDS, raw, stream
from tests.support.streams import server as running
from trunkline.clock import ManualClock
from trunkline.errors import Conflict, Fenced, NotFound, QueueFull, QueuePaused, SampleError, SettingsError, Unreachable

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
    """One whose settings a test may change."""
    with running(request.param, tmp_path / "server") as made:
        yield made


Make = Callable[..., QueueWriter]


@pytest.fixture
def make(server: EmbeddedServer, clock: ManualClock) -> Make:
    """The queues of a new stream; of the settings `lease_seconds` and so on."""
    return lambda **settings: stream(server, clock=clock, **settings)


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def taken(queues: RedisQueues) -> Claim[bytes]:
    claim = queues.claim()
    assert claim is not None
    return claim


def all_taken(queues: RedisQueues) -> list[Claim[bytes]]:
    found = []
    while (claim := queues.claim()) is not None:
        assert queues.commit(claim) is Outcome.OK
        found.append(claim)
    return found


def recount(queues: RedisQueues) -> int:
    """Bytes of all samples that the server keeps, key by key."""
    client = raw(queues)
    keys = [key for kind in ("q", "s") for key in client.scan_iter(match=queues._key(kind, "*"), count=1000)]
    return sum(len(sample) for key in set(keys) for sample in client.lrange(key, 0, -1))


def bytes_told(queues: RedisQueues) -> int:
    return int(raw(queues).hget(queues._key("meta"), "bytes"))


# -- a producer that sends again -----------------------------------------------------------------------------------------


def test_what_a_producer_sends_again_is_not_pushed_again(make: Make) -> None:
    queues = make()
    queues.open("a", 2)
    assert queues.push("a", numbered(1, 5), producer="p", first=1) == 5
    assert queues.push("a", numbered(1, 5), producer="p", first=1) == 5
    assert queues.push("a", numbered(4, 8), producer="p", first=4) == 8
    assert queues.push("a", numbered(2, 3), producer="p", first=2) == 8
    assert queues.waiting("a") == tuple(numbered(1, 8))
    assert queues.push("a", numbered(1, 2), producer="q", first=1) == 10, "numbers are a producer's own"
    queues.open("b", 2)
    assert queues.push("b", numbered(1, 2), producer="p", first=1) == 2, "and a queue's"


def test_numbers_of_a_producer_leave_none_out(make: Make) -> None:
    queues = make()
    queues.open("a", 2)
    queues.push("a", numbered(1, 3), producer="p", first=1)
    with pytest.raises(Conflict, match="go on with sample 4, found 6"):
        queues.push("a", numbered(6, 7), producer="p", first=6)
    with pytest.raises(Conflict, match="go on with sample 1, found 2"):
        queues.push("a", numbered(2, 3), producer="new", first=2)
    for first in (0, -1):
        with pytest.raises(SettingsError, match="counted from 1"):
            queues.push("a", [b"x"], producer="p", first=first)
    assert queues.counts("a").pushed == 3


def test_a_producer_that_was_refused_sends_the_same_again_later(make: Make) -> None:
    queues = make()
    queues.configure("a", QueueSettings(batch_size=2, most=4))
    queues.push("a", numbered(1, 3), producer="p", first=1)
    with pytest.raises(QueueFull, match="found 3"):
        queues.push("a", numbered(4, 5), producer="p", first=4)
    assert queues.push("a", numbered(3, 4), producer="p", first=3) == 4, "what was here before takes no room"
    all_taken(queues)
    assert queues.push("a", numbered(4, 5), producer="p", first=4) == 1
    queues.set_state("a", "paused")
    assert queues.push("a", numbered(4, 5), producer="p", first=4) == 1, "a repeated push is answered as the lost one was"
    with pytest.raises(QueuePaused):
        queues.push("a", numbered(5, 6), producer="p", first=5)


class Deaf:
    """A proxy of a unix socket that, when told, carries a command to the server and loses the answer."""

    def __init__(self, server: EmbeddedServer, listener: socket.socket) -> None:
        self.server, self.listener, self.lose = server, listener, threading.Event()

    def serve(self) -> None:
        while True:
            try:
                caller, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._run, args=(caller,), daemon=True).start()

    def _run(self, caller: socket.socket) -> None:
        with caller, socket.socket(socket.AF_UNIX) as far, suppress(OSError):
            far.connect(str(self.server.socket))
            while True:
                for end in select.select([caller, far], [], [])[0]:
                    if not (data := end.recv(65_536)):
                        return
                    if end is far and self.lose.is_set():
                        self.lose.clear()
                        return
                    (far if end is caller else caller).sendall(data)


@contextmanager
def deaf(server: EmbeddedServer, folder: Path) -> Iterator[tuple[Deaf, str]]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "deaf.sock"))
        listener.listen()
        made = Deaf(server, listener)
        threading.Thread(target=made.serve, daemon=True).start()
        yield made, f"unix://{folder}/deaf.sock"
        listener.shutdown(socket.SHUT_RDWR)


def test_answers_that_are_lost_double_nothing(server: EmbeddedServer, clock: ManualClock, tmp_path: Path) -> None:
    told = stream(server, clock=clock, lease_seconds=10.0)
    told.open("a", 3)
    assert told.claim() is None  # from here on the server knows the scripts, so that it is their answer that is lost
    assert told.commit(Claim("ghost", 1, "a", ())) is Outcome.GONE
    with deaf(server, tmp_path) as (proxy, url):
        queues = RedisQueues(connect(url), told.name, clock=clock)
        for first in (1, 4):
            queues.push("a", numbered(first, first + 2), producer="p", first=first)
            proxy.lose.set()
            with pytest.raises(Unreachable):
                queues.push("a", numbered(first, first + 2), producer="p", first=first)
        queues.counts("a")  # over a new connection
        proxy.lose.set()
        with pytest.raises(Unreachable):
            queues.push("a", numbered(7, 9), producer="p", first=7)
        assert told.counts("a").pushed == 9, "it had arrived"
        assert queues.push("a", numbered(7, 9), producer="p", first=7) == 9
        proxy.lose.set()
        with pytest.raises(Unreachable):
            queues.claim()
        assert told.counts("a").leased == 3
        clock.sleep(11)
        claim = taken(queues)
        assert (claim.attempt, claim.samples) == (2, tuple(numbered(1, 3)))
        proxy.lose.set()
        with pytest.raises(Unreachable):
            queues.commit(claim, 1)
        assert queues.commit(claim, 1) is Outcome.DUPLICATE
        raw(queues).close()
    assert told.waiting("a") == tuple(numbered(4, 9))
    assert told.counts("a").applied == 3


# -- limits --------------------------------------------------------------------------------------------------------------


def test_bytes_are_counted_exactly_and_bound(make: Make) -> None:
    queues = make(budget=4000, attempts=1)
    queues.open("a", 2)
    queues.open("b", 2)
    pushed = 0
    with pytest.raises(QueueFull):
        while True:
            queues.push("ab"[pushed % 2], [b"x" * 92])
            pushed += 1
    assert pushed == 40
    assert bytes_told(queues) == recount(queues) == 4000
    first = taken(queues)
    queues.commit(first, 5)
    queues.nack(taken(queues), "poison")
    assert bytes_told(queues) == recount(queues) == 4000, "samples are kept until a checkpoint, and dead ones until they are purged"
    with pytest.raises(QueueFull):
        queues.push("a", [b""])
    assert queues.release(4) == 0
    assert queues.release(5) == 1
    assert bytes_told(queues) == recount(queues) == 3800
    assert queues.purge_dead("a") + queues.purge_dead("b") == 2
    assert bytes_told(queues) == recount(queues) == 3600
    assert queues.purge_waiting("a") + queues.purge_waiting("b") == 36
    assert queues.purge_waiting("a") == 0
    assert bytes_told(queues) == recount(queues) == 0
    assert queues.push("a", [b"x" * 3992]) == 1
    with pytest.raises(QueueFull):
        queues.push("a", [b""])


def test_a_push_that_ends_in_the_middle_says_how_many_were_taken(make: Make) -> None:
    queues = make()
    queues.configure("a", QueueSettings(batch_size=10, most=2500))
    with pytest.raises(QueueFull, match="2000 of these 9000 samples were taken before"):
        queues.push("a", numbered(1, 9000))
    assert queues.counts("a").queued == 2000


def test_a_paused_queue_takes_and_gives_nothing_and_keeps_what_is_out(make: Make, clock: ManualClock) -> None:
    queues = make(lease_seconds=10.0)
    queues.open("a", 2)
    queues.push("a", numbered(1, 6))
    out, lost = taken(queues), taken(queues)
    queues.set_state("a", "paused")
    with pytest.raises(QueuePaused, match="2 wait"):
        queues.push("a", [b"7"])
    assert queues.claim() is None
    assert queues.commit(out) is Outcome.OK
    clock.sleep(11)
    assert queues.claim() is None, "nor what a worker lost"
    assert queues.commit(lost) is Outcome.FENCED
    queues.set_state("a", "open")
    again = taken(queues)
    assert (again.id, again.attempt, again.samples) == (lost.id, 2, lost.samples)
    assert taken(queues).samples == tuple(numbered(5, 6))


def test_a_stopped_queue_gives_nothing_more_so_that_its_head_stays_as_it_is(make: Make) -> None:
    queues = make(attempts=2)
    queues.open("a", 1)
    queues.open("b", 1)
    queues.push("a", numbered(1, 2))
    claim, dead = taken(queues), taken(queues)
    queues.nack(dead, "poison")
    queues.nack(taken(queues), "poison")
    queues.set_state("a", "stopped")
    queues.nack(claim, "stale", counts=False)
    assert queues.retry("a") == 1
    queues.push("b", [b"3"])
    assert [claim.task for claim in all_taken(queues)] == ["b"]
    assert queues.counts("a").leased == 2
    queues.set_state("a", "draining")
    assert sorted(claim.samples for claim in all_taken(queues)) == [(b"1",), (b"2",)]


def test_a_queue_that_only_fills_takes_samples_and_gives_none(make: Make) -> None:
    queues = make()
    queues.open("a", 2)
    queues.push("a", numbered(1, 2))
    out = taken(queues)
    queues.set_state("a", "filling")
    assert queues.push("a", numbered(3, 4)) == 2
    assert queues.nack(out, "why") is Outcome.OK
    assert queues.claim() is None
    queues.set_state("a", "open")
    assert [claim.samples for claim in all_taken(queues)] == [(b"1", b"2"), (b"3", b"4")]


def test_a_queue_drains_to_its_last_short_batch(make: Make) -> None:
    queues = make()
    queues.open("a", 4)
    queues.push("a", numbered(1, 10))
    queues.set_state("a", "draining")
    with pytest.raises(QueuePaused):
        queues.push("a", [b"11"])
    assert [len(claim.samples) for claim in all_taken(queues)] == [4, 4, 2]
    assert queues.stats("a").state == "draining"
    with pytest.raises(SettingsError, match="open, paused, draining, stopped, filling, found 'asleep'"):
        queues.set_state("a", "asleep")  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="'ghost'"):
        queues.set_state("ghost", "open")


def test_samples_that_waited_long_enough_make_a_short_batch(make: Make, clock: ManualClock) -> None:
    queues = make()
    queues.configure("a", QueueSettings(batch_size=10, flush_seconds=30, flush_least=3))
    queues.push("a", numbered(1, 2))
    clock.sleep(31)
    assert queues.claim() is None, "too few"
    queues.push("a", numbered(3, 3))
    assert taken(queues).samples == tuple(numbered(1, 3))
    queues.push("a", numbered(4, 8))
    clock.sleep(29)
    assert queues.claim() is None, "too early"
    clock.sleep(1)
    assert len(taken(queues).samples) == 5
    queues.configure("a", QueueSettings(batch_size=10, flush_seconds=0.0001))
    queues.push("a", [b"9"])
    clock.sleep(1)
    assert taken(queues).samples == (b"9",), "a part of a millisecond is not never"


# -- turns ---------------------------------------------------------------------------------------------------------------


def test_a_queue_that_is_flushed_all_the_time_does_not_take_every_turn(make: Make, clock: ManualClock) -> None:
    queues = make(policy="equal")
    queues.configure("trickle", QueueSettings(batch_size=8, flush_seconds=0.01))
    queues.open("full", 8)
    queues.push("full", numbered(1, 800))
    found: Counter[str] = Counter()
    for number in range(50):
        queues.push("trickle", [b"%d" % number] * 2)
        clock.sleep(1)
        claim = taken(queues)
        found[claim.task] += len(claim.samples)
    assert found["full"] >= 96, found


SHARES = {
    "equal": {"a": 1, "b": 1, "c": 2},  # by weight
    "proportional": {"a": 900, "b": 300, "c": 2 * 100},
    "temperature": {"a": 30, "b": 300**0.5, "c": 2 * 10},
}


@pytest.mark.parametrize("policy", SHARES)
def test_shares_of_the_turns(policy: str, make: Make) -> None:
    queues = make(policy=policy, temperature=2.0)
    sizes = {"a": 8, "b": 4, "c": 1}
    for queue, size in sizes.items():
        queues.configure(queue, QueueSettings(batch_size=size, weight=2.0 if queue == "c" else 1.0))
        queues.push(queue, [b"x"] * int({"a": 900, "b": 300, "c": 100}[queue]))
    found: Counter[str] = Counter()
    while all(queues.counts(queue).queued >= size for queue, size in sizes.items()) and found.total() < 150:
        claim = taken(queues)
        found[claim.task] += len(claim.samples)
    want = SHARES[policy]
    for queue, size in sizes.items():
        assert abs(found[queue] - found.total() * want[queue] / sum(want.values())) <= 2 * max(sizes.values()), (queue, size, found)


def test_a_large_queue_advances_by_however_small_a_step(make: Make) -> None:
    queues = make(policy="proportional")
    for queue in ("large", "small"):
        queues.configure(queue, QueueSettings(batch_size=1, most=10**6, weight=1000.0 if queue == "large" else 0.001))
        queues.push(queue, [b"x"] * 20)
    raw(queues).hset(queues._key("c", "large"), "pushed", 10**9)
    before = float(raw(queues).hget(queues._key("c", "large"), "time"))
    for _ in range(5):
        taken(queues)
    assert float(raw(queues).hget(queues._key("c", "large"), "time")) > before


def test_priority_comes_first_and_who_waited_long_enough_before_it(make: Make, clock: ManualClock) -> None:
    queues = make(policy="priority", aging_seconds=10.0)
    for queue, priority in (("low", -1), ("high", 2)):
        queues.configure(queue, QueueSettings(batch_size=1, priority=priority))
    queues.push("low", numbered(1, 2))
    clock.sleep(29)
    queues.push("high", numbered(1, 50))
    assert taken(queues).task == "high", "29 s of waiting are less than three steps of priority"
    clock.sleep(2)
    assert taken(queues).task == "high"
    assert taken(queues).task == "low"
    assert taken(queues).task == "high"
    queues.configure("low", QueueSettings(batch_size=1, priority=3))
    assert taken(queues).task == "low", "a queue that is raised while it waits comes first at once"


@pytest.mark.parametrize("policy", SHARES)
def test_who_slept_and_who_is_new_has_no_turns_in_store(policy: str, make: Make) -> None:
    queues = make(policy=policy)
    for queue in ("busy", "sleeper"):
        queues.open(queue, 1)
    queues.push("sleeper", [b"x"])
    queues.push("busy", [b"x"] * 400)
    for _ in range(200):
        taken(queues)
    queues.push("sleeper", [b"x"] * 199)
    queues.open("new", 1)
    queues.push("new", [b"x"] * 200)
    first = [taken(queues).task for _ in range(40)]
    longest = max(len(run) for queue in ("sleeper", "new") for run in "".join(" x"[task == queue] for task in first).split())
    assert longest <= 3, first
    assert "busy" in first[:5]


@pytest.mark.parametrize("before", ["arrival", "equal", "priority"])
@pytest.mark.parametrize("after", ["arrival", "equal", "priority"])
def test_another_policy_starves_nobody_who_stands_in_line(before: str, after: str, make: Make, clock: ManualClock) -> None:
    queues = make(policy=before)
    for queue in ("a", "b"):
        queues.open(queue, 1)
        queues.push(queue, [b"x"] * 300)

    def turn() -> str:
        clock.sleep(0.001)
        return taken(queues).task

    for _ in range(100):
        turn()
    queues.configure_stream(StreamSettings.model_validate({"policy": after}))
    queues.open("c", 1)
    queues.push("c", [b"x"] * 50)
    found = Counter(turn() for _ in range(30))
    assert min(found[queue] for queue in "abc") >= 8, found


def test_empty_queues_cost_a_claim_nothing(make: Make) -> None:
    def cost(queues: RedisQueues, claims: int = 20) -> int:
        client = raw(queues)
        client.config_resetstat()
        for _ in range(claims):
            taken(queues)
        return sum(
            found["calls"] for name, found in client.info("commandstats").items() if "config" not in name and "info" not in name
        )

    alone, crowd = make(), make()
    for number in range(200):
        crowd.configure(f"empty-{number}", QueueSettings(batch_size=4, flush_seconds=5, flush_least=2))
        crowd.push(f"empty-{number}", [b"x"])
    for queues in (alone, crowd):
        queues.open("full", 2)
        queues.push("full", numbered(1, 100))
        taken(queues)
    assert cost(crowd) == cost(alone)


# -- settings and names --------------------------------------------------------------------------------------------------


def test_to_open_a_queue_again_changes_its_batch_size_alone(make: Make) -> None:
    queues = make()
    settings = QueueSettings(batch_size=4, most=50, weight=2.5, priority=3, flush_seconds=1.5, flush_least=2)
    queues.configure("a", settings)
    queues.set_state("a", "paused")
    queues.open("a", 8)
    stats = queues.stats("a")
    assert stats.settings == settings.model_copy(update={"batch_size": 8})
    assert stats.state == "paused"
    with pytest.raises(SettingsError, match="most"):
        queues.open("a", 51)


@pytest.mark.parametrize("name", ["", "a b", "{a}", "a:b", "a*", "é", "a\n", "a/b", "-a", "x" * 65, "\ud800", "a\0"])
def test_a_name_that_is_no_part_of_a_key_is_refused(name: str, make: Make) -> None:
    queues = make()
    with pytest.raises(SettingsError, match="the name of a queue should be"):
        queues.open(name, 2)
    with pytest.raises(SettingsError, match="the name of a stream should be"):
        RedisQueues(raw(queues), name)
    for ask in (queues.stats, queues.waiting, queues.dead, queues.retry, queues.purge_dead, queues.purge_waiting):
        with pytest.raises(NotFound):
            ask(name)
    with pytest.raises(NotFound):
        queues.push(name, [b"x"])
    assert queues.queues() == []
    assert list(raw(queues).scan_iter(match=queues._key("*"))) == [queues._key("meta").encode()], "and nothing was left behind"


@pytest.mark.parametrize("producer", ["a b", "{a}:b:*", "é", "\ud800", "x" * 5000])
def test_a_producer_may_call_itself_as_it_likes(producer: str, make: Make) -> None:
    queues = make()
    for queue in ("a", "a-b"):
        queues.open(queue, 2)
        queues.push(queue, numbered(1, 2), producer=producer, first=1)
        assert queues.push(queue, numbered(1, 3), producer=producer, first=1) == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"lease_seconds": 0.0001},
        {"temperature": 0.5},
        {"budget": 0},
        {"budget": 10**400},
        {"attempts": 0},
        {"aging_seconds": float("nan")},
    ],
)
def test_settings_that_a_script_could_not_count_with_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        StreamSettings.model_validate(settings)


# -- samples and batches -------------------------------------------------------------------------------------------------


def test_samples_are_any_bytes(make: Make) -> None:
    queues = make()
    samples = [b"", b"\0", bytes(range(256)), "é".encode(), b"\r\n$-1\r\n", os.urandom(1000), b"x" * 10_000_000]
    queues.open("a", len(samples))
    queues.push("a", samples)
    assert taken(queues).samples == tuple(samples)


def test_a_push_is_cut_into_what_a_server_takes_at_once(make: Make) -> None:
    queues = make()
    queues.open("a", 40)
    samples = [bytes([number]) * 1_500_000 for number in range(40)]
    assert queues.push("a", samples, producer="p", first=1) == 40
    assert queues.push("a", samples, producer="p", first=1) == 40
    assert taken(queues).samples == tuple(samples)
    with pytest.raises(SampleError, match="at most 64 MiB"):
        queues.push("a", [b"x", bytes(SAMPLE_LIMIT + 1)])
    assert queues.counts("a").pushed == 40


def test_large_batches_and_large_pushes(make: Make) -> None:
    queues = make()
    queues.open("a", 4096)
    queues.push("a", numbered(1, 9000), producer="p", first=1)
    queues.push("a", numbered(1, 9000), producer="p", first=1)
    found = [claim.samples for claim in all_taken(queues)]
    assert found == [tuple(numbered(1, 4096)), tuple(numbered(4097, 8192))]
    assert queues.waiting("a") == tuple(numbered(8193, 9000))
    assert queues.peek("a", 2) == tuple(numbered(8193, 8194))
    assert queues.peek("a", 0) == ()
    assert queues.release(0) == 2
    assert bytes_told(queues) == recount(queues)


def test_many_batches_are_released_in_pieces(make: Make) -> None:
    queues = make()
    queues.open("a", 1)
    queues.push("a", numbered(1, 1201))
    while (claim := queues.claim()) is not None:
        queues.commit(claim, 1 if claim.samples[0] != b"7" else 2)
    assert queues.release(1) == 1200
    assert queues.release(1) == 0
    assert queues.release(2) == 1
    assert bytes_told(queues) == 0
    left = {key.decode().removeprefix(queues._key("")) for key in raw(queues).scan_iter(match=queues._key("*"), count=1000)}
    assert left == {"meta", "queues", "c:a", "bell", "workers"}, "nothing is left of what was trained"


def test_dead_batches_are_looked_at_retried_and_purged_in_part_and_whole(make: Make) -> None:
    queues = make(attempts=1)
    queues.open("a", 2)
    queues.push("a", numbered(1, 8))
    for number in range(4):
        queues.nack(taken(queues), "x" * 5000 if number else "é\ud800")
    dead = queues.dead("a")
    assert [claim.samples for claim, _ in dead] == [tuple(numbered(first, first + 1)) for first in (1, 3, 5, 7)]
    assert dead[0][1] == "é\\ud800"
    assert len(dead[1][1]) == 2000
    assert [claim.id for claim, _ in queues.dead("a", 2)] == [claim.id for claim, _ in dead[:2]]
    assert queues.dead("a", 0) == ()
    assert queues.retry("a", []) == queues.purge_dead("a", []) == 0, "none is not all"
    assert queues.retry("a", [dead[1][0].id, "ghost"]) == 1
    again = taken(queues)
    assert (again.samples, again.attempt) == (tuple(numbered(3, 4)), 2)
    assert queues.commit(dead[1][0]) is Outcome.FENCED
    assert queues.commit(again) is Outcome.OK
    assert queues.purge_dead("a", [dead[2][0].id]) == 2
    assert queues.commit(dead[2][0]) is Outcome.GONE
    assert queues.retry("a") == 2
    assert len(all_taken(queues)) == 2
    counts = queues.counts("a")
    assert (counts.applied, counts.purged, counts.dead) == (6, 2, 0)
    assert counts.conserved


def test_a_store_gives_back_what_it_had_and_nobody_else_speaks_for_it(make: Make) -> None:
    queues = make(attempts=2)
    queues.open("a", 1)
    queues.push("a", [b"x"])
    for attempt in range(1, 8):
        claim = taken(queues)
        assert claim.attempt == attempt
        assert queues.submit(claim) is queues.submit(claim) is Outcome.OK
        assert queues.counts("a").submitted == 1
        assert queues.claim() is None
        assert queues.nack(claim, "too old", counts=False) is Outcome.OK
        for word in (queues.renew, queues.submit, queues.commit):
            assert word(claim) is Outcome.FENCED
        assert queues.nack(claim, "again") is Outcome.FENCED
    last = taken(queues)
    assert queues.submit(last) is Outcome.OK
    assert queues.commit(last, 3) is Outcome.OK
    assert queues.release(3) == 1
    for word in (queues.renew, queues.submit, queues.commit):
        assert word(last) is Outcome.GONE


# -- whose stream it is --------------------------------------------------------------------------------------------------


def everything(queues: QueueWriter) -> Iterator[Callable[[], Any]]:
    claim = Claim("ghost", 1, "a", ())
    yield from (lambda: queues.open("a", 3), lambda: queues.set_state("a", "paused"), lambda: queues.push("a", [b"x"]))
    yield from (queues.claim, lambda: queues.renew(claim), lambda: queues.submit(claim), lambda: queues.commit(claim))
    yield from (lambda: queues.nack(claim, "x"), lambda: queues.release(1), lambda: queues.stats("a"), lambda: queues.dead("a"))
    yield from (lambda: queues.retry("a"), lambda: queues.purge_dead("a"), lambda: queues.purge_waiting("a"))
    yield from (queues.work, queues.out, lambda: queues.applied_after(0), lambda: queues.reopen(0))
    yield from (lambda: queues.adopt(claim, 1, b""), lambda: queues.hold(1, "me", 1.0))
    yield from (lambda: queues.waiting("a"), lambda: queues.peek("a"), lambda: queues.configure_stream(StreamSettings(attempts=9)))


def dump(queues: RedisQueues) -> dict[bytes, bytes]:
    client = raw(queues)
    return {key: client.dump(key) for key in client.scan_iter(match=queues._key("*"))}


def test_a_store_of_another_epoch_can_do_nothing(make: Make) -> None:
    queues = make()
    queues.open("a", 2)
    queues.push("a", numbered(1, 3))
    other = QueueWriter(raw(queues), queues.name, epoch="another")
    before = dump(queues)
    for act in everything(other):
        with pytest.raises(Fenced, match="epoch"):
            act()
    assert dump(queues) == before
    assert other.begin("another") == "epoch", "it learns whose it is"
    assert RedisQueues(raw(queues), queues.name, epoch="epoch").counts("a").queued == 3
    for epoch in ("", "*", "a@b"):
        with pytest.raises(SettingsError, match="epoch"):
            queues.begin(epoch)


def test_a_stream_that_was_not_begun_is_not_there(make: Make) -> None:
    queues = QueueWriter(raw(make()), "nobody")
    for act in everything(queues):
        with pytest.raises(NotFound, match="begun"):
            act()
    assert dump(queues) == {}


def test_keys_of_another_format_are_refused(make: Make) -> None:
    queues = make()
    raw(queues).hset(queues._key("meta"), "format", 2)
    with pytest.raises(Conflict, match="format 1, found 2"):
        queues.begin("epoch")
    raw(queues).hdel(queues._key("meta"), "format")
    with pytest.raises(Conflict, match="format 1, found none"):
        queues.begin("epoch")


def test_scripts_that_the_server_forgot_are_sent_again(make: Make) -> None:
    queues = make()
    queues.open("a", 1)
    queues.push("a", [b"1"])
    raw(queues).script_flush()
    claim = taken(queues)
    raw(queues).script_flush()
    assert queues.commit(claim) is Outcome.OK


def test_time_is_the_servers(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = stream(server, lease_seconds=60.0)
    queues.open("a", 1)
    queues.push("a", [b"x"])
    claim = taken(queues)
    now = time.time()
    for skew in (-1e6, 1e6):
        monkeypatch.setattr(time, "time", lambda skew=skew: now + skew)
        assert queues.claim() is None
        assert queues.renew(claim) is Outcome.OK
        queues.push("a", [b"y"])
        assert queues.stats("a").oldest < 60
        queues.purge_waiting("a")
    monkeypatch.undo()
    ends = raw(queues).zscore(queues._key("lease"), claim.id)
    assert abs(ends / 1000 - 60 - now) < 50


CONSUMER = """
import sys
from queues.redis import RedisQueues, connect
queues = RedisQueues(connect(sys.argv[1]), sys.argv[2])
taken = []
while sys.stdin.readable() and (len(taken) < 10_000):
    claim = queues.claim()
    if claim is None:
        counts = queues.counts("a")
        if counts.pushed == int(sys.argv[3]) and counts.queued + counts.leased == 0:
            break
        continue
    assert len(claim.samples) == 8
    assert queues.commit(claim) == "ok"
    taken += claim.samples
print(*(sample.decode() for sample in taken))
"""


def test_two_processes_share_a_queue_and_no_sample(server: EmbeddedServer) -> None:
    queues = stream(server)
    queues.open("a", 8)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", CONSUMER, server.url, queues.name, "1600"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for first in range(1, 1601, 5):
        queues.push("a", numbered(first, first + 4), producer="p", first=first)
    found = [process.communicate(timeout=60)[0].split() for process in running]
    assert sorted(map(int, found[0] + found[1])) == list(range(1, 1601))
    assert [process.returncode for process in running] == [0, 0]


# -- a server whose memory is full ---------------------------------------------------------------------------------------


def test_a_full_memory_refuses_pushes_whole_and_lets_all_else_go_on(own_server: EmbeddedServer, clock: ManualClock) -> None:
    queues = stream(own_server, clock=clock, attempts=2, lease_seconds=10.0)
    for queue in ("a", "b"):
        queues.open(queue, 10)
    client = raw(queues)
    queues.push("a", [b"x" * 1000] * 60)
    out = [taken(queues) for _ in range(5)]
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 2_000_000)
    number = 0
    with pytest.raises(QueueFull, match="memory"):
        while True:
            queues.push("b", [b"x" * 10_000] * 50, producer="p", first=1 + 50 * number)
            number += 1
    counts = queues.counts("b")
    assert (counts.pushed, counts.queued) == (50 * number, 50 * number), "no push was done by half"
    assert bytes_told(queues) == recount(queues)

    client.config_set("maxmemory", 1)  # nothing whatever that needs memory
    with pytest.raises(QueueFull):
        queues.push("b", [b"x"], producer="p", first=1 + 50 * number)
    assert queues.renew(out[0]) is Outcome.OK
    assert queues.submit(out[0]) is Outcome.OK
    assert queues.commit(out[0], 1) is Outcome.OK
    assert queues.nack(out[1], "stale", counts=False) is Outcome.OK
    assert taken(queues).id == out[1].id
    clock.sleep(11)
    assert taken(queues).attempt in (2, 3), "a lost batch is handed out"
    queues.set_state("b", "paused")
    assert {claim.task for claim in all_taken(queues)} == {"a"}
    queues.configure_stream(StreamSettings(attempts=2, lease_seconds=10.0, policy="equal"))
    queues.set_state("b", "open")
    assert taken(queues).task == "b"
    assert queues.hold(1, "one", 10.0).step == 1
    assert len(queues.work().submitted) == 0
    assert queues.release(10) > 0
    assert queues.purge_waiting("b") > 0
    assert bytes_told(queues) == recount(queues)
    client.config_set("maxmemory", 0)
    assert queues.push("b", [b"x"], producer="p", first=1 + 50 * number) == 1
    for queue in ("a", "b"):
        assert queues.counts(queue).conserved
