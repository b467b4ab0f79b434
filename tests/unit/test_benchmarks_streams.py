"""The measurements of streams: each runs, at a size that takes a moment, and holds what it finds to its aims."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.figures import Aim, Section, markdown
from benchmarks.streams import each, fairness, growth, latency, plain, queue, served, subject, trained
from benchmarks.streams.hands import WAYS
from benchmarks.streams.queue import Carried
from tests.support import small_stream
from trunkline.clock import SystemClock

CLOCK = SystemClock()


def quiet(line: str) -> None:
    pass


def whole(section: Section) -> None:
    """It can be shown."""
    assert all(len(row) == len(section.columns) for row in section.rows)
    assert "{" not in section.about
    assert section.title in markdown([section], {}, [])


def test_a_figure_may_have_a_ceiling() -> None:
    aims = [Aim.at_most("what", found, 2.0, "ms") for found in (1.9, 2.0, 2.1)]
    assert [aim.met for aim in aims] == [True, True, False]
    page = markdown([Section("t", "a", ("c",), [], aims)], {}, [])
    assert "- what: 1.9 ms, aim at most 2 ms: met" in page
    assert "Missed: what. " in page


# -- the queue ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_way_through_a_queue_is_measured(tmp_path: Path) -> None:
    section = queue.measure(320, 1, tmp_path, CLOCK, quiet)
    whole(section)
    assert [row[0] for row in section.rows] == 2 * [queue.NAMES[way] for way in WAYS]
    assert len(section.aims) == 6


@pytest.mark.parametrize(("server", "seconds", "met"), [(24.0, 1.0, [True] * 3), (26.0, 2.5, [False] * 3)])
def test_the_queue_is_held_to_its_server_its_rate_and_a_plain_list(server: float, seconds: float, met: list[bool]) -> None:
    count = 60_000
    ours, plain = (Carried(took, server * 1e-6 * count, 0.1, 0.1, count) for took in (seconds, 1.0))
    found = {(way, durable): one for way, one in (("ours", ours), ("single", plain)) for durable in (True, False)}
    assert [aim.met for aim in queue.aims(found, 0.001)] == 2 * met


def test_the_middle_of_some_runs() -> None:
    runs = [Carried(seconds, 2 * seconds, 3 * seconds, 4 * seconds, 100) for seconds in (3.0, 1.0, 2.0)]
    assert queue.usual(runs) == Carried(2.0, 4.0, 6.0, 8.0, 100)
    assert queue.usual(runs).rate == 50.0
    assert queue.usual(runs).each == (40_000.0, 60_000.0, 80_000.0)


# -- training ----------------------------------------------------------------------------------------------------------


def test_the_plain_loop_moves_as_torch_does(tmp_path: Path) -> None:
    spec = {"learning": {"warmup_steps": 0, "clip_norm": 1.0}}
    learner = small_stream.learner(small_stream.folder(tmp_path / "stream", **spec))
    batches = [learner.packers[task].batch(small_stream.samples(learner, task, 4)) for task in ("mood", "price")]
    before = {name: p.detach().clone() for name, p in learner.parameters().items()}
    loop = plain.PlainLoop(learner)
    first = loop.step(batches)
    alone = [learner.heads[b.task].loss([learner.encoder(side) for side in b.inputs], b).item() for b in batches]
    assert loop.step(batches) == pytest.approx(np.mean(alone), rel=1e-5)  # samples weigh alike
    assert loop.step(batches) < first
    moved = {name for name, p in learner.parameters().items() if not torch.equal(p, before[name])}
    assert {"head/mood/output.weight", "head/price/output.weight"} <= moved or len(moved) > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "measure",
    [
        lambda folder: trained.measure(2, 1, folder, CLOCK, quiet, tiny=True),
        lambda folder: latency.measure(2, folder, CLOCK, quiet, tiny=True),
        lambda folder: each.measure(64, 1, folder, CLOCK, quiet, tiny=True),
        lambda folder: growth.measure(40, folder, CLOCK, quiet),
    ],
    ids=["trained", "latency", "each", "growth"],
)
def test_what_runs_through_processes_is_measured(measure: Callable[[Path], Section], tmp_path: Path) -> None:
    section = measure(tmp_path)
    whole(section)
    assert section.rows
    assert section.aims


@pytest.mark.parametrize(("one", "two", "met"), [(1.0, 0.6, [True, True]), (1.1, 1.0, [False, False])])
def test_workers_are_held_to_a_plain_loop_and_to_each_other(one: float, two: float, met: list[bool]) -> None:
    pairs = [[trained.Pair(1.0, seconds)] * 3 for seconds in (one, two)]
    assert [aim.met for aim in trained.aims(*pairs)] == met
    assert [row[1] for row in trained.rows(pairs, 330)] == ["330.0", f"{330 / one:.1f}", f"{330 / two:.1f}"]


@pytest.mark.parametrize(("share", "found"), [(0.0, 0.0), (0.5, 50.0), (0.95, 95.0), (1.0, 99.0)])
def test_what_so_many_are_not_above(share: float, found: float) -> None:
    assert latency.part([float(value) for value in reversed(range(100))], share) == found


def test_memory_that_grows_by_more_than_five_megabytes_is_missed() -> None:
    flat, grows = growth.Grown([100_000_000] * 20), growth.Grown([100_000_000 + 400_000 * look for look in range(20)])
    assert [aim.met for aim in growth.aims({"server": flat, "worker": grows})] == [True, False]
    assert growth.rows({"redis": grows}) == [("server of the queues", "100.4", "107.2", "+6.8", "+3.2")]


def test_memory_of_a_process_is_told() -> None:
    import os

    assert 1_000_000 < growth.resident(os.getpid()) < 1 << 40


def test_the_reviews_come_in_turn_and_again() -> None:
    rows = subject.reviews(3000)
    assert rows[0] == rows[3 * 987 : 3 * 987 + 1][0]
    assert {row["label"] for row in rows} == {"negative", "positive"}


def test_a_measured_stream_moves_from_its_first_step_on() -> None:
    spec = served.declared([served.SENTIMENT], learning={"learning_rate": 0.5})
    assert (spec.learning.warmup_steps, spec.learning.learning_rate, spec.evaluate_steps) == (0, 0.5, 0)


# -- turns -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_flood_is_measured(tmp_path: Path) -> None:
    section = fairness.measure(2, tmp_path, CLOCK, quiet, ("equal",))
    whole(section)
    assert [row[:2] for row in section.rows] == [("`equal`", "a full batch"), ("`equal`", "one sample, flushed")]


def test_each_policy_is_held_to_what_it_promises() -> None:
    found = {(policy, False): fairness.Waited([1.6], 1.0) for policy in ("arrival", "equal", "proportional")}
    assert [aim.met for aim in fairness.aims(found)] == [True, False]  # type: ignore[arg-type]
