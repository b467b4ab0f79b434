"""Whoever writes a store may be killed at any point: whoever goes on comes to the bits that nobody's death would have left."""

import random
import signal
from pathlib import Path

import pytest
import torch

from queues.store.reader import FileReader
from tests.support import store_process
from tests.support.plain_optim import PlainStore, parameters, read, same, spec_of, stream
from tests.support.store_process import COUNT, ended, run, serve, start

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

POINTS = (
    *((point, times) for point in ("begun", "brought up", "changed", "finished", "written down", "flipped") for times in (1, 2, 6)),
    *(("moving", times) for times in (1, 2, 9, 20)),
    *(("told", times) for times in (1, 5)),
    *((point, times) for point in ("checkpoint: tensors", "checkpoint: state") for times in (1, 2, 3)),
    ("checkpoint: half dropped", 1),
)

LEARNING = {"adamw": {}, "lazy": {"lazy": True}, "momentum": {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.1}}


def expected(learning: dict[str, object], rows: bool, count: int = COUNT) -> dict[str, torch.Tensor]:
    """What nobody's death would have left; of `lazy` by a process that lived, for there is no such optimiser elsewhere."""
    plain = PlainStore(spec_of(learning), parameters())
    for gradient in stream(count, rows=rows):
        plain.apply((gradient,))
    return plain.values()


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"], ids=["killed", "power-cut"])
@pytest.mark.parametrize(("point", "times"), POINTS)
def test_killed_at_any_point_a_store_goes_on_to_the_same_bits(tmp_path: Path, point: str, times: int, boot: str) -> None:
    spec, folder = spec_of(), tmp_path / "store"
    assert run(folder, spec, rows=True, point=point, times=times) == -signal.SIGKILL
    assert run(folder, spec, rows=True, boot=boot) == 0
    step, found = read(FileReader(folder))
    assert step == COUNT
    assert same(found, expected({}, rows=True))
    assert [path for path in folder.rglob("*") if path.suffix in (".part", ".slab", ".tmp")] == [], "nothing is left lying about"


@pytest.mark.parametrize("first", ["written down", "flipped", "checkpoint: state"])
def test_killed_while_it_recovers_from_a_power_cut(tmp_path: Path, first: str) -> None:
    spec, folder = spec_of(), tmp_path / "store"
    assert run(folder, spec, rows=True, point=first, times=2) == -signal.SIGKILL
    if first != "checkpoint: state":  # else there is no checkpoint yet
        assert run(folder, spec, rows=True, point="checkpoint: state", times=1) == -signal.SIGKILL
    assert run(folder, spec, rows=True, point="list in place", times=1, boot="boot-2") == -signal.SIGKILL
    assert run(folder, spec, rows=True, boot="boot-2") == 0
    assert same(read(FileReader(folder))[1], expected({}, rows=True))


@pytest.mark.parametrize("learning", LEARNING.values(), ids=LEARNING)
def test_killed_again_and_again(tmp_path: Path, learning: dict[str, object]) -> None:
    """Given a store whose every process is killed at its second step, at another point each, Then the stream ends all the same."""
    spec, folder = spec_of(learning), tmp_path / "store"
    points = ("brought up", "changed", "finished", "written down", "flipped", "told")
    for number in range(40):
        if run(folder, spec, rows=True, point=points[number % len(points)], times=2) == 0:
            break
    else:
        pytest.fail("the stream should have ended")
    whole = tmp_path / "whole"
    assert run(whole, spec, rows=True) == 0
    assert same(read(FileReader(folder))[1], read(FileReader(whole))[1])
    if "lazy" not in learning:
        assert same(read(FileReader(folder))[1], expected(learning, rows=True))


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_moment(tmp_path: Path, seed: int) -> None:
    """Given processes that are killed from outside at moments drawn by lot, power cuts among them, Then the bits are the same."""
    spec, folder, count, lot = spec_of(), tmp_path / "store", 60, random.Random(seed)
    boot, deaths = 0, 0
    for _ in range(60):
        boot += lot.random() < 0.15
        process = start(serve, folder, spec, seed % 2 == 0, "", 0, f"boot-{boot}", count)
        process.join(0.05 + lot.random() * 0.15)
        process.kill()
        deaths += ended(process) != 0
        if process.exitcode == 0:
            break
    else:
        assert ended(start(serve, folder, spec, seed % 2 == 0, "", 0, f"boot-{boot}", count)) == 0
    assert deaths
    step, found = read(FileReader(folder))
    assert step == count
    assert same(found, expected({}, rows=seed % 2 == 0, count=count))


def test_the_killed_are_killed_where_it_says() -> None:
    """A point that no process reaches would make its tests say nothing: they look at the exit code, and this at the names."""
    text = "".join(path.read_text() for path in (Path(store_process.__file__).parents[2] / "queues" / "store").glob("*.py"))
    reached = {point for point, _ in POINTS} - {"moving"}
    assert {point for point in reached if f'_reach("{point}")' not in text and f'reach("{point}")' not in text} == set()
