"""Parameters computed anew from a checkpoint and the record are those of the store, to the last bit, with the real encoder."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from queues.embedded import EmbeddedServer
from queues.queue import Claim
from queues.store.reader import FileReader
from queues.store.store import Sent
from queues.store.writer import FileWriter
from queues.stream.replay import replay
from queues.stream.seeds import dropout_seed
from queues.stream.server import ParameterServer
from queues.writer import QueueWriter
from tests.support import small_stream
from tests.support.streams import client
from trunkline.clock import ManualClock
from trunkline.errors import Conflict, NotFound

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Rig:
    def __init__(self, redis: EmbeddedServer, folder: Path, **change: Any) -> None:
        self.home = small_stream.folder(folder / "stream", dropout=0.1, name=folder.name[:60], **change)
        self.spec = self.home.spec
        self.learner, self.again = small_stream.learner(self.home), small_stream.learner(self.home)
        self.initial = {name: p.detach().clone() for name, p in self.learner.parameters().items()}
        self.store = FileWriter(self.home.store, self.spec, self.initial, self.home.epoch)
        self.queues = QueueWriter(client(redis), self.spec.name, epoch=self.home.epoch)
        small_stream.opened(self.home, self.queues)
        writer = QueueWriter(client(redis), self.spec.name, epoch=self.home.epoch)
        self.server = ParameterServer(self.home, self.spec, writer, self.store, ManualClock())
        self.server.start()
        self.reader = FileReader(self.home.store)

    def push(self, count: int) -> None:
        for task in self.spec.tasks:
            self.queues.push(task.name, small_stream.samples(self.learner, task.name, count))

    def hand_in(self, claim: Claim[bytes]) -> None:
        base = self.reader.read({name: p.detach() for name, p in self.learner.needed(claim.task).items()})
        found = self.learner.gradient(claim, dropout_seed(self.spec.learning.seed, claim.task, claim.id))
        named: dict[str, Tensor] = {f"shared/{name}": t for name, t in found.shared.items()}
        named |= {f"head/{claim.task}/{name}": t for name, t in found.head.items()}
        self.reader.send(Sent(claim.id, claim.attempt, claim.task, base, found.samples, found.loss, named))
        self.queues.submit(claim)

    def work(self, most: int = 10**6, *, stale: random.Random | None = None) -> int:
        """With `stale`, three workers at once."""
        done = 0
        while done < most and (claims := self._claims(1 if stale is None else 3)):
            if stale is not None:
                stale.shuffle(claims)
            for claim in claims:
                self.hand_in(claim)
                done += 1
            self.server.turn()
        return done

    def _claims(self, most: int) -> list[Claim[bytes]]:
        found = (self.queues.claim() for _ in range(most))
        return [claim for claim in found if claim is not None]

    def close(self) -> None:
        self.server.stop()
        self.store.close()


@pytest.fixture
def make(embedded_server: EmbeddedServer, tmp_path: Path) -> Iterator[Any]:
    made: list[Rig] = []

    def rig(**change: Any) -> Rig:
        made.append(Rig(embedded_server, tmp_path, **change))
        return made[-1]

    yield rig
    for one in made:
        one.close()


@pytest.mark.slow
def test_one_worker(make: Any, tmp_path: Path) -> None:
    rig = make(store={"checkpoint_steps": 4})
    rig.push(24)
    steps = rig.work()
    assert steps == 6 + 12
    for start, name in ((0, "a"), (12, "b"), (16, "c")):
        found = replay(rig.home, rig.again, tmp_path / name, start=start)
        assert (found.start, found.step, found.batches, found.differs) == (start, steps, steps - start, None)
        assert found.same is True
    found = replay(rig.home, rig.again, tmp_path / "d", start=0, until=16)
    assert (found.step, found.same) == (16, True), "a checkpoint is compared with, too"
    found = replay(rig.home, rig.again, tmp_path / "e", start=0, until=7)
    assert (found.step, found.same) == (7, None)
    assert found.kept is None


def test_stale_gradients(make: Any, tmp_path: Path) -> None:
    rig = make(store={"checkpoint_steps": 1000, "staleness": 1, "damping": "sqrt"})
    rig.push(24)
    rig.work(stale=random.Random(0))
    assert max(entry.staleness for entry in rig.server.record.since(0)) == 1
    assert rig.server.status()["came_back"]["stale"] > 0
    found = replay(rig.home, rig.again, tmp_path / "room")
    assert (found.same, found.differs) == (True, None)


@pytest.mark.parametrize("rule", ["equal", "dwa", "uncertainty"])
def test_tasks_together(make: Any, tmp_path: Path, rule: str) -> None:
    rig = make(together={"mode": "together", "rule": rule}, store={"checkpoint_steps": 3})
    rig.push(24)
    rig.work(stale=random.Random(0))
    for start, name in ((0, "a"), (rig.store.checkpointed(), "b")):
        found = replay(rig.home, rig.again, tmp_path / name, start=start)
        assert (found.same, found.differs) == (True, None)


def test_a_round_in_between(make: Any, tmp_path: Path) -> None:
    rig = make()
    rig.push(8)
    rig.work(3)
    delta: Mapping[str, Tensor] = {name: torch.full_like(p, 0.01) for name, p in rig.initial.items() if name.startswith("shared/")}
    assert rig.server.add(delta, "round-1") == 4
    assert rig.server.add(delta, "round-1") == 4, "once"
    rig.work()
    assert [entry.batch for entry in rig.server.record.of(4)] == ["round-1"]
    with pytest.raises(NotFound, match="round-1"):
        replay(rig.home, rig.again, tmp_path / "a")
    assert replay(rig.home, rig.again, tmp_path / "b", deltas=lambda name: delta).same is True


def test_what_was_tampered_with_is_found(make: Any, tmp_path: Path) -> None:
    rig = make()
    rig.push(12)
    rig.work()
    entries = list(rig.server.record.since(0))
    rig.server.record.cut(2)
    other = next(entry for entry in entries if entry.task == entries[2].task and entry.step > 3)
    for entry in entries[2:]:
        rig.server.record.append([replace(entry, samples=other.samples) if entry.step == 3 else entry])
    found = replay(rig.home, rig.again, tmp_path / "a")
    assert (found.same, found.differs) == (False, 3)


def test_what_cannot_be_replayed_is_told(make: Any, tmp_path: Path) -> None:
    rig = make(store={"checkpoint_steps": 1000})
    rig.push(8)
    rig.work(2)
    first, second = rig._claims(2)
    rig.hand_in(first)
    rig.hand_in(second)
    rig.server.turn()
    with pytest.raises(NotFound, match="`start` should be 0 or one of none, found 3"):
        replay(rig.home, rig.again, tmp_path / "a", start=3)
    rig.store._checkpoints.save(3, rig.store._slots[0].tensors(), {}, {})  # the second was computed on what was before it
    with pytest.raises(Conflict, match="step 2"):
        replay(rig.home, rig.again, tmp_path / "b", start=3)
    rig.server.record.cut(3)
    with pytest.raises(NotFound, match="no step 4"):
        replay(rig.home, rig.again, tmp_path / "c", start=0)
