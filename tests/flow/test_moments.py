"""Moments of the shared layers that a child keeps from its round to its next."""

from pathlib import Path

import pytest
import torch

from master.link import Outgoing
from master.local import LocalLink
from tests.flow.test_oracles import world_of
from tests.support.world import World
from trunkline.messages import InitialSet, Message

torch.set_num_threads(1)

KEPT = {"moments": "kept", "decay": "linear", "learning_rate": 1e-3, "head_learning_rate": 1e-2}


def world_in(folder: Path, counts: dict[str, int] | None = None) -> World:
    folder.mkdir()
    return world_of(folder, counts or {"amy": 60})


def kept(world: World) -> dict[str, bytes]:
    """Amy's moments."""
    private = world.children["amy"].store("tiny").newest()
    return {name: array.tobytes() for name, array in private.under("@moments/").items()}


class Killed(BaseException):
    """No handler of errors catches it."""


def killed(*_: object, **__: object) -> None:
    raise Killed


def test_rounds_of_one_child_equal_one_long_round_bit_for_bit(tmp_path: Path) -> None:
    """Kept moments are those of a training that was never cut in pieces; fresh ones are not."""
    found = {}
    for name, rounds, changes in (("one", 1, {}), ("three", 3, {}), ("fresh", 3, {"moments": "fresh"})):
        world = world_in(tmp_path / name)
        world.run(rounds=rounds, training={**KEPT, "steps": 12 // rounds, **changes})
        found[name] = world.digest()
    assert found["three"] == found["one"]
    assert found["fresh"] != found["one"]


def test_a_child_that_is_killed_finds_them_as_they_were(tmp_path: Path) -> None:
    """T-40: they are part of the generation, so a kill neither loses them nor has a step counted twice."""
    counts, spec = {"amy": 40, "ben": 60}, {"rounds": 3, "training": {**KEPT, "steps": 4}}
    calm, troubled = world_in(tmp_path / "calm", counts), world_in(tmp_path / "troubled", counts)
    calm.run(**spec)

    class Killing(LocalLink):
        def _ask(self, name: str, outgoing: Outgoing) -> tuple[Message, bytes | None]:
            if name == "amy" and isinstance(outgoing.message, InitialSet):
                amy = troubled.add_child("amy")  # the same folder, opened anew
                if outgoing.message.round == 2:  # killed before the private state is saved
                    amy.store("tiny").save = killed  # type: ignore[method-assign]
                    with pytest.raises(Killed):
                        amy.answer(outgoing.message)
                else:  # and after it
                    amy.answer(outgoing.message)
                troubled.add_child("amy")
            return super()._ask(name, outgoing)

    troubled.run(Killing(troubled.children, debug=True), **spec)
    assert troubled.digest() == calm.digest()
    assert kept(troubled) == kept(calm) != {}


def test_another_job_begins_anew(tmp_path: Path) -> None:
    """Given a job that kept its moments, When another is played, Then it trains as after a job that kept none."""
    digests = []
    for name, first in (("kept", "kept"), ("fresh", "fresh")):
        world = world_in(tmp_path / name)
        world.run(rounds=1, training={**KEPT, "steps": 5, "moments": first})
        assert bool(kept(world)) == (first == "kept")
        world.run(rounds=1, seed=1, training={**KEPT, "steps": 5})
        digests.append(world.digest())
    assert digests[0] == digests[1]


def test_sgd_has_none(tmp_path: Path) -> None:
    world = world_in(tmp_path / "sgd")
    world.run(rounds=2, training={**KEPT, "steps": 3, "optimizer": "sgd"})
    assert kept(world) == {}
