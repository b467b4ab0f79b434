"""Children whose samples come through queues: a round with a real stream, a real Valkey, and a worker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from child.handlers import Child
from tests.support import two_loops
from tests.support.served import Served, served
from tests.support.world import World, make_world, sentiment, write_reviews
from trunkline.messages import Update

BATCH = 7
"""Of four in the training rows of a file of forty."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path)


@pytest.fixture
def stream(world: World, tmp_path: Path) -> Iterator[Served]:
    with served(
        two_loops.stream_at(tmp_path / "children" / "amy" / "streams" / "reviews", world, two_loops.declared(BATCH))
    ) as made:
        yield made


@pytest.fixture
def amy(world: World, stream: Served) -> Child:
    return two_loops.fed_child(world, "amy", stream.home)


def updates(world: World, number: int) -> list[Update]:
    job = world.ledger.jobs()[-1]
    return [Update.of_table(row.update) for row in world.ledger.reader(job.id).updates(number)]


def test_a_child_that_is_fed_by_a_queue_equals_one_that_is_fed_by_a_file(
    world: World, stream: Served, amy: Child, tmp_path: Path
) -> None:
    """One full batch, one step: what the queue's child sends is what the file's child sends; and the weight is what was applied."""
    path = write_reviews(tmp_path / "all.csv", 10)  # seven training rows: one batch
    assert two_loops.push(stream, two_loops.rows(path)) == BATCH
    training = {**two_loops.SGD, "steps": 1, "warmup": 0.0}
    with two_loops.working(stream.home):
        world.run(rounds=1, training=training)
    (update,) = updates(world, 1)
    assert (update.samples, update.applied, update.steps) == ({"sentiment": BATCH}, {"sentiment": BATCH}, 1)
    fused = world.current()

    other = make_world(tmp_path / "other")
    other.add_child("ben", sentiment(path, labels=("negative", "positive"), batch_size=BATCH))
    other.run(rounds=1, training=training)
    assert two_loops.furthest(fused, other.current()) <= 1e-6


def test_a_round_takes_the_steps_of_its_plan_and_the_rest_waits_for_the_next(
    world: World, stream: Served, amy: Child, tmp_path: Path
) -> None:
    two_loops.push(stream, two_loops.rows(write_reviews(tmp_path / "all.csv", 40)))  # four batches
    with two_loops.working(stream.home) as worker:
        stream.wait("the queue to only fill", lambda: stream.call("GET", "queues/sentiment")["state"] == "filling")
        assert stream.counts("sentiment")["applied"] == 0
        world.run(rounds=2, training={**two_loops.SGD, "steps": 3, "warmup": 0.0})
        assert worker.tally.failed == 0
    assert [update.samples for update in updates(world, 1)] == [{"sentiment": 3 * BATCH}]
    assert [update.samples for update in updates(world, 2)] == [{"sentiment": BATCH}], "its queue held one batch more"
    counts = stream.counts("sentiment")
    assert (counts["applied"], counts["waiting"]) == (4 * BATCH, 0)
    lineage = stream.call("GET", "lineage")
    assert [(one["step"], one["batch"].endswith("/in")) for one in reversed(lineage)] == [
        (1, True),
        (2, False),
        (3, False),
        (4, False),
        (5, True),
        (6, False),
    ]
