"""A server is killed at every point where rounds come into its stream: each comes in once, all numbers are those of a calm day."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from queues.embedded import EmbeddedServer
from queues.store.reader import FileReader
from queues.stream.home import StreamHome
from queues.stream.record import Record
from queues.writer import QueueWriter
from tests.support import few_numbers
from tests.support.killed_rounds import INSIDE, POINTS, ROUND, TURN
from tests.support.streams import client, server
from trunkline.sets import write_set

pytestmark = [pytest.mark.system, pytest.mark.slow]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with server("embedded", tmp_path_factory.mktemp("redis")) as made:
        yield made


@pytest.fixture(scope="module")
def nursery(redis: EmbeddedServer) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.support.killed_rounds", redis.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


class Site:
    """A stream with two batches of task `a`, and the files of its rounds."""

    def __init__(self, redis: EmbeddedServer, nursery: "subprocess.Popen[str]", folder: Path, name: str, **change: Any) -> None:
        self.spec = few_numbers.spec({"a": 2, "b": 3}, name=name, queues={"lease_seconds": 0.2}, **change)
        self.home: StreamHome = few_numbers.home(folder / name, self.spec)
        self.queues = QueueWriter(client(redis), name, epoch=self.home.epoch)
        self.queues.begin(self.home.epoch, self.spec.queues)
        for task in self.spec.tasks:
            self.queues.configure(task.name, task.settings)
        self.queues.push("a", [f"{number}:".encode() for number in range(4)])
        first = {"w": few_numbers.parameters(self.spec)["shared/w"].numpy()}
        write_set(self.home.folder / "base", {"w": np.asarray(first["w"] * np.float32(0.5))})
        write_set(self.home.folder / "target", {"w": np.asarray(first["w"] * np.float32(0.7))})
        write_set(self.home.folder / "initial", {"w": np.asarray(first["w"] * np.float32(0.9))})
        self.nursery = nursery

    def play(self, point: str = "never", count: int = 0, boot: str = "one") -> int:
        """Have a server do all that it should; tell how it ended.

        :param boot: another than before: there was a power cut.
        """
        assert self.nursery.stdin
        assert self.nursery.stdout
        self.nursery.stdin.write(f"{point}|{count}|{self.home.folder}|{boot}\n")
        self.nursery.stdin.flush()
        return int(self.nursery.stdout.readline())

    def found(self) -> dict[str, Any]:
        """All that there is in the end, but for ids and times."""
        values = few_numbers.parameters(self.spec)
        step = FileReader(self.home.store).read(values)
        entries = list(Record(self.home.applied).since(0))
        assert [entry.step for entry in entries] == list(range(1, step + 1)), "every step is in the record, once"
        turn = json.loads((self.home.rounds / "turn.json").read_bytes())
        counts = self.queues.counts("a")
        assert counts.conserved
        return {
            "values": {name: value.numpy().tobytes() for name, value in values.items()},
            "steps": [entry.task or entry.batch for entry in entries],
            "samples": [entry.samples for entry in entries],
            "done": turn["done"],
            "applied": counts.applied,
            "left": counts.queued + counts.leased + counts.submitted,
            "states": [self.queues.stats(task).state for task in ("a", "b")],
        }


def test_killed_at_every_point_where_rounds_come_in(
    redis: EmbeddedServer, nursery: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    calm = Site(redis, nursery, tmp_path, "calm")
    assert calm.play() == 0
    wanted = calm.found()
    assert wanted["steps"] == [ROUND, TURN, "a"]
    assert (wanted["applied"], wanted["left"], wanted["states"]) == (2, 2, ["filling", "filling"])
    missed = []
    for number, (point, count) in enumerate((point, count) for point in [*POINTS, *INSIDE] for count in (1, 2, 3)):
        site = Site(redis, nursery, tmp_path, f"killed-{number}")
        code = site.play(point, count)
        if code == 0:  # it comes to that point less often
            missed.append((point, count))
        else:
            assert code == -9, (point, count)
            assert site.play() == 0, (point, count)
        assert site.found() == wanted, (point, count)
        assert site.play() == 0, "and once more, with nothing left to do"
        assert site.found() == wanted, (point, count)
    assert not [point for point, count in missed if count == 1]


@pytest.mark.parametrize("covered", [2, 3])
def test_after_a_power_cut_the_rounds_that_no_checkpoint_covers_come_in_again(
    redis: EmbeddedServer, nursery: "subprocess.Popen[str]", tmp_path: Path, covered: int
) -> None:
    """The store goes back to a step, or to where it began: what was played beyond is played again, and comes to the same."""
    keeping = {"checkpoint_steps": covered, "checkpoint_seconds": 1000.0}
    calm, cut = (Site(redis, nursery, tmp_path, f"{name}-{covered}", store=keeping) for name in ("calm", "cut"))
    assert calm.play() == 0
    assert cut.play("before store.checkpoint", 2 if covered == 2 else 1) == -9, "the batch is never covered"
    assert json.loads((cut.home.rounds / "turn.json").read_bytes())["done"] is not None
    assert cut.play(boot="two") == 0
    assert cut.found() == calm.found()
