"""Every codec over the local link, with real children: both sides hold the same bits, and what was left out survives a kill."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from child.handlers import Child
from child.state import Private, PrivateStore
from master.local import LocalLink
from master.phases.play import Play
from master.rounds import play
from master.rules import Contribution, Parameters, find_rule
from tests.support import plain_codecs
from tests.support.wires import random_set, reader
from tests.support.world import World, make_world, sentiment, write_reviews
from trunkline import codecs
from trunkline.errors import Reason
from trunkline.files import sha256_file
from trunkline.messages import Failure, InitialSet, Message, ReportRequest, Update
from trunkline.sets import SetFile, write_set
from trunkline.tensors import TensorSpec

torch.set_num_threads(1)

CODECS = ("float32", "bf16", "int8", "int4:group=32", "topk:share=0.05", "lowrank:rank=2")
LOSSY = CODECS[1:]
QUICK = "int8"
"""The one that is played each time; the others are marked as slow."""
TRAINING = {"steps": 2, "learning_rate": 3e-3}


def make(folder: Path, *names: str) -> World:
    folder.mkdir(exist_ok=True)
    world = make_world(folder)
    for seed, name in enumerate(names or ("amy", "ben")):
        world.add_child(name, sentiment(write_reviews(folder / f"{name}.csv", 40 + 10 * seed, seed)))
    return world


class Tapped:
    """A child, and what it was asked; `before` may answer in its place."""

    def __init__(self, world: World, name: str, before: Callable[[Message], Message | None] = lambda message: None) -> None:
        self.world, self.name, self.before = world, name, before
        self.asked: list[Message] = []

    def answer(self, message: Message, attachment: bytes | None = None) -> tuple[Message, bytes | None]:
        self.asked.append(message)
        instead = self.before(message)
        return (instead, None) if instead is not None else self.world.children[self.name].answer(message, attachment)


def link(world: World, **before: Callable[[Message], Message | None]) -> tuple[LocalLink, dict[str, Tapped]]:
    children = {name: Tapped(world, name, before.get(name, lambda message: None)) for name in world.children}
    return LocalLink(children, debug=True), children


def owed(child: Child) -> dict[str, bytes]:
    """What a child owes, by the name of the tensor."""
    store = PrivateStore(child.home.private / "tiny")
    generation = store.pending or store.committed
    assert generation is not None
    if generation.owed is None:
        return {}
    with SetFile(store.folder / generation.owed) as file:
        return {name: file.read(name).tobytes() for name in file}


def cells(codecs: tuple[str, ...]) -> list[Any]:
    return [pytest.param(word, marks=() if word == QUICK else pytest.mark.slow) for word in codecs]


@pytest.mark.parametrize("codec", cells(CODECS))
def test_master_and_children_hold_the_same_sets(tmp_path: Path, codec: str) -> None:
    world = make(tmp_path)
    taps, children = link(world)
    job = world.run(taps, rounds=2, codec=codec, training=TRAINING)
    for child in world.children.values():
        assert sha256_file(child.home.sets / world.digest()) == world.digest()
    for tapped in children.values():
        deltas = [message.delta for message in tapped.asked if isinstance(message, ReportRequest)]
        assert all((delta is None) == (codec == "float32") for delta in deltas), "who holds the base gets the difference"
    shared = world.blobs.size(world.digest())
    most = {"float32": 1.0, "bf16": 0.55, "int8": 0.4, "int4": 0.35, "topk": 0.25, "lowrank": 0.4}[codec.partition(":")[0]]
    for row in job.pen.updates(2):
        assert row.size <= most * shared + 100, "the header counts in a set so small"


@pytest.mark.parametrize("codec", cells(LOSSY))
def test_a_codec_is_applied_once_up_and_once_down(tmp_path: Path, codec: str) -> None:
    """T-48: the target is what the plain reading of the difference says, and what it should be is the mean of the plain updates."""
    world = make(tmp_path)
    job = world.run(rounds=1, codec=codec, training=TRAINING)
    (round_,) = job.pen.rounds()
    version = world.ledger.version("tiny")
    assert version.delta is not None and version.weights is not None
    base, target = (world.blobs.path(digest) for digest in (round_.base, version.digest))
    updates = {row.child: plain_codecs.decode(world.blobs.path(row.digest), base, codec) for row in job.pen.updates(1)}
    published = plain_codecs.decode(world.blobs.path(version.delta.digest), base, codec)
    for name, (_, kind, values) in plain_codecs.read(target).items():
        assert published[name] == values
        if kind == "F32":
            wanted = sum(np.multiply(updates[child][name], share) for child, share in version.weights.items())
            before = np.array(plain_codecs.read(base)[name][2])
            moved = np.linalg.norm(wanted - before)
            assert np.linalg.norm(wanted - np.array(values)) <= {"bf16": 0.01, "int8": 0.03, "int4": 0.3}.get(
                codec.partition(":")[0], 1.0
            ) * moved + 1e-6 * np.linalg.norm(before)


def test_products_of_different_ranks_are_fused_as_products(tmp_path: Path) -> None:
    """T-20: the mean of `B A`, whatever the ranks, and not the product of the means of the factors (Wang et al., 2024)."""
    rng, spec = np.random.default_rng(4), {"w": TensorSpec((30, 20))}
    write_set(tmp_path / "base", random_set(0, spec), spec)
    with SetFile(tmp_path / "base") as base:
        moved, decoders = [], []
        for rank in (1, 2, 7):
            a, b = rng.normal(size=(rank, 20)).astype(np.float32), rng.normal(size=(30, rank)).astype(np.float32)
            codecs.encode(tmp_path / f"{rank}", "float32", base, reader(base.tensors()), {"w": (a, b)})
            decoders.append(codecs.Decoder(SetFile(tmp_path / f"{rank}"), "float32", base))
            moved.append(b.astype(np.float64) @ a.astype(np.float64))
        parameters = Parameters(base.spec, base.read)
        updates = [
            Contribution(f"c{at}", {"t": 1}, {"t": 1}, Parameters(base.spec, decoder.read)) for at, decoder in enumerate(decoders)
        ]
        fused = find_rule("mean").fuse(parameters, updates).target(None).read("w", slice(0, 30))
        np.testing.assert_allclose(fused, base.read("w") + np.mean(moved, axis=0), rtol=1e-6, atol=1e-6)


# -- what is owed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", cells(("int8", "topk:share=0.05")))
def test_a_child_that_is_killed_goes_on_with_what_it_owes(tmp_path: Path, codec: str) -> None:
    """Given kills between rounds, before the private state is saved and after it, Then the job ends as an undisturbed one."""
    calm, troubled = make(tmp_path / "calm"), make(tmp_path / "troubled")
    calm.run(rounds=3, codec=codec, training=TRAINING)
    asked: list[InitialSet] = []

    def before(message: Message) -> None:
        amy = troubled.add_child("amy")  # the same folder, opened anew
        if not isinstance(message, InitialSet) or message.round == 1:
            return
        if message.round == 2:  # killed when the update is written and the private state is not

            class Killed(BaseException):
                pass

            def killed(*_: object, **__: object) -> None:
                raise Killed

            amy.store("tiny").save = killed  # type: ignore[method-assign, assignment]
            with pytest.raises(Killed):
                amy.answer(message)
        else:  # killed when both are
            asked.append(message)
            amy.answer(message)
        troubled.add_child("amy")

    taps, _ = link(troubled, amy=before)
    troubled.run(taps, rounds=3, codec=codec, training=TRAINING)
    assert asked
    assert troubled.digest() == calm.digest()
    assert owed(troubled.children["amy"]) == owed(calm.children["amy"]) != {}


def test_what_is_owed_is_in_the_next_update_and_in_that_of_a_round_played_again(tmp_path: Path) -> None:
    """Given one child with what it owes and one without, When both train alike, Then what arrives and is owed differ by it."""
    world = make(tmp_path, "amy")
    taps, children = link(world)
    job = world.play(taps, rounds=2, codec="int8", training=TRAINING)
    play(job, 1)
    store = PrivateStore(world.children["amy"].home.private / "tiny")
    assert store.pending is None and store.committed is not None
    shutil.copytree(world.children["amy"].home.folder, tmp_path / "copy")
    play(job, 2)
    second = next(message for message in children["amy"].asked if isinstance(message, InitialSet) and message.round == 2)
    first, _ = world.children["amy"].answer(second)

    def again() -> tuple[Update, dict[str, bytes]]:
        update, _ = world.add_child("amy").answer(second)
        assert isinstance(update, Update)
        return update, owed(world.children["amy"])

    def put_back() -> PrivateStore:
        shutil.rmtree(world.children["amy"].home.folder)
        shutil.copytree(tmp_path / "copy", world.children["amy"].home.folder)
        return PrivateStore(world.children["amy"].home.private / "tiny")

    put_back()
    before = owed(world.children["amy"])
    update, after = again()
    assert isinstance(first, Update) and first.digest == update.digest
    store = put_back()
    assert store.committed is not None
    store.save(store.committed.key, store.load(), store.committed.update)
    store.commit()
    other, rest = again()
    assert other.digest != update.digest
    base = world.blobs.path(second.base.digest)
    mine, theirs = (plain_codecs.decode(world.blobs.path(one.digest), base, "int8") for one in (update, other))
    for name in before:
        was, now, without = (np.frombuffer(table[name], np.float32) for table in (before, after, rest))
        np.testing.assert_allclose(np.array(mine[name]) + now - was, np.array(theirs[name]) + without, rtol=0, atol=1e-6)
    assert max(np.abs(np.frombuffer(data, np.float32)).max() for data in before.values()) > 1e-5


def test_another_job_owes_nothing_and_float32_never_does(tmp_path: Path) -> None:
    world = make(tmp_path, "amy")
    world.run(rounds=1, codec="topk", training=TRAINING)
    store = PrivateStore(world.children["amy"].home.private / "tiny")
    assert store.committed is not None
    with store.owed(store.committed.key[0]) as mine, store.owed("another-1") as other:
        assert mine is not None and mine.spec and other is None
    assert store.committed.owed is not None
    assert (store.folder / store.committed.owed).stat().st_mode & 0o077 == 0
    world.run(rounds=3, codec="topk", training=TRAINING)
    assert len(list(store.folder.glob("owed-*"))) == 1 and (store.folder / "spare").stat().st_mode & 0o077 == 0
    world.run(rounds=2, training=TRAINING)
    assert owed(world.children["amy"]) == {}
    assert not list(store.folder.glob("owed-*")) and not (store.folder / "spare").exists()


@pytest.mark.parametrize("harm", ["gone", "torn"])
def test_what_a_power_cut_took_is_not_owed(tmp_path: Path, harm: str) -> None:
    store, key = PrivateStore(tmp_path / "private"), ("nightly-1", 1, "0" * 64)
    rest = {"w": np.ones((3, 4), np.float32)}
    with store.owing(key, {"w": TensorSpec((3, 4))}) as left:
        assert left is not None
        left("w", slice(0, 3), rest["w"])
    store.save(key, Private({"t/head": np.zeros(2, np.float32)}), {}, owes=True)
    store.commit()
    with store.owed("nightly-1") as found:
        assert found is not None and found.read("w", slice(0, 3)).tolist() == rest["w"].tolist()
    (path,) = store.folder.glob("owed-*")
    path.unlink() if harm == "gone" else path.write_bytes(path.read_bytes()[:60])
    store = PrivateStore(tmp_path / "private")
    with store.owed("nightly-1") as found:
        assert found is None
    assert store.load().tensors.keys() == {"t/head"}


def test_heads_go_over_to_another_master_and_its_jobs_begin_anew(tmp_path: Path) -> None:
    """Given a child whose new master calls a job as its old one did, Then it trains for it, and owes it nothing."""
    key = ("nightly-1", 1, "0" * 64)
    store = PrivateStore(tmp_path, "old")
    with store.owing(key, {"w": TensorSpec((3, 4))}) as left:
        assert left is not None
        left("w", slice(0, 3), np.ones((3, 4), np.float32))
    notes = {"seed": 3, "moments": "nightly-1", "control": "nightly-1"}
    store.save(key, Private({"t/head": np.ones(2, np.float32)}, notes), {"steps": 4}, owes=True)
    assert PrivateStore(tmp_path, "old").sent(key) == {"steps": 4}
    assert PrivateStore(tmp_path).sent(key) == {"steps": 4}, "who only looks changes nothing"
    for _ in range(2):
        store = PrivateStore(tmp_path, "new")
        assert store.sent(key) is None
        assert store.load().tensors["t/head"].tolist() == [1, 1] and store.load().notes == {"seed": 3}
        with store.owed("nightly-1") as found:
            assert found is None
    assert not list(tmp_path.glob("owed-*"))


@pytest.mark.slow
def test_an_update_that_is_refused_leaves_the_next_round_sound(tmp_path: Path) -> None:
    """Given a child whose second update is refused, Then that movement is lost, and it owes no more than one round's rest."""
    world = make(tmp_path)
    sizes: list[float] = []

    def before(message: Message) -> Message | None:
        if isinstance(message, InitialSet) and message.round == 2:
            answer, _ = world.children["amy"].answer(message)
            assert isinstance(answer, Update)
            return answer.model_copy(update={"base": "0" * 64})
        if isinstance(message, ReportRequest):
            values = [np.frombuffer(data, np.float32) for data in owed(world.children["amy"]).values()]
            sizes.append(float(np.sqrt(sum((part.astype(float) ** 2).sum() for part in values))))
        return None

    taps, _ = link(world, amy=before)
    job = world.run(taps, rounds=4, codec="int8", training=TRAINING, children={"least_updates": 1})
    assert [row.child for row in job.pen.updates(2)] == ["ben"]
    assert {refusal.reason for refusal in job.pen.refusals(2)} == {"base"}
    assert max(sizes) < 3 * sizes[0]


# -- who holds what ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_child_that_missed_a_round_gets_the_whole_set(tmp_path: Path) -> None:
    world = make(tmp_path)

    def away(message: Message) -> Message | None:
        missed = getattr(message, "round", 0) in (2, 3)
        return Failure(child="amy", reason=Reason.SILENT, detail="away") if missed else None

    taps, children = link(world, amy=away)
    job: Play = world.run(taps, rounds=4, codec="int8", training=TRAINING, children={"least": 1})
    assert [row.child for row in job.pen.updates(4)] == ["amy", "ben"]
    (initial,) = [message for message in children["amy"].asked if isinstance(message, InitialSet) and message.round == 4]
    assert initial.delta is None, "what it holds is no base of this version's difference"
    for child in world.children.values():
        assert sha256_file(child.home.sets / world.digest()) == world.digest()
