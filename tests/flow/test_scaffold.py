"""SCAFFOLD over a local link with real children, against a plain script of the paper."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from master.jobs import JobSpec
from master.local import LocalLink
from master.rounds import play as play_round
from tests.flow.test_oracles import SGD, fresh, world_of
from tests.support import plain, plain_scaffold
from tests.support.world import World
from trunkline.errors import Reason
from trunkline.messages import Confirmation, Message

torch.set_num_threads(1)

TRAINING = {**SGD, "steps": 3, "learning_rate": 0.05}
COUNTS = {"amy": 40, "ben": 60, "cid": 30}
SIT_OUT = {1: "cid"}


def play(world: World, *, restarts: bool = False) -> None:
    """Four rounds, one child missing in the second; with `restarts` everybody is opened anew between the rounds."""
    spec = {"rounds": 4, "rule": "scaffold", "training": TRAINING, "seed": 3}
    job = world.play(**spec)
    for number in range(1, 5):
        if restarts:
            for name in list(world.children):
                world.add_child(name)
            job = world.play(**spec)
        there = {name: child for name, child in world.children.items() if SIT_OUT.get(number - 1) != name}
        play_round(replace(job, link=LocalLink(there, debug=True)), number)
    job.pen.finish("finished", "done")


def test_it_equals_the_plain_script(tmp_path: Path) -> None:
    world = world_of(tmp_path, COUNTS)
    play(world)

    encoder = fresh(world)
    children = []
    for child in world.children.values():
        specs = [child.registry.get("sentiment")]
        table = child.site.tasks(encoder, specs, None)["sentiment"].table
        head = child.site.tasks(encoder, specs, JobSpec(encoder="tiny", seed=3).plan(1))["sentiment"].head
        children.append(plain.Child("sentiment", table, head, batch=8))
    names = list(world.children)
    sit_out = {number: names.index(name) for number, name in SIT_OUT.items()}
    x, c = plain_scaffold.rounds(encoder, children, count=4, steps=3, rate=0.05, head_rate=0.1, seed=3, sit_out=sit_out)
    found = world.current()
    for name, tensor in x.items():
        np.testing.assert_allclose(found[name], tensor, rtol=1e-4, atol=2e-6, err_msg=name)
    last = world.ledger.reader(world.ledger.jobs()[-1].id).rounds()[-1]
    assert last.rule_state is not None
    assert last.notes is not None
    assert last.notes["state"]["children"] == ["amy", "ben", "cid"]
    with world.blobs.open_set(last.rule_state) as state:
        for name, tensor in c.items():
            np.testing.assert_allclose(state.read(f"c/{name}"), tensor, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_children_and_master_that_restart_come_to_the_same_bits(tmp_path: Path) -> None:
    """T-40: the variates are kept at the child with its heads and at the master with its rounds."""
    digests = []
    for restarts in (False, True):
        folder = tmp_path / str(restarts)
        folder.mkdir()
        world = world_of(folder, COUNTS)
        play(world, restarts=restarts)
        digests.append(world.digest())
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_another_job_begins_with_variates_of_zero(tmp_path: Path) -> None:
    world = world_of(tmp_path, {"amy": 40, "ben": 60})
    world.run(rounds=2, rule="scaffold", training=TRAINING)
    kept = world.children["amy"].store("tiny").newest()
    assert any(name.startswith("@control/") for name in kept.tensors)
    world.run(rounds=1, rule="mean", training=TRAINING)
    kept = world.children["amy"].store("tiny").newest()
    assert not any(name.startswith("@control/") for name in kept.tensors), "and what is of no use is not kept"


class Older:
    """A child that speaks only the first wire version."""

    def __init__(self, child: object) -> None:
        self.child = child

    def answer(self, message: Message, attachment: bytes | None = None) -> tuple[Message, bytes | None]:
        answer, more = self.child.answer(message, attachment)  # type: ignore[attr-defined]
        return (answer.model_copy(update={"speaks": (1, 1)}) if isinstance(answer, Confirmation) else answer), more


def test_a_child_that_is_too_old_for_it_is_refused(tmp_path: Path) -> None:
    world = world_of(tmp_path, {"amy": 40, "ben": 60})
    job = world.run(
        LocalLink({"amy": world.children["amy"], "ben": Older(world.children["ben"])}), rounds=1, rule="scaffold", training=TRAINING
    )
    assert [(one.child, one.state, one.reason) for one in job.pen.members(1)] == [
        ("amy", "member", None),
        ("ben", "refused", Reason.WIRE),
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "`training.optimizer` should be sgd, found adamw"),
        ({"training": {**SGD, "warmup": 0.1}}, "`training.warmup` should be 0, found 0.1"),
        ({"training": {**SGD, "decay": "linear"}}, "`training.decay` should be none, found linear"),
        ({"training": {**SGD, "clip_norm": 1.0}}, "`training.clip_norm` should be 0, found 1.0"),
        ({"training": SGD, "transfer": "inline"}, "`transfer` should be blob, found inline"),
    ],
)
def test_jobs_that_cannot_be(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        JobSpec.model_validate({"encoder": "a", "rule": "scaffold"} | change)


def test_a_child_that_keeps_one_set_keeps_the_variate_beside_it(tmp_path: Path) -> None:
    """Both come with the message, one after the other: the second must not push the first out."""
    world = world_of(tmp_path, {"amy": 40, "ben": 60})
    for child in world.children.values():
        child.configure(child.settings.model_copy(update={"keep_sets": 1}))
    play = world.run(rounds=2, rule="scaffold", training=TRAINING, report=(), final_report=())
    assert [len(play.pen.updates(number)) for number in (1, 2)] == [2, 2]
