"""One writer and many workers of a store, each a process: what they see, and what their deaths and standstills do."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from queues.store.reader import FileReader
from queues.store.store import Verdict
from queues.store.writer import FileWriter
from tests.support.plain_optim import SHAPES, parameters, read, same, sent, spec_of
from tests.support.store_process import die_sending, ended, grow, look, send_many, start, watch

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

LARGE = {name: (400, 400) if len(shape) == 2 else shape for name, shape in SHAPES.items() if "topic" not in name}

BY_ONE = {"optimizer": "sgd", "learning_rate": 1.0, "head_learning_rate": 1.0, "warmup_steps": 0, "clip_norm": 0.0}


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[FileWriter]:
    """A store whose every number is its step."""
    writer = FileWriter(tmp_path / "store", spec_of(BY_ONE), {name: torch.zeros(shape) for name, shape in LARGE.items()}, "epoch")
    yield writer
    writer.close()


def count(writer: FileWriter, last: int) -> None:
    down = {name: torch.full(shape, -1.0) for name, shape in LARGE.items()}
    while writer.step < last:
        number = writer.step
        writer.apply((replace(sent(number, "mood", skip=tuple(SHAPES)), tensors=down),))


def test_workers_never_see_two_steps_at_once(counter: FileWriter) -> None:
    workers = [start(watch, counter.folder, LARGE, 400) for _ in range(3)]
    time.sleep(1.0)  # they have begun to read
    count(counter, 400)
    assert [ended(worker) for worker in workers] == [0, 0, 0]


def test_a_worker_that_stood_still_while_it_copied_sees_one_step_all_the_same(counter: FileWriter) -> None:
    """Given a worker stopped at any moment, and steps that come round to its slot, When it goes on, Then it copies again."""
    worker = start(watch, counter.folder, LARGE, 120)
    time.sleep(1.0)
    assert worker.pid is not None
    for step in range(2, 121, 2):
        os.kill(worker.pid, signal.SIGSTOP)
        count(counter, step)
        os.kill(worker.pid, signal.SIGCONT)
        time.sleep(0.002)
    assert ended(worker) == 0


def test_workers_come_and_go_and_the_store_stays(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    writer = FileWriter(folder, spec_of(), parameters(), "epoch")
    assert [ended(worker) for worker in [start(look, folder) for _ in range(4)]] == [0, 0, 0, 0]
    killed = start(watch, folder, SHAPES, 10**9)
    killed.kill()
    assert ended(killed) == -signal.SIGKILL
    writer.apply((sent(0, "mood"),))
    assert ended(start(look, folder)) == 0
    assert read(FileReader(folder))[0] == 1
    writer.close()


@pytest.mark.parametrize("writes", range(7))
def test_a_worker_that_is_killed_while_it_sends_leaves_nothing(tmp_path: Path, writes: int) -> None:
    """Given none, some or all of a gradient's tensors and not its head, Then it is not there, and takes nobody's room."""
    folder = tmp_path / "store"
    writer = FileWriter(folder, spec_of(), parameters(), "epoch", slabs=1)
    sender = start(die_sending, folder, 0, writes)
    assert ended(sender) == -signal.SIGKILL
    assert writer.received("batch-0", 1) is None
    reader = FileReader(folder)
    reader.send(replace(sent(0, "mood"), attempt=2))  # there is room for one, so what the dead one left is gone
    found = writer.received("batch-0", 2)
    assert found is not None
    writer.apply((found,))
    writer.done("batch-0", 2, Verdict.APPLIED)
    assert [path.suffix for path in (folder / "slabs").iterdir()] == [".free"]
    writer.close()


def test_many_workers_send_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    writer = FileWriter(folder, spec_of(), parameters(), "epoch")
    workers = [start(send_many, folder, worker, 20) for worker in range(4)]
    deadline = time.monotonic() + 120
    while any(worker.is_alive() for worker in workers):
        assert time.monotonic() < deadline
        for path in sorted(tmp_path.glob("submitted-*")):
            batch = path.name.removeprefix("submitted-")
            found = writer.received(batch, 1)
            assert found is not None
            again = sent(int(batch.partition("-")[2]), "mood", base=0)
            assert same(dict(found.tensors), dict(again.tensors))  # type: ignore[arg-type]
            writer.apply((found,))
            path.unlink()
            writer.done(batch, 1, Verdict.APPLIED)
    assert [ended(worker) for worker in workers] == [0, 0, 0, 0]
    assert writer.step == 80
    assert len(list((folder / "slabs").iterdir())) <= 8, "files are written over"
    writer.close()


def test_memory_is_flat_over_many_batches(tmp_path: Path) -> None:
    assert ended(start(grow, tmp_path / "store", 4000)) == 0
