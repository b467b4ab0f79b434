"""Children whose samples come through queues: a round with a real stream, a real Valkey, and a worker."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from child.handlers import Child
from child.predict import open_predictor
from child.streamed import Player
from master.local import LocalLink
from queues.store.reader import FileReader
from queues.stream.model import Learner
from tests.support import two_loops
from tests.support.served import Served, served
from tests.support.world import World, make_world, sentiment, write_reviews
from trunkline.clock import SystemClock
from trunkline.errors import DeadlineExceeded
from trunkline.messages import InitialSet, Message, Report, Update

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


class Pushing:
    """A child into whose queue more is pushed after it has confirmed."""

    def __init__(self, child: Child, stream: Served, lines: bytes) -> None:
        self.child, self.stream, self.lines = child, stream, lines

    def answer(self, message: Message, attachment: bytes | None = None) -> tuple[Message, bytes | None]:
        if isinstance(message, InitialSet):
            two_loops.push(self.stream, self.lines)
        return self.child.answer(message, attachment)


def test_the_weight_is_never_more_than_was_confirmed_and_two_kinds_of_children_make_one_round(
    world: World, stream: Served, amy: Child, tmp_path: Path
) -> None:
    """One is fed by a queue, one by a file; what comes into the queue meanwhile is learned from, and not counted."""
    lines = two_loops.rows(write_reviews(tmp_path / "all.csv", 10))
    two_loops.push(stream, lines + lines[: lines.index(b"\n") + 1])  # a batch, and one more
    world.add_child("ben", sentiment(write_reviews(tmp_path / "ben.csv", 20, 3), labels=("negative", "positive"), batch_size=14))
    link = LocalLink({"amy": Pushing(amy, stream, lines), "ben": world.children["ben"]}, debug=True)
    with two_loops.working(stream.home):
        job = world.run(link, rounds=1, training={**two_loops.SGD, "steps": 2, "warmup": 0.0})
    confirmed = {member.child: member.confirmation["tasks"][0]["samples"] for member in job.pen.members(1)}
    assert confirmed == {"amy": BATCH, "ben": 14}, "whole batches"
    fed, filed = updates(world, 1)
    assert (fed.samples, fed.applied) == ({"sentiment": BATCH}, {"sentiment": 2 * BATCH})
    assert (filed.samples, filed.applied) == ({"sentiment": 14}, {"sentiment": 28})
    assert job.ledger.version("tiny").weights == {"amy": pytest.approx(1 / 3), "ben": pytest.approx(2 / 3)}
    assert stream.counts("sentiment")["waiting"] == 1


class Crashing:
    """A child whose process is killed in a round: at first its turn was played and nothing of it written down; then it is back."""

    def __init__(self, world: World, stream: Served, kill_server: bool) -> None:
        self.world, self.stream, self.kill_server, self.updates = world, stream, kill_server, list[Update]()

    def answer(self, message: Message, attachment: bytes | None = None) -> tuple[Message, bytes | None]:
        if not isinstance(message, InitialSet):
            return self.world.children["amy"].answer(message, attachment)
        killer = threading.Thread(target=self._kill)
        if self.kill_server and not self.updates:
            killer.start()
        child = self.world.children["amy"]
        if not self.updates:
            Player(child.home, "reviews", SystemClock(), 60.0).play(message, self.world.blobs.path(message.base.digest))
        for _ in range(2):  # the second answer is of yet another process
            child = two_loops.fed_child(self.world, "amy", self.stream.home)
            answer, bytes_ = child.answer(message, attachment)
            assert isinstance(answer, Update), answer
            self.updates.append(answer)
        if self.kill_server:
            killer.join(60)
        return answer, bytes_

    def _kill(self) -> None:
        self.stream.wait("the first step", lambda: (self.stream.call("GET", "rounds/turn") or {}).get("made", 0) >= 1)
        self.stream.kill()
        self.stream.start()


@pytest.mark.slow
def test_whoever_is_killed_the_update_is_the_same_and_each_sample_counts_once(tmp_path: Path) -> None:
    digests = {}
    for how in ("calm", "killed"):
        folder = tmp_path / how
        world = make_world(folder)
        home = two_loops.stream_at(folder / "children" / "amy" / "streams" / "reviews", world, two_loops.declared(BATCH))
        with served(home) as stream:
            two_loops.fed_child(world, "amy", home)
            two_loops.push(stream, two_loops.rows(write_reviews(folder / "all.csv", 40)))
            crashing = Crashing(world, stream, kill_server=how == "killed")
            with two_loops.working(home):
                world.run(LocalLink({"amy": crashing}, debug=True), rounds=1, training={**two_loops.SGD, "steps": 3, "warmup": 0.0})
            assert len({update.digest for update in crashing.updates}) == 1
            assert crashing.updates[0].samples == {"sentiment": 3 * BATCH}
            counts = stream.counts("sentiment")
            assert counts["applied"] == 3 * BATCH
            assert counts["pushed"] == counts["applied"] + counts["waiting"] + counts["leased"] + counts["submitted"]
        digests[how] = crashing.updates[0].digest
    assert digests["calm"] == digests["killed"]


def test_what_cannot_be_played_is_said_and_leaves_the_samples_where_they_are(
    world: World, stream: Served, amy: Child, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No sample; no worker; a rule that corrects gradients; a stream that nobody serves; a task of a file beside it."""
    training = {**two_loops.SGD, "steps": 1, "warmup": 0.0}
    nobody = {"wait_seconds": 0.1, "confirm_seconds": 5.0}

    def refused(**spec: Any) -> str:
        with pytest.raises(DeadlineExceeded):
            world.run(rounds=1, training=training, children=nobody, **spec)
        job = world.ledger.open_jobs()[0]
        reader = world.ledger.reader(job.id)
        found = " ".join(f"{one.reason} {one.detail}" for one in [*reader.members(1), *reader.refusals(1)])
        world.ledger.set_job_state(job.id, "aborted")
        return found

    assert "no_samples" in refused()
    lines = two_loops.rows(write_reviews(tmp_path / "all.csv", 10))
    two_loops.push(stream, lines)
    amy.configure(amy.settings.model_copy(update={"stream_seconds": 0.5}))
    assert "should have applied a batch in 0.5 s, found none: 0.5 s were over" in refused()
    assert "should correct each gradient, found a child that learns from a stream" in refused(rule="scaffold")
    amy.registry.add(sentiment(tmp_path / "all.csv", name="other"))
    assert "no_samples" in refused()
    assert "should all come from files, or all through one stream, found files, stream reviews" in caplog.text
    amy.registry.remove("other")
    assert stream.counts("sentiment")["waiting"] == BATCH
    stream.stop()
    assert "no_samples" in refused()
    assert "should be told of by its stream" in caplog.text


def test_heads_and_scores_of_a_child_that_is_fed_by_a_queue(world: World, tmp_path: Path) -> None:
    """Its heads come into its private state, so that predictions find them; held-out rows of the stream are its validation."""
    held = two_loops.rows(write_reviews(tmp_path / "held.csv", 20, 5)).decode()
    folder = tmp_path / "children" / "amy" / "streams" / "reviews"
    home = two_loops.stream_at(folder, world, two_loops.declared(BATCH), rows={"sentiment": held})
    with served(home) as stream:
        amy = two_loops.fed_child(world, "amy", home)
        two_loops.push(stream, two_loops.rows(write_reviews(tmp_path / "all.csv", 40)))
        with two_loops.working(home):
            job = world.run(rounds=2, training={**two_loops.SGD, "steps": 2, "warmup": 0.0})
        reports = [Report.of_table(row.report) for number in (1, 2) for row in job.pen.reports(number)]
        assert [[(score.task, score.split, score.samples) for score in report.scores] for report in reports] == [
            [("sentiment", "validation", 14)],
            [("sentiment", "validation", 14)],
        ]
        learner = Learner(home.spec, home.encoder)
        FileReader(home.store).read({name: p.detach() for name, p in learner.parameters().items()})
    private = amy.store("tiny").newest()
    for name, value in learner.heads["sentiment"].state_dict().items():
        np.testing.assert_array_equal(private.tensors[f"sentiment/head/{name}"], value.numpy())
    predictor = open_predictor(amy.home, amy.settings, amy.registry.get("sentiment"))
    assert predictor.answer(["the food was good"])[0]["label"] in ("negative", "positive")
