"""Where the two loops meet: a stream and rounds train one encoder, over a real server of a stream and a real Valkey."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from master.api.answers import table
from master.cli.lineage import merged
from master.meeting import Meeting, round_name
from master.rounds import run
from queues.store.reader import FileReader
from queues.stream.model import Learner
from tests.support import two_loops
from tests.support.served import Served, served
from tests.support.world import World, make_world, sentiment, write_reviews
from trunkline.errors import Conflict, DeadlineExceeded
from trunkline.tensors import Array

COUNT = 28
"""Training rows of a file of forty."""

ONE_STEP = {**two_loops.SGD, "steps": 1, "warmup": 0.0, "batch_size": COUNT}


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = make_world(tmp_path)
    made.add_child("amy", sentiment(write_reviews(tmp_path / "amy.csv", 40), labels=("negative", "positive"), batch_size=COUNT))
    return made


@pytest.fixture
def stream(world: World, tmp_path: Path) -> Iterator[Served]:
    with served(two_loops.stream_at(tmp_path / "s" / "reviews", world, two_loops.declared(COUNT), since=1)) as made:
        yield made


@pytest.fixture
def met(world: World, stream: Served) -> Meeting:
    return two_loops.meeting(world, stream.home)


def play(world: World, met: Meeting, **spec: Any) -> None:
    """A job with `--stream`, to its end."""
    job = two_loops.with_stream(world.play(stream="reviews", training=ONE_STEP, **spec), met)
    job.pen.finish("finished", run(job))


def heads(stream: Served) -> dict[str, bytes]:
    """Every number that is private to the stream."""
    learner = Learner(stream.home.spec, stream.home.encoder)
    FileReader(stream.home.store).read({name: p.detach() for name, p in learner.parameters().items()})
    return {name: p.detach().numpy().tobytes() for name, p in learner.parameters().items() if name.startswith("head/")}


def test_one_child_with_all_data_and_one_step_equals_one_push_into_the_store(
    world: World, stream: Served, met: Meeting, tmp_path: Path
) -> None:
    """The test that ties the loops: a round of one child and one full batch, through a job with `--stream`; a push of the same."""
    start, before = world.current(), heads(stream)
    play(world, met, rounds=1)  # the stream has learned nothing yet: the round starts from version 1
    fused = world.current()
    assert [(one.number, one.kind) for one in world.ledger.versions("tiny")] == [(1, "initial"), (2, "round")]
    assert two_loops.furthest(fused, start) > 1e-3
    assert two_loops.furthest(two_loops.shared_now(stream, tmp_path / "merged"), fused) == 0
    assert heads(stream) == before, "a merge leaves heads as they are, to the bit"

    with served(two_loops.stream_at(tmp_path / "t" / "pushed", world, two_loops.declared(COUNT, name="pushed"))) as other:
        assert two_loops.push(other, two_loops.rows(tmp_path / "amy.csv")) == COUNT
        two_loops.drained(other, lambda counts: counts["applied"] == COUNT)
        pushed: dict[str, Array] = two_loops.shared_now(other, tmp_path / "pushed.set")
    assert two_loops.furthest(fused, pushed) <= 1e-6


def test_rounds_and_batches_add_up_and_the_lineage_tells_both(world: World, stream: Served, met: Meeting, tmp_path: Path) -> None:
    """Given a stream that learned a batch, when a job of two rounds trains its encoder, then each round starts from all of it."""
    two_loops.push(stream, two_loops.rows(write_reviews(tmp_path / "new.csv", 50, 7)))  # a batch, and seven that wait
    two_loops.drained(stream, lambda counts: counts["applied"] == COUNT)
    learned = two_loops.shared_now(stream, tmp_path / "learned")
    play(world, met, rounds=2)
    versions = world.ledger.versions("tiny")
    assert [one.kind for one in versions] == ["initial", "snapshot", "round", "round"], "nothing new between the rounds"
    snapshot = versions[1]
    assert (snapshot.parent_number, snapshot.data) == (1, {"stream": "reviews", "step": 1, "applied": {"sentiment": COUNT}})
    with world.blobs.open_set(snapshot.digest) as file:
        assert two_loops.furthest(file.tensors(), learned) == 0
    rounds = [one for one in versions if one.kind == "round"]
    assert rounds[0].parent_number == 2
    assert two_loops.furthest(two_loops.shared_now(stream, tmp_path / "after"), world.current()) == 0
    shown = [(row["what"], row["of"], row["base"]) for row in merged([table(one) for one in versions], {})]
    assert sorted(shown)[:2] == [("version 1", None, None), ("version 2", "stream reviews, step 1", "version 1")]
    lineage = stream.call("GET", "lineage")
    assert [(one["step"], one["batch"] if not one["task"] else one["task"]) for one in lineage] == [
        (3, round_name(rounds[1])),
        (2, round_name(rounds[0])),
        (1, "sentiment"),
    ]
    events = [event for event in world.ledger.events() if event.kind in ("encoder.snapshot", "stream.merged")]
    assert [event.kind for event in events if event.data["stream"] == "reviews"][:2] == ["encoder.snapshot", "stream.merged"]


def test_a_round_is_taken_once_however_often_it_is_said_and_whoever_was_killed(
    world: World, stream: Served, met: Meeting, tmp_path: Path
) -> None:
    world.run(rounds=1, training=ONE_STEP)  # a job that does not know of the stream
    version = world.ledger.version("tiny")
    assert [one.number for one in met.missing()] == [2]
    assert met.merge(version)["new"] is True
    once = two_loops.shared_now(stream, tmp_path / "once")
    again = met.merge(version)
    assert (again["new"], again["step"]) == (False, 1)
    assert met.missing() == []
    stream.kill()
    stream.start()  # it has the round, and says so
    assert met.catch_up() == 0
    assert met.merge(version)["new"] is False
    assert two_loops.furthest(two_loops.shared_now(stream, tmp_path / "still"), once) == 0
    assert stream.call("GET", "rounds") == {round_name(version): 1}


def test_only_what_a_round_of_its_encoder_came_to_can_be_merged_and_nothing_is_published_into_an_open_round(
    world: World, stream: Served, met: Meeting
) -> None:
    with pytest.raises(Conflict, match="should be what a round came to, found version 1, which is of kind initial"):
        met.merge(world.ledger.version("tiny", 1))
    two_loops.push(stream, two_loops.rows(world.folder / "amy.csv"))
    two_loops.drained(stream, lambda counts: counts["applied"] == COUNT)
    job = world.play(rounds=1)
    job.pen.open_round(1, world.digest())
    with pytest.raises(Conflict, match="should have no open round"):
        met.publish()
    job.pen.skip_round(1, "nobody came")  # a round that fails adds nothing
    assert met.missing() == []
    first, again = met.publish(), met.publish()
    assert (first.number, first.kind, again.number) == (2, "snapshot", 2)


def test_a_job_whose_stream_is_away_waits_and_then_says_so(world: World, tmp_path: Path) -> None:
    home = two_loops.stream_at(tmp_path / "s" / "reviews", world, two_loops.declared(COUNT), since=1)
    away = two_loops.meeting(world, home, seconds=0.2)
    with pytest.raises(DeadlineExceeded, match=r"waited 0.2 s for stream 'reviews'.*should answer"):
        play(world, away, rounds=1)
    assert world.ledger.reader(world.ledger.jobs()[0].id).rounds() == []
