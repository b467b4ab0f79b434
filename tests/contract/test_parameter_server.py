"""The parameter server against real servers of queues: each batch is applied once, in order, whatever was killed or set back."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from queues.embedded import EmbeddedServer
from queues.queue import Claim, Counts, Outcome
from queues.store.memory import MemoryStore
from queues.store.store import Sent, Verdict
from queues.stream.server import HOLD, ParameterServer
from queues.stream.spec import StreamSpec
from queues.writer import QueueWriter
from tests.support import few_numbers
from tests.support.disk import disk
from tests.support.few_numbers import computed, loop, numbered, same, values
from tests.support.streams import KINDS, client
from tests.support.streams import server as running
from trunkline.clock import ManualClock
from trunkline.errors import AlreadyRunning, Conflict, Fenced, StorageFailed, Unreachable

pytestmark = pytest.mark.contract


@pytest.fixture(params=KINDS)
def redis(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedServer]:
    with running(request.param, tmp_path / "redis") as made:
        yield made


class Rig:
    """One stream: its queues, its store, its server, and a worker, all in this process."""

    def __init__(self, redis: EmbeddedServer, folder: Path, spec: StreamSpec) -> None:
        self.redis, self.spec, self.clock = redis, spec, ManualClock()
        self.home = few_numbers.home(folder, spec)
        self.store = MemoryStore(spec, few_numbers.parameters(spec))
        self.rung: list[int] = []
        self.queues = self.writer("tester")
        self.queues.begin(self.home.epoch, spec.queues)
        for task in spec.tasks:
            self.queues.configure(task.name, task.settings)
        self.server = self.started()

    def writer(self, worker: str = "") -> QueueWriter:
        return QueueWriter(client(self.redis), self.spec.name, epoch=self.home.epoch, worker=worker, clock=self.clock)

    def made(self, incarnation: int = 1, *, accept: bool = False) -> ParameterServer:
        queues, ring = self.writer(), self.rung.append
        return ParameterServer(
            self.home, self.spec, queues, self.store, self.clock, incarnation=incarnation, ring=ring, accept=accept
        )

    def started(self, incarnation: int = 1, *, accept: bool = False) -> ParameterServer:
        made = self.made(incarnation, accept=accept)
        made.start()
        return made

    def push(self, task: str, first: int, last: int) -> None:
        self.queues.push(task, numbered(first, last), producer="p", first=first)

    def claim(self) -> Claim[bytes]:
        claim = self.queues.claim()
        assert claim is not None
        return claim

    def hand_in(self, claim: Claim[bytes], **change: Any) -> Claim[bytes]:
        sent = computed(claim, self.store.reader())
        about = {name: change.get(name, getattr(sent, name)) for name in Sent.__slots__}
        self.store.reader().send(Sent(**about))
        assert self.queues.submit(claim) is Outcome.OK
        return claim

    def work(self, most: int = 10**6) -> list[Claim[bytes]]:
        """One worker, which waits for each verdict."""
        done: list[Claim[bytes]] = []
        while len(done) < most and (claim := self.queues.claim()) is not None:
            self.hand_in(claim)
            self.server.turn()
            assert self.verdict(claim) is Verdict.APPLIED
            done.append(claim)
        return done

    def verdict(self, claim: Claim[bytes]) -> Verdict | None:
        return self.store.reader().verdict(claim.id, claim.attempt, 0.0)

    def values(self) -> dict[str, torch.Tensor]:
        return values(self.spec, self.store.reader())

    def check(self) -> None:
        for task in self.spec.tasks:
            assert self.queues.counts(task.name).conserved


Make = Callable[..., Rig]


@pytest.fixture
def make(redis: EmbeddedServer, tmp_path: Path) -> Make:
    def rig(tasks: dict[str, int], **change: Any) -> Rig:
        return Rig(redis, tmp_path / "stream", few_numbers.spec(tasks, **change))

    return rig


# -- what is applied -----------------------------------------------------------------------------------------------------


def test_batches_are_applied_in_order_and_as_often_as_there_are_whole_ones(make: Make) -> None:
    rig = make({"a": 3, "b": 5})
    rig.push("a", 1, 31)
    rig.push("b", 1, 17)
    done = rig.work()
    for task, size, count in (("a", 3, 10), ("b", 5, 3)):
        own = [claim for claim in done if claim.task == task]
        assert [len(claim.samples) for claim in own] == [size] * count
        assert [sample for claim in own for sample in claim.samples] == numbered(1, size * count)
        counts = rig.queues.counts(task)
        assert (counts.applied, counts.queued, counts.conserved) == (size * count, {"a": 1, "b": 2}[task], True)
    assert rig.server.status()["step"] == 13
    assert same(rig.values(), loop(rig.spec, [(claim.task, claim.samples) for claim in done]))
    recorded = list(rig.server.record.since(0))
    assert [(entry.batch, entry.task, entry.samples, entry.step) for entry in recorded] == [
        (claim.id, claim.task, claim.samples, step) for step, claim in enumerate(done, 1)
    ]


def test_gradients_are_applied_in_the_order_of_submission_and_staleness_is_bound(make: Make) -> None:
    rig = make({"a": 2}, store={"staleness": 1})
    rig.push("a", 1, 8)
    claims = [rig.claim() for _ in range(4)]
    sent = [computed(claim, rig.store.reader()) for claim in claims]  # all on step 0
    for place in (2, 0, 3, 1):
        rig.store.reader().send(sent[place])
        rig.queues.submit(claims[place])
    rig.server.turn()
    assert [entry.batch for entry in rig.server.record.since(0)] == [claims[2].id, claims[0].id]
    assert [rig.verdict(claims[place]) for place in (2, 0, 3, 1)] == [Verdict.APPLIED] * 2 + [Verdict.STALE] * 2
    assert [entry.staleness for entry in rig.server.record.since(0)] == [0, 1]
    again = [rig.claim(), rig.claim()]
    assert sorted(claim.samples for claim in again) == [claims[1].samples, claims[3].samples]
    assert {claim.attempt for claim in again} == {2}
    for claim in again:
        rig.hand_in(claim)
        rig.server.turn()
    assert rig.queues.counts("a").applied == 8
    status = rig.server.status()
    assert (status["staleness"], status["came_back"]) == ({"0": 3, "1": 1}, {"stale": 2})


@pytest.mark.parametrize("workers", [1, 4])
def test_without_staleness_many_workers_end_where_one_does(make: Make, workers: int) -> None:
    rig = make({"a": 2, "b": 3}, store={"staleness": 0})
    rig.push("a", 1, 20)
    rig.push("b", 1, 21)
    while claims := [claim for claim in (rig.queues.claim() for _ in range(workers)) if claim is not None]:
        for claim in claims:
            rig.hand_in(claim)
        rig.server.turn()
    entries = list(rig.server.record.since(0))
    assert {entry.staleness for entry in entries} == {0}
    assert [rig.queues.counts(task).applied for task in ("a", "b")] == [20, 21]
    assert same(rig.values(), loop(rig.spec, [(entry.task, entry.samples) for entry in entries]))


def test_what_is_no_gradient_of_the_batch_is_refused_and_is_dead_after_its_attempts(make: Make) -> None:
    rig = make({"a": 2, "b": 2}, queues={"attempts": 3})
    rig.push("a", 1, 2)
    wrong: list[dict[str, Any]] = [
        {"loss": float("nan")},
        {"tensors": {"shared/w": torch.full((1, few_numbers.WIDTH), float("inf"))}},
        {"tensors": {"head/b/w": torch.zeros(1, few_numbers.WIDTH)}},
    ]
    for number, change in enumerate(wrong, 1):
        claim = rig.claim()
        assert claim.attempt == number
        rig.hand_in(claim, **change)
        rig.server.turn()
        assert rig.verdict(claim) is Verdict.REFUSED
    ((dead, reason),) = rig.queues.dead("a")
    assert dead.samples == tuple(numbered(1, 2))
    assert "head/a/" in reason
    assert rig.store.step == 0
    assert list(rig.server.record.since(-1)) == []
    assert rig.server.status()["refused"][0]["reason"].startswith("the loss should be finite")
    rig.push("b", 1, 2)
    assert len(rig.work()) == 1, "the stream of the other task goes on"
    assert rig.queues.retry("a") == 1
    assert len(rig.work()) == 1
    rig.check()


@pytest.mark.parametrize("change", [{"task": "b"}, {"samples": 3}])
def test_a_gradient_that_tells_of_another_batch_is_refused(make: Make, change: dict[str, Any]) -> None:
    rig = make({"a": 2, "b": 2})
    rig.push("a", 1, 2)
    rig.hand_in(rig.claim(), **change)
    rig.server.turn()
    assert rig.store.step == 0
    assert rig.server.status()["came_back"] == {"refused": 1}


def test_a_gradient_that_is_gone_or_of_another_time_is_computed_again_and_it_is_nobodys_fault(make: Make) -> None:
    rig = make({"a": 2}, queues={"attempts": 1})
    rig.push("a", 1, 4)
    first, second = rig.claim(), rig.claim()
    assert rig.queues.submit(first) is Outcome.OK, "and it laid down nothing"
    rig.hand_in(second, base=7)
    rig.server.turn()
    assert rig.server.status()["came_back"] == {"lost": 1, "stale": 1}
    assert len(rig.work()) == 2
    assert rig.queues.counts("a").dead == 0


def test_a_batch_of_a_worker_that_died_is_applied_once_and_what_the_dead_says_is_not_heard(make: Make) -> None:
    rig = make({"a": 2}, queues={"lease_seconds": 5.0})
    rig.push("a", 1, 2)
    dead = rig.claim()
    late = computed(dead, rig.store.reader())
    rig.clock.sleep(6.0)
    (again,) = rig.work()
    assert (again.id, again.samples, again.attempt) == (dead.id, dead.samples, 2)
    rig.store.reader().send(late)
    assert rig.queues.submit(dead) is Outcome.DUPLICATE
    rig.server.turn()
    assert (rig.store.step, rig.queues.counts("a").applied) == (1, 2)


@pytest.mark.parametrize("again", [False, True], ids=["given back", "and claimed again"])
@pytest.mark.parametrize("record_bytes", [0, 1 << 20])
def test_a_worker_that_takes_back_what_is_being_applied_does_no_harm(make: Make, again: bool, record_bytes: int) -> None:
    """It submitted, and did not hear the answer."""
    rig = make({"a": 2}, store={"record_bytes": record_bytes})
    rig.push("a", 1, 4)
    claim = rig.hand_in(rig.claim())
    apply, other = rig.store.apply, None

    def slowly(gradients: tuple[Sent, ...], combined: Any = None) -> int:
        nonlocal other
        rig.queues.nack(claim, "its worker let go of it", counts=False)
        other = rig.claim() if again else None
        return apply(gradients, combined)

    rig.store.apply = slowly  # type: ignore[method-assign]
    rig.server.turn()
    rig.store.apply = apply  # type: ignore[method-assign]
    if other is not None:
        assert (other.id, other.attempt) == (claim.id, 2)
        rig.store.reader().send(computed(other, rig.store.reader()))
        assert rig.queues.submit(other) is Outcome.DUPLICATE
    rig.work()
    assert (rig.store.step, rig.queues.counts("a").applied) == (2, 4)
    rig.check()


# -- what lasts ----------------------------------------------------------------------------------------------------------


def test_samples_are_let_go_when_a_checkpoint_covers_them(make: Make) -> None:
    rig = make({"a": 2}, store={"checkpoint_steps": 3, "checkpoint_seconds": 100.0})
    rig.push("a", 1, 10)
    rig.work(2)
    assert (rig.store.checkpointed(), len(rig.queues.applied_after(0))) == (0, 2)
    rig.work(1)
    assert (rig.store.checkpointed(), rig.queues.applied_after(0)) == (3, ())
    rig.work(1)
    assert rig.store.checkpointed() == 3
    rig.clock.sleep(101.0)
    rig.server.turn()
    assert rig.store.checkpointed() == 4
    rig.work(1)
    rig.server.stop()
    assert rig.store.checkpointed() == 5
    assert rig.queues.applied_after(0) == ()


def test_workers_are_rung_for_when_there_is_more_to_do(make: Make) -> None:
    rig = make({"a": 2})
    rig.server.turn()
    assert rig.rung == []
    rig.push("a", 1, 6)
    rig.server.turn()
    assert rig.rung == [1], "one queue holds batches"
    rig.server.turn()
    assert rig.rung == [1]
    rig.clock.sleep(2.0)
    rig.server.turn()
    assert rig.rung == [1, 1], "a doorbell may have been lost"
    assert rig.queues.wait(0.0) is True
    assert rig.queues.wait(0.0) is False
    rig.hand_in(rig.claim())
    assert rig.queues.wait(0.0) is True


def test_a_disk_without_room_loses_nothing(make: Make, tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "1m") as small:
        if small is None:
            pytest.skip("this user may not mount a disk")
        rig = make({"a": 2})
        rig.server.record.close()
        rig.server.record.folder = small.folder
        rig.push("a", 1, 4)
        claim = rig.hand_in(rig.claim())
        small.fill()
        for _ in range(2):
            with pytest.raises(StorageFailed):
                rig.server.turn()
            assert (rig.store.step, rig.queues.counts("a").submitted) == (0, 2)
        small.empty()
        rig.server.turn()
        assert rig.verdict(claim) is Verdict.APPLIED
        rig.work()
        assert [entry.step for entry in rig.server.record.since(0)] == [1, 2]
        rig.server.record.close()


def test_what_it_tells_of_itself(make: Make) -> None:
    rig = make({"a": 2, "b": 2})
    rig.push("a", 1, 8)
    for _ in range(4):
        rig.clock.sleep(2.0)
        rig.work(1)
    rig.clock.sleep(2.0)
    status = rig.server.status()
    assert json.loads(json.dumps(status)) == status
    assert (status["step"], status["checkpoint"], status["applied"]) == (4, {"step": 0, "steps_since": 4}, 4)
    told = status["tasks"]["a"]
    assert (told["batches"], told["samples"], told["samples_a_second"]) == (4, 8, 0.8)
    assert told["loss"] == list(rig.server.record.since(0))[-1].loss
    assert "b" not in status["tasks"]
    assert (status["mode"], status["trouble"], status["refused"]) == ("each", None, [])


# -- one server ----------------------------------------------------------------------------------------------------------


def test_a_second_server_is_refused_while_the_first_is_alive_also_of_the_same_epoch(make: Make, tmp_path: Path) -> None:
    rig = make({"a": 2})
    rig.push("a", 1, 6)
    rig.work(1)
    copied = few_numbers.home(tmp_path / "copy", rig.spec)
    shutil.copy(rig.home.folder / "epoch", copied.folder / "epoch")
    other = Rig.made(rig, incarnation=2)
    other.home = copied
    with pytest.raises(AlreadyRunning, match="another"):
        other._hold()
    rig.server.turn()
    rig.clock.sleep(HOLD + 1)
    other._hold()
    with pytest.raises(AlreadyRunning):
        rig.server.turn()
    with pytest.raises(Fenced):
        rig.server.queues.release(1)
    rig.clock.sleep(HOLD + 1)
    with pytest.raises(Fenced, match="later one"):
        rig.server._hold()


def test_a_server_that_follows_one_that_was_killed_need_not_wait_and_one_that_stopped_lets_go(make: Make, tmp_path: Path) -> None:
    rig = make({"a": 2})
    rig.started(incarnation=2)
    other = rig.made(incarnation=3)
    other.home = few_numbers.home(tmp_path / "copy", rig.spec)
    shutil.copy(rig.home.folder / "epoch", other.home.folder / "epoch")
    with pytest.raises(AlreadyRunning):
        other._hold()
    rig.started(incarnation=2).stop()
    other._hold()


# -- what was set back ---------------------------------------------------------------------------------------------------


def test_a_store_that_went_back_gets_the_batches_again_in_their_order(make: Make) -> None:
    rig = make({"a": 2, "b": 3}, store={"checkpoint_steps": 100})
    rig.push("a", 1, 20)
    rig.push("b", 1, 30)
    before = rig.work(8)
    rig.server.checkpoint()
    rig.work(4)
    later = [(entry.task, entry.samples) for entry in rig.server.record.since(8)]

    back = MemoryStore(rig.spec, few_numbers.parameters(rig.spec))  # as a checkpoint of step 8
    for claim in before:
        back.apply((computed(claim, back.reader()),))
    back.checkpoint()
    rig.store = back
    rig.server = rig.started(incarnation=2)
    assert rig.queues.counts("a").applied + rig.queues.counts("b").applied == sum(len(claim.samples) for claim in before)
    assert rig.server.record.last == 8
    done = rig.work()
    assert [(claim.task, claim.samples) for claim in done[:4]] == later, "those first, as they were"
    assert rig.queues.counts("a").applied == 20
    assert same(rig.values(), loop(rig.spec, [(claim.task, claim.samples) for claim in [*before, *done]]))
    rig.check()


def test_a_store_older_than_what_was_let_go_is_refused_unless_that_is_accepted(make: Make) -> None:
    rig = make({"a": 2})
    rig.push("a", 1, 8)
    rig.work()
    rig.server.checkpoint()
    rig.store = MemoryStore(rig.spec, few_numbers.parameters(rig.spec))
    with pytest.raises(Conflict, match="at least at step 4"):
        rig.started(incarnation=2)
    rig.started(incarnation=2, accept=True)


def set_back(rig: Rig, copy: Path) -> None:
    """The server of the queues comes up again with an older copy of its data."""
    rig.redis.stop()
    shutil.rmtree(rig.redis.folder / "appendonlydir", ignore_errors=True)
    (rig.redis.folder / "appendonly.aof").unlink(missing_ok=True)
    shutil.copytree(copy, rig.redis.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("redis.sock", "redis.pid"))
    rig.redis.start()


def copied(rig: Rig, to: Path) -> Path:
    shutil.copytree(rig.redis.folder, to, ignore=shutil.ignore_patterns("redis.sock"))
    return to


@pytest.mark.parametrize("alive", [True, False], ids=["the server lives on", "the server starts anew"])
def test_a_server_of_queues_that_was_set_back_loses_no_sample_and_none_is_applied_twice(
    make: Make, tmp_path: Path, alive: bool
) -> None:
    rig = make({"a": 2, "b": 3}, store={"checkpoint_steps": 100})
    rig.push("a", 1, 9)
    rig.push("b", 1, 9)
    rig.work(2)
    out = rig.claim()
    copy = copied(rig, tmp_path / "copy")
    rig.hand_in(out)
    rig.server.turn()
    rig.work()
    rig.push("a", 10, 16)  # after the copy: some of these are applied, and then nobody knows of them
    rig.work()
    assert [rig.queues.counts(task).applied for task in ("a", "b")] == [16, 9]
    before = rig.values()

    set_back(rig, copy)
    if not alive:
        rig.server = rig.made(incarnation=2)
        rig.server.start()
    rig.server.turn()
    assert [rig.queues.counts(task).applied for task in ("a", "b")] == [16, 9]
    rig.check()
    assert rig.queues.claim() is None, "nothing is left that was applied"
    with pytest.raises(Conflict, match="sample 10"):
        rig.push("a", 17, 20)  # the producer hears what is missing
    rig.push("a", 10, 20)
    assert rig.queues.counts("a").queued == 4, "and what was applied is not pushed again"
    assert same(rig.values(), before)
    done = rig.work()
    assert [sample for claim in done for sample in claim.samples] == numbered(17, 20)
    rig.check()


def push_on(rig: Rig, task: str, first: int, last: int) -> None:
    """A producer that goes back to wherever the server of the queues says."""
    try:
        rig.queues.push(task, numbered(first, last), producer="p", first=first)
    except Conflict as error:
        known = int(error.message.split("go on with sample ")[1].split(",")[0])
        rig.queues.push(task, numbered(known, last), producer="p", first=known)


@pytest.mark.parametrize("alive", [True, False], ids=["the server lives on", "the server starts anew"])
def test_who_is_quicker_than_the_server_after_queues_were_set_back_has_to_wait(make: Make, tmp_path: Path, alive: bool) -> None:
    """Given samples that the copy has, and samples that it has not, all applied, When a worker claims and a producer pushes them
    again before the server looks, Then they are not applied twice.
    """
    rig = make({"a": 2}, store={"checkpoint_steps": 100})
    rig.push("a", 1, 4)
    copy = copied(rig, tmp_path / "copy")
    rig.push("a", 5, 8)
    rig.work()
    set_back(rig, copy)
    assert rig.queues.claim() is None
    with pytest.raises(Unreachable, match="started again"):
        push_on(rig, "a", 9, 10)
    if not alive:
        rig.server = rig.started(incarnation=2)
    rig.server.turn()
    push_on(rig, "a", 9, 10)
    rig.work()
    entries = list(rig.server.record.since(0))
    assert [sample for entry in entries for sample in entry.samples] == numbered(1, 10), "each once"
    assert rig.queues.counts("a") == Counts(pushed=10, applied=10)


def test_after_a_restart_of_the_queues_who_waited_goes_on_at_the_next_turn(make: Make) -> None:
    """Also without the server having heard of it: nothing of it was asked meanwhile."""
    rig = make({"a": 2})
    rig.push("a", 1, 4)
    rig.work(1)
    rig.redis.stop()
    rig.redis.start()
    assert rig.queues.claim() is None
    rig.server.turn()
    rig.work()
    assert rig.queues.counts("a") == Counts(pushed=4, applied=4)


def test_a_stream_that_no_server_held_yet_has_nothing_to_wait_for(redis: EmbeddedServer) -> None:
    queues = QueueWriter(client(redis), "unheld", worker="tester")
    queues.begin("epoch")
    queues.open("a", 2)
    queues.push("a", numbered(1, 2), producer="p", first=1)
    redis.stop()
    redis.start()
    queues.push("a", numbered(3, 4), producer="p", first=3)
    assert queues.claim() is not None


def test_set_back_to_when_a_batch_was_out_that_was_applied_after_later_ones(make: Make, tmp_path: Path) -> None:
    """Given a batch that was claimed before the copy and applied last, Then those that were applied before it are adopted, too."""
    rig = make({"a": 2}, store={"checkpoint_steps": 100, "staleness": 5})
    rig.push("a", 1, 8)
    slow = rig.claim()
    copy = copied(rig, tmp_path / "copy")
    rig.work(2)
    rig.hand_in(slow)
    rig.server.turn()
    set_back(rig, copy)
    rig.server.turn()
    rig.work()
    entries = list(rig.server.record.since(0))
    assert sorted(int(sample) for entry in entries for sample in entry.samples) == list(range(1, 9)), "each once"
    assert rig.queues.counts("a") == Counts(pushed=8, applied=8)


def test_without_a_record_a_gap_below_a_batch_that_is_out_is_told(make: Make, tmp_path: Path) -> None:
    rig = make({"a": 2}, store={"record_bytes": 0, "checkpoint_steps": 100, "staleness": 5})
    rig.push("a", 1, 8)
    slow = rig.claim()
    copy = copied(rig, tmp_path / "copy")
    rig.work(2)
    rig.hand_in(slow)
    rig.server.turn()
    set_back(rig, copy)
    with pytest.raises(Conflict, match="step 1"):
        rig.server.turn()


def test_tasks_that_go_together_are_adopted_together(make: Make, tmp_path: Path) -> None:
    rig = make({"a": 2, "b": 2}, store={"checkpoint_steps": 100}, together={"mode": "together", "wait_seconds": 1000.0})
    for task in ("a", "b"):
        rig.push(task, 1, 4)
    copy = copied(rig, tmp_path / "copy")
    for _ in range(2):
        for claim in [rig.claim(), rig.claim()]:
            rig.hand_in(claim)
        rig.server.turn()
    assert rig.store.step == 2
    set_back(rig, copy)
    rig.server.turn()
    assert rig.queues.claim() is None
    for task in ("a", "b"):
        assert rig.queues.counts(task) == Counts(pushed=4, applied=4)


@pytest.mark.parametrize("out", ["waits", "leased", "submitted", "dead"])
def test_set_back_to_one_copy_and_then_to_a_later_one(make: Make, tmp_path: Path, out: str) -> None:
    """Given samples that lie in both copies' futures, but under other arrivals, Then those that were applied are taken out."""
    rig = make({"a": 2}, store={"checkpoint_steps": 100}, queues={"attempts": 1})
    rig.push("a", 1, 4)
    rig.work()
    early = copied(rig, tmp_path / "early")
    rig.push("a", 5, 9)
    if out != "waits":
        claim = rig.claim()
        if out == "submitted":
            rig.hand_in(claim)
        elif out == "dead":
            rig.queues.nack(claim, "for a test")
    late = copied(rig, tmp_path / "late")
    set_back(rig, early)
    rig.clock.sleep(1.0)
    rig.server.turn()
    push_on(rig, "a", 10, 10)
    rig.work(2)
    set_back(rig, late)
    rig.clock.sleep(1.0)
    rig.server.turn()
    rig.check()
    push_on(rig, "a", 11, 12)
    rig.work()
    entries = list(rig.server.record.since(0))
    assert [sample for entry in entries for sample in entry.samples] == numbered(1, 12), "each once"
    assert rig.queues.counts("a") == Counts(pushed=12, applied=12)


def test_set_back_to_a_copy_from_before_the_store_was_set_back(make: Make, tmp_path: Path) -> None:
    """Given a store that was set back, and made its steps of other batches, Then a copy's word for a step is not trusted."""
    rig = make({"a": 2}, store={"checkpoint_steps": 100, "staleness": 5})
    rig.push("a", 1, 4)
    rig.work()
    copy = copied(rig, tmp_path / "copy")
    rig.store = MemoryStore(rig.spec, few_numbers.parameters(rig.spec))
    rig.server = rig.started(incarnation=2)
    rig.push("a", 5, 6)
    for claim in reversed([rig.claim() for _ in range(3)]):
        rig.hand_in(claim)
    rig.server.turn()
    assert rig.store.step == 3
    set_back(rig, copy)
    rig.server.turn()
    rig.check()
    push_on(rig, "a", 7, 8)
    rig.work()
    entries = list(rig.server.record.since(0))
    assert sorted(int(sample) for entry in entries for sample in entry.samples) == list(range(1, 9)), "each once"
    assert rig.queues.counts("a") == Counts(pushed=8, applied=8)
    assert {one.batch: one.step for one in rig.queues.applied_after(0)} == {entry.batch: entry.step for entry in entries}


def test_set_back_to_a_copy_that_says_applied_of_what_the_store_has_still_to_do_again(make: Make, tmp_path: Path) -> None:
    rig = make({"a": 2}, store={"checkpoint_steps": 100, "staleness": 5})
    rig.push("a", 1, 4)
    rig.work()
    copy = copied(rig, tmp_path / "copy")
    rig.store = MemoryStore(rig.spec, few_numbers.parameters(rig.spec))
    rig.server = rig.started(incarnation=2)
    rig.claim()  # by a worker that takes long
    rig.push("a", 5, 10)
    rig.work()
    assert rig.store.step == 4
    set_back(rig, copy)
    rig.server.turn()
    rig.check()
    push_on(rig, "a", 11, 12)
    rig.work()
    entries = list(rig.server.record.since(0))
    assert sorted(int(sample) for entry in entries for sample in entry.samples) == list(range(1, 13)), "each once"
    assert rig.queues.counts("a") == Counts(pushed=12, applied=12)


def test_what_was_computed_before_the_store_was_set_back_is_computed_again(make: Make) -> None:
    """Given a gradient on parameters of a step, When the store comes to that step on another way, Then it is not taken for them."""
    rig = make({"a": 2, "b": 2}, store={"checkpoint_steps": 100, "staleness": 5})
    rig.push("a", 1, 2)
    rig.work()
    rig.push("b", 1, 2)
    slow = rig.claim()
    rig.store.reader().send(computed(slow, rig.store.reader()))
    rig.store = MemoryStore(rig.spec, few_numbers.parameters(rig.spec))
    rig.server = rig.started(incarnation=2)
    assert rig.queues.submit(slow) is Outcome.FENCED
    rig.work()
    assert rig.store.step == 2
    rig.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_set_back_again_and_again_at_random(make: Make, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rig = make({"a": 2, "b": 3}, store={"checkpoint_steps": 1000}, queues={"lease_seconds": 5.0})
    pushed = {"a": 0, "b": 0}
    copies: list[Path] = []
    for number in range(60):
        match rng.randrange(7):
            case 0 | 1:
                for task, count in pushed.items():
                    pushed[task] += rng.randrange(1, 8)
                    push_on(rig, task, count + 1, pushed[task])
            case 2 | 3:
                rig.work(rng.randrange(5))
            case 4:
                rig.queues.claim()  # by a worker that dies
            case 5:
                copies.append(copied(rig, tmp_path / f"copy-{number}"))
                if rng.random() < 0.3:
                    rig.server.checkpoint()
            case 6:
                if copies:
                    set_back(rig, rng.choice(copies))
                    if rng.random() < 0.5:
                        rig.server = rig.started(incarnation=number + 2)
                    rig.server.turn()
                    rig.clock.sleep(6.0)
        rig.check()
    for task, count in pushed.items():
        pushed[task] += 1
        push_on(rig, task, count + 1, count + 1)
    rig.clock.sleep(6.0)
    rig.work()
    entries = list(rig.server.record.since(0))
    for task in pushed:
        found = sorted(int(sample) for entry in entries if entry.task == task for sample in entry.samples)
        left = sorted(int(sample) for sample in rig.queues.waiting(task))
        assert sorted(found + left) == list(range(1, pushed[task] + 1)), "each once"
        assert rig.queues.counts(task).applied == len(found)
    assert len({entry.batch for entry in entries}) == len(entries)
    assert same(rig.values(), loop(rig.spec, [(entry.task, entry.samples) for entry in entries]))


def test_without_a_record_a_server_of_queues_that_was_set_back_is_refused(make: Make, tmp_path: Path) -> None:
    rig = make({"a": 2}, store={"record_bytes": 0, "checkpoint_steps": 100})
    rig.push("a", 1, 8)
    rig.work(1)
    copy = copied(rig, tmp_path / "copy")
    rig.work()
    set_back(rig, copy)
    with pytest.raises(Conflict, match="step 2"):
        rig.server.turn()
    rig.started(incarnation=2, accept=True)


def test_a_commit_that_was_not_made_is_made_at_the_start(make: Make) -> None:
    for record_bytes in (0, 1 << 20):
        rig = make({"a": 2}, name=f"n{record_bytes}", store={"record_bytes": record_bytes})
        rig.push("a", 1, 4)
        rig.work(1)
        claim = rig.hand_in(rig.claim())
        rig.server.queues.commit = rig.server.store.done = None  # type: ignore[assignment, method-assign]
        with pytest.raises(TypeError):
            rig.server.turn()
        del rig.server.store.done
        assert (rig.store.step, rig.queues.counts("a").submitted) == (2, 2)
        rig.server = rig.started(incarnation=2)
        assert (rig.store.step, rig.queues.counts("a").applied) == (2, 4)
        assert rig.verdict(claim) is Verdict.APPLIED


# -- tasks together ------------------------------------------------------------------------------------------------------


def test_tasks_together_make_a_step_of_one_batch_each(make: Make) -> None:
    rig = make({"a": 2, "b": 3, "idle": 4}, together={"mode": "together", "rule": "equal", "wait_seconds": 30})
    rig.push("a", 1, 6)
    rig.push("b", 1, 6)
    for step in (1, 2):
        claims = {claim.task: claim for claim in (rig.claim(), rig.claim())}
        assert claims.keys() == {"a", "b"}, "one of each, though `a` has more"
        assert rig.queues.claim() is None
        rig.hand_in(claims["a"])
        rig.server.turn()
        assert rig.store.step == step - 1, "it waits for the other, and not for the one that has nothing"
        assert rig.server.status()["together"]["waits_for"] == ["b"]
        rig.hand_in(claims["b"])
        rig.server.turn()
        assert rig.store.step == step
        assert {entry.task for entry in rig.server.record.of(step)} == {"a", "b"}
    rig.hand_in(rig.claim())
    rig.server.turn()
    assert rig.store.step == 3, "the one task that has work goes alone"
    rig.check()


def test_a_task_that_does_not_come_in_time_is_left_out_of_the_step(make: Make) -> None:
    rig = make({"a": 2, "b": 3}, together={"mode": "together", "wait_seconds": 30})
    rig.push("a", 1, 2)
    rig.push("b", 1, 3)
    rig.hand_in(next(claim for claim in (rig.claim(), rig.claim()) if claim.task == "a"))
    rig.server.turn()
    rig.clock.sleep(29)
    rig.server.turn()
    assert rig.store.step == 0
    rig.clock.sleep(2)
    rig.server.turn()
    assert rig.store.step == 1
    assert [entry.task for entry in rig.server.record.of(1)] == ["a"]


def test_what_a_rule_remembers_outlives_its_server(make: Make) -> None:
    rig = make({"a": 2, "b": 2}, together={"mode": "together", "rule": "dwa"})
    rig.push("a", 1, 20)
    rig.push("b", 1, 20)
    states = []
    for step in range(1, 5):
        for _ in range(2):
            rig.hand_in(rig.claim())
        rig.server.turn()
        assert rig.store.step == step
        states.append(dict(rig.server._joiner._state))  # type: ignore[union-attr]
        rig.server = rig.started(incarnation=step)
        assert rig.server._joiner._state == states[-1]  # type: ignore[union-attr]
    assert states[0] != states[-1]


def test_a_gradient_that_is_not_finite_stops_no_other_task(make: Make) -> None:
    rig = make({"a": 2, "b": 2}, together={"mode": "together"})
    rig.push("a", 1, 4)
    rig.push("b", 1, 2)
    claims = {claim.task: claim for claim in (rig.claim(), rig.claim())}
    rig.hand_in(claims["b"])
    rig.hand_in(claims["a"], tensors={"shared/w": torch.full((1, few_numbers.WIDTH), float("nan"))})
    rig.server.turn()
    assert rig.verdict(claims["a"]) is Verdict.REFUSED
    again = rig.claim()
    assert again.task == "a"
    rig.hand_in(again)
    rig.server.turn()
    assert rig.store.step == 1
    assert {entry.task for entry in rig.server.record.of(1)} == {"a", "b"}
