"""Real children with a real (tiny) encoder over the local link: what is private stays, what is repeated is not trained again."""

from pathlib import Path

import numpy as np
import pytest
import torch

from child.handlers import Child
from child.state import PrivateStore
from master.local import LocalLink
from master.rounds import play, run
from tests.support.world import World, make_world, sentiment, write_reviews
from trunkline.errors import DeadlineExceeded, Reason, RefusedValue
from trunkline.files import sha256_file
from trunkline.messages import InitialSet, Message, Report, Update
from trunkline.sets import SetFile

torch.set_num_threads(1)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = make_world(tmp_path)
    for seed, name in enumerate(("amy", "ben", "cid")):
        world.add_child(name, sentiment(write_reviews(tmp_path / f"{name}.csv", 60 + 10 * seed, seed)))
    return world


def test_three_children_learn_one_encoder(world: World) -> None:
    before = world.digest()
    job = world.run(rounds=6, training={"steps": 12, "learning_rate": 3e-3, "head_learning_rate": 3e-2})
    assert world.digest() != before
    reports = [Report.of_table(row.report) for row in job.pen.reports(6)]
    test = [score.value for report in reports for score in report.scores if score.split == "test"]
    assert len(test) == 3
    assert np.mean(test) > 0.85, "the label can be read off one word"
    weights = world.ledger.version("tiny").weights
    assert weights["amy"] < weights["ben"] < weights["cid"], "each counts by its samples"


def test_heads_never_leave_their_site(world: World) -> None:
    world.run(rounds=2)
    shared = set(world.current())
    for row in world.ledger.reader(world.ledger.jobs()[0].id).updates(1):
        with SetFile(world.blobs.path(row.digest)) as wire:
            assert set(wire.spec) == shared
    heads = [array.tobytes() for array in PrivateStore(world.children["amy"].home.private / "tiny").load().tensors.values()]
    stored = [world.blobs.path(digest).read_bytes() for digest in world.blobs.digests()]
    assert not any(head in blob for head in heads if len(head) > 64 for blob in stored)


def test_two_runs_give_the_same_bits(tmp_path: Path) -> None:
    digests = set()
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        world = make_world(folder)
        for seed, name in enumerate(("amy", "ben")):
            world.add_child(name, sentiment(write_reviews(folder / f"{name}.csv", 60, seed)))
        world.run(rounds=3)
        digests.add(world.digest())
    assert len(digests) == 1


class Counting:
    """Counts how often a child trains, by watching what it is asked and whether its answer is new."""

    def __init__(self, child: Child) -> None:
        self.child, self.updates = child, []

    def answer(self, message: Message, attachment: bytes | None = None) -> tuple[Message, bytes | None]:
        reply, enclosed = self.child.answer(message, attachment)
        if isinstance(reply, Update):
            self.updates.append(reply)
        return reply, enclosed


def test_a_repeated_initial_set_sends_the_stored_update_again(world: World) -> None:
    messages: list[InitialSet] = []

    class Recording(Counting):
        def answer(self, message: Message, attachment: bytes | None = None) -> tuple[Message, bytes | None]:
            if isinstance(message, InitialSet):
                messages.append(message)
            return super().answer(message, attachment)

    amy = Recording(world.children["amy"])
    job = world.play(LocalLink({"amy": amy}, debug=True))
    play(job, 1)
    restarted = world.add_child("amy")
    again, _ = restarted.answer(messages[0])
    assert again == amy.updates[0], "the same update, seconds and all: nothing was trained again"


def test_an_update_that_a_power_cut_ate_is_trained_again_and_is_the_same(world: World) -> None:
    messages: list[InitialSet] = []
    lost: list[str] = []

    class Cut(Counting):
        def answer(self, message: Message, attachment: bytes | None = None) -> tuple[Message, bytes | None]:
            if isinstance(message, InitialSet) and not messages:
                messages.append(message)
                self.child.answer(message, attachment)  # the answer is lost with the machine, and what was not flushed with it
                (update,) = self.child.home.updates.glob("[0-9a-f]*")
                update.write_bytes(bytes(update.stat().st_size))
                lost.append(update.name)
            return super().answer(message, attachment)

    calm = world.children["ben"]
    amy = Cut(world.children["amy"])
    job = world.play(LocalLink({"amy": amy, "ben": calm}, debug=True))
    play(job, 1)
    assert job.pen.last_round().state == "closed"  # type: ignore[union-attr]
    assert {row.child for row in job.pen.updates(1)} == {"amy", "ben"}
    stored = world.children["amy"].home.updates / amy.updates[0].digest
    assert sha256_file(stored) == amy.updates[0].digest == lost[0], "trained again to the same bytes"


@pytest.mark.parametrize("dies_in", ["instructing", "training", "fusing", "reporting"])
def test_a_master_that_dies_in_any_phase_comes_to_the_same_parameters(tmp_path: Path, dies_in: str) -> None:
    def make(folder: Path) -> World:
        folder.mkdir()
        world = make_world(folder)
        for seed, name in enumerate(("amy", "ben")):
            world.add_child(name, sentiment(write_reviews(folder / f"{name}.csv", 60, seed)))
        return world

    calm, troubled = make(tmp_path / "calm"), make(tmp_path / "troubled")
    calm.run(rounds=2)

    class Power(Exception):
        pass

    job = troubled.play(rounds=2)
    write = type(job.pen).event
    del write
    step = {"instructing": "fix_members", "training": "close_updates", "fusing": "publish", "reporting": "close_round"}[dies_in]
    original = getattr(job.pen, step)

    def cut(number: int, *args: object, **kwargs: object) -> object:
        if number == 2:
            raise Power
        return original(number, *args, **kwargs)

    setattr(job.pen, step, cut)
    with pytest.raises(Power):
        run(job)
    for name in ("amy", "ben"):
        troubled.add_child(name)
    troubled.run(rounds=2)
    assert troubled.digest() == calm.digest()


def test_children_restarted_between_rounds_change_nothing(tmp_path: Path) -> None:
    def make(folder: Path) -> World:
        folder.mkdir()
        world = make_world(folder)
        world.add_child("amy", sentiment(write_reviews(folder / "amy.csv", 60, 0)))
        return world

    calm, troubled = make(tmp_path / "calm"), make(tmp_path / "troubled")
    calm.run(rounds=3)
    for number in (1, 2, 3):
        play(troubled.play(rounds=3), number)
        troubled.add_child("amy")
    assert troubled.digest() == calm.digest()


def test_the_weight_is_what_the_queue_shows_as_applied(world: World) -> None:
    job = world.run(rounds=1, training={"steps": 2})
    update = Update.of_table(job.pen.updates(1)[0].update)
    assert update.applied == {"sentiment": 16}
    assert update.samples == {"sentiment": 16}, "two batches of one epoch hold no sample twice"
    job = world.run(rounds=1, training={"steps": 30})
    update = Update.of_table(job.pen.updates(1)[0].update)
    assert update.applied == {"sentiment": 240}
    assert update.samples == {"sentiment": 42}, "never more than it has"


def test_samples_that_come_while_the_child_runs_are_trained_in_the_next_round(world: World) -> None:
    world.run(rounds=1, training={"steps": 12})
    job = world.play(rounds=1, training={"steps": 12})
    write_reviews(world.folder / "amy.csv", 120)
    run(job)
    first, second = (Update.of_table(world.ledger.reader(one.id).updates(1)[0].update) for one in world.ledger.jobs())
    assert (first.child, first.samples) == ("amy", {"sentiment": 42})
    assert (second.child, second.samples) == ("amy", {"sentiment": 84})


def test_a_canary_in_the_samples_is_found_nowhere_at_the_master(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    canary = "zzcanaryzz"
    world.add_child("amy", sentiment(write_reviews(tmp_path / "amy.csv", 60, 0, canary)))
    frames: list[str] = []

    class Tapped:
        def answer(self, message: Message, attachment: bytes | None = None) -> tuple[Message, bytes | None]:
            reply, enclosed = world.children["amy"].answer(message, attachment)
            frames.append(reply.encode())
            return reply, enclosed

    world.run(LocalLink({"amy": Tapped()}, debug=True), rounds=2)
    assert frames
    assert not any(canary in frame for frame in frames)
    for path in [*(tmp_path / "blobs").rglob("*"), tmp_path / "ledger.sqlite3"]:
        if path.is_file():
            assert canary.encode() not in path.read_bytes()
    assert canary in (tmp_path / "amy.csv").read_text(encoding="utf-8")


def test_an_error_about_samples_does_not_quote_them_to_the_master(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    canary = "zzcanaryzz"
    broken = tmp_path / "amy.csv"
    broken.write_text(f"text,label,split\ngood food,1.5,train\nbad food,{canary},train\n", encoding="utf-8")
    child = world.add_child("amy", sentiment(broken, head="regression"))
    assert canary in child.counted()[1][0], "the site itself is told"
    job = world.play(rounds=1, children={"wait_seconds": 1})
    with pytest.raises(DeadlineExceeded):
        run(job)
    member = job.pen.members(1)[0]
    assert member.reason == "no_samples"
    assert canary not in str(member)


def test_a_task_whose_reader_is_gone_does_not_keep_the_others_from_training(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    good = sentiment(write_reviews(tmp_path / "amy.csv", 60, 0))
    broken = good.model_copy(update={"name": "broken", "reader": "gone.py:rows"})
    child = world.add_child("amy", good, broken)
    counts, problems = child.counted()
    assert [count.task for count in counts] == ["sentiment"] and "gone.py" in problems[0]
    job = world.run(rounds=1)
    member = job.pen.members(1)[0]
    assert member.state == "member" and "gone.py" not in str(member), "the site itself is told"


def test_an_encoder_whose_code_is_not_here_is_refused_late_once_and_then_at_the_instruction(world: World) -> None:
    for child in world.children.values():
        load = child.site.encoder

        def without_code(*_: object) -> None:
            raise RefusedValue(Reason.NO_MODULE, "`network.py` should be here, found none.")

        child.site.encoder = without_code  # type: ignore[method-assign, assignment]
    job = world.play(rounds=1, children={"wait_seconds": 1})
    assert play(job, 1).state == "skipped"
    assert {refusal.reason for refusal in job.pen.refusals(1)} == {"no_module"}
    with pytest.raises(DeadlineExceeded, match=r"refused: amy \(no_module\)"):
        play(job, 2)
    for child in world.children.values():
        child.site.encoder = load  # type: ignore[method-assign]
    assert play(job, 2).state == "closed", "it has come since"


def test_a_bug_at_a_child_is_an_answer_that_tells_nothing_of_its_samples(world: World) -> None:
    child = world.children["amy"]

    def broken(*_: object) -> None:
        raise ValueError("zzcanaryzz")

    child.site.encoder = broken  # type: ignore[method-assign, assignment]
    job = world.play(rounds=1, children={"wait_seconds": 1})
    play(job, 1)
    refusals = {refusal.child: refusal for refusal in job.pen.refusals(1)}
    assert refusals["amy"].reason == "internal"
    assert "ValueError" in refusals["amy"].detail
    assert "zzcanaryzz" not in refusals["amy"].detail


def test_memory_that_runs_out_anywhere_is_an_answer_that_says_so(world: World) -> None:
    """T-26: also where no step is under way: while an encoder is loaded, or a report is made."""
    child = world.children["amy"]

    def full(*_: object) -> None:
        torch.empty(1 << 60, dtype=torch.uint8)

    child.site.encoder = full  # type: ignore[method-assign, assignment]
    job = world.play(rounds=1, children={"wait_seconds": 1})
    play(job, 1)
    assert {refusal.child: refusal.reason for refusal in job.pen.refusals(1)} == {"amy": "memory"}
