"""A parameter server is killed at every point it can be killed at, and comes up again: no sample is lost, none is applied twice,
and the parameters are to the last bit those of a plain loop.
"""

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queues.embedded import EmbeddedServer
from queues.queue import Claim, Outcome
from queues.store.reader import FileReader
from queues.store.store import Verdict
from queues.stream.home import StreamHome
from queues.stream.record import Entry, Record
from queues.writer import QueueWriter
from tests.support import few_numbers
from tests.support.few_numbers import computed, loop, loop_together, numbered, same, values
from tests.support.killed_server import INSIDE, POINTS, Nursery
from tests.support.streams import client
from tests.support.streams import server as running
from trunkline.errors import TrunklineError

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with running("embedded", tmp_path / "redis") as made:
        yield made


class Rig:
    """A stream whose server is another process; the worker is here."""

    def __init__(self, redis: EmbeddedServer, folder: Path, **change: Any) -> None:
        self.redis = redis
        tasks = {"a": 2, "b": 3}
        self.spec = few_numbers.spec(tasks, **{"store": {"checkpoint_steps": 3, "checkpoint_seconds": 1000.0}, **change})
        self.home: StreamHome = few_numbers.home(folder, self.spec)
        self.queues = QueueWriter(client(redis), self.spec.name, epoch=self.home.epoch, worker="here")
        self.queues.begin(self.home.epoch, self.spec.queues)
        for task in self.spec.tasks:
            self.queues.configure(task.name, task.settings)
        self.reader = FileReader(self.home.store)
        self.nursery = Nursery(self.home, redis.url)
        self.last: Claim[bytes] | None = None  # handed in, and nobody said what became of it

    def push(self, count: int, first: int = 1) -> None:
        for task in self.spec.tasks:
            self.queues.push(task.name, numbered(first, first + count - 1), producer="p", first=first)

    def claim(self) -> Claim[bytes]:
        claim = self.queues.claim()
        assert claim is not None
        return claim

    def hand_in(self, claim: Claim[bytes]) -> Claim[bytes]:
        end = time.monotonic() + 30
        while not (self.home.store / "map").exists() and time.monotonic() < end:
            time.sleep(0.01)
        self.reader.send(computed(claim, self.reader))
        assert self.queues.submit(claim) is Outcome.OK
        self.last = claim
        return claim

    def settled(self, claim: Claim[bytes], seconds: float = 30.0) -> bool:
        """Wait until it is known what became of a batch; tell whether it was applied."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if (found := self.reader.verdict(claim.id, claim.attempt, 0.05)) is not None:
                return found is Verdict.APPLIED
            try:
                if self.queues.renew(claim) is not Outcome.OK:
                    return True
            except TrunklineError:
                time.sleep(0.05)
        raise AssertionError("nothing became of a batch")

    def looked_at(self) -> None:
        """Wait until the server has looked at queues that were started again."""
        end = time.monotonic() + 30
        while self.queues.work(1).step < 0:
            assert time.monotonic() < end, "nobody looks"
            time.sleep(0.01)

    def settle_all(self) -> None:
        """Wait until nothing is submitted."""
        end = time.monotonic() + 30
        while any(self.queues.counts(task.name).submitted for task in self.spec.tasks):
            assert time.monotonic() < end, "something stays submitted"
            time.sleep(0.005)

    def work(self) -> None:
        """One worker, which never computes on parameters that its own last gradient has not reached."""
        if self.last is not None:
            self.settled(self.last)
        while (claim := self.queues.claim()) is not None:
            self.settled(self.hand_in(claim))

    def until_ended(self) -> int:
        """Work until the server is dead; tell how many batches were handed in."""
        done = 0
        if self.last is not None:
            self.settled(self.last)
        while self.alive():
            claim = self.queues.claim()
            if claim is None:
                self.push(6, 1 + self.queues.counts("a").pushed)
                continue
            self.hand_in(claim)
            done += 1
            while self.alive() and self.reader.verdict(claim.id, claim.attempt, 0.01) is None:
                pass
        return done

    def alive(self) -> bool:
        status = Path(f"/proc/{self.nursery.pid}/stat")
        try:
            return status.read_text().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False

    def entries(self) -> list[Entry]:
        return list(Record(self.home.applied).since(0))

    def check(self) -> None:
        """Everything that was pushed is where it should be, and did what a plain loop does."""
        entries = self.entries()
        batches = [entry.batch for entry in entries]
        assert len(set(batches)) == len(batches), "each batch once"
        for task in self.spec.tasks:
            counts = self.queues.counts(task.name)
            assert counts.conserved
            assert (counts.leased, counts.submitted, counts.dead) == (0, 0, 0)
            found = [sample for entry in entries if entry.task == task.name for sample in entry.samples]
            assert found == numbered(1, counts.applied), "each sample once, in the order in which they came"
            assert not any(entry.staleness for entry in entries)
        assert [entry.step for entry in entries] == list(range(1, len(entries) + 1))
        assert same(values(self.spec, self.reader), loop(self.spec, [(entry.task, entry.samples) for entry in entries]))


@pytest.fixture
def rig(redis: EmbeddedServer, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(redis, tmp_path / "stream")
    yield made
    made.nursery.close()


def test_killed_at_every_point(rig: Rig) -> None:
    rig.nursery.start()
    rig.push(6)
    rig.work()
    assert rig.nursery.stop() == 0
    skipped = {"before queues.nack", "after queues.nack", "before queues.adopt", "after queues.adopt"}
    skipped |= {"before queues.reopen", "after queues.reopen"}  # see below
    for point in [*POINTS, *INSIDE]:
        if point in skipped:
            continue
        rig.nursery.start(point, 2 if point.endswith(("hold", "work")) else 1)
        rig.until_ended()
        assert rig.nursery.ended() == -9, point
        rig.nursery.start()
        rig.work()
        rig.push(6, 1 + rig.queues.counts("a").pushed)
        rig.work()
        rig.nursery.kill()
        rig.nursery.start()
        rig.work()
        rig.check()
        assert rig.nursery.stop() == 0, point
    assert rig.queues.counts("a").applied >= 12 * len(INSIDE)


def test_killed_while_it_brings_the_queues_up_to_the_store(rig: Rig) -> None:
    for point in ("before queues.adopt", "after queues.adopt"):
        rig.push(6, 1 + rig.queues.counts("a").pushed)
        rig.nursery.start("after store.apply", 1)
        rig.until_ended()
        assert rig.nursery.ended() == -9
        rig.nursery.start(point, 1)
        assert rig.nursery.ended() == -9
        rig.nursery.start()
        rig.work()
        rig.check()
        assert rig.nursery.stop() == 0


def test_after_a_power_cut_it_goes_on_from_the_last_checkpoint_and_the_batches_after_it_come_back(rig: Rig) -> None:
    for boot, point in enumerate(("before queues.reopen", "after queues.reopen", "never"), 1):
        rig.nursery.start(boot=boot - 1)
        rig.push(10, 1 + rig.queues.counts("a").pushed)
        rig.work()
        applied = rig.queues.counts("a").applied
        later = [one.batch for one in rig.queues.applied_after(0)]
        assert later, "some are covered by no checkpoint"
        rig.nursery.kill()
        rig.nursery.start(point, 1, boot)
        if point != "never":
            assert rig.nursery.ended() == -9
            rig.nursery.start(boot=boot)
        end = time.monotonic() + 30
        while not any(one.where == "back" for one in rig.queues.out()) and time.monotonic() < end:
            time.sleep(0.01)
        rig.work()
        assert rig.queues.counts("a").applied == applied
        assert [entry.batch for entry in rig.entries()][-len(later) :] == later, "the same, in the same order"
        rig.check()
        rig.nursery.kill()


def test_killed_at_random_moments(rig: Rig) -> None:
    rng = random.Random(0)
    for _ in range(20):
        rig.push(rng.randrange(1, 10), 1 + rig.queues.counts("a").pushed)
        rig.nursery.start()
        end = time.monotonic() + rng.random() * 0.4
        while time.monotonic() < end and (rig.last is None or rig.settled(rig.last)):
            claim = rig.queues.claim()
            if claim is None:
                rig.push(6, 1 + rig.queues.counts("a").pushed)
                continue
            rig.hand_in(claim)
            if rng.random() < 0.2:
                os.kill(rig.nursery.pid, signal.SIGSTOP)
                time.sleep(0.05 * rng.random())
                os.kill(rig.nursery.pid, signal.SIGCONT)
            while time.monotonic() < end and rig.reader.verdict(claim.id, claim.attempt, 0.005) is None:
                pass
        rig.nursery.kill()
    rig.nursery.start()
    rig.work()
    while any(rig.queues.counts(task).submitted for task in ("a", "b")):
        time.sleep(0.05)
    rig.check()
    assert rig.nursery.stop() == 0


def test_killed_at_every_point_where_tasks_go_together(redis: EmbeddedServer, tmp_path: Path) -> None:
    rig = Rig(redis, tmp_path / "stream", together={"mode": "together", "wait_seconds": 1000.0})
    names = ("record.append", "store.apply", "queues.commit", "store.done")
    points = [f"{when} {name}" for name in names for when in ("before", "after")]
    for point in [*points, "changed", "written down", "flipped"]:
        for count in (1, 2) if "commit" in point or "done" in point else (1,):
            rig.push(6, 1 + rig.queues.counts("a").pushed)
            rig.nursery.start(point, count)
            for claim in [rig.claim(), rig.claim()]:
                rig.hand_in(claim)
            assert rig.nursery.ended() == -9, point
            rig.nursery.start()
            rig.settle_all()
            while claims := [claim for claim in (rig.queues.claim(), rig.queues.claim()) if claim is not None]:
                for claim in claims:
                    rig.hand_in(claim)
                rig.settle_all()
            assert rig.nursery.stop() == 0
            entries = rig.entries()
            steps: dict[int, dict[str, Any]] = {}
            for entry in entries:
                assert entry.staleness == 0
                assert entry.task not in steps.setdefault(entry.step, {}), "one of each"
                steps[entry.step][entry.task] = entry.samples
            assert list(steps) == list(range(1, len(steps) + 1))
            assert len({entry.batch for entry in entries}) == len(entries)
            for task in ("a", "b"):
                counts = rig.queues.counts(task)
                assert (counts.leased, counts.submitted, counts.conserved) == (0, 0, True)
                assert [s for entry in entries if entry.task == task for s in entry.samples] == numbered(1, counts.applied)
            assert same(values(rig.spec, rig.reader), loop_together(rig.spec, steps.values())), point
    rig.nursery.close()


def test_the_server_of_the_queues_is_killed_and_comes_back(rig: Rig) -> None:
    rig.nursery.start()
    for _ in range(4):
        rig.push(12, 1 + rig.queues.counts("a").pushed)
        claim = rig.hand_in(rig.claim())
        pid = int((rig.redis.folder / "redis.pid").read_text())
        rig.settled(claim)
        os.kill(pid, signal.SIGKILL)
        rig.redis._wait_for_end(pid, 10.0)
        rig.redis.start()
        rig.looked_at()
        rig.work()
    rig.check()
    assert rig.nursery.stop() == 0


def test_a_copy_of_the_folder_cannot_serve_beside_it_and_not_after_it_either(rig: Rig, tmp_path: Path) -> None:
    rig.nursery.start()
    rig.push(6)
    rig.work()
    shutil.copytree(rig.home.folder, tmp_path / "copy", ignore=shutil.ignore_patterns("lock"))
    rig.push(6, 7)
    rig.work()
    assert rig.nursery.stop() == 0
    rig.nursery.start()  # a second start, which the copy knows nothing of
    rig.push(2, 13)
    rig.work()
    copy = Nursery(StreamHome(tmp_path / "copy"), rig.redis.url)
    copy.start()
    assert copy.ended() == 1, "refused while the other is alive"
    rig.push(6, 15)
    rig.work()
    assert rig.nursery.stop() == 0
    (tmp_path / "copy" / "incarnation").write_text("1")
    copy.start()
    assert copy.ended() == 1, "and after it too: it is not the last that served"
    copy.close()
    rig.check()
