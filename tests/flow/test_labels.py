"""Labels are whatever a site calls them: a saved head goes with the labels it was trained for, and with no others."""

from pathlib import Path

import pytest
import torch

from child.predict import open_predictor
from child.settings import ChildSettings
from child.train import load_heads
from tests.support.world import World, make_world, sentiment, write_reviews

torch.set_num_threads(1)


def relabel(world: World, *labels: str) -> None:
    """Amy's reviews, the same but for what their two labels are called."""
    path = write_reviews(world.folder / "amy.csv", 40)
    text = path.read_text(encoding="utf-8").replace("negative", labels[0]).replace("positive", labels[1])
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Amy has a head for the labels `x|y` and `z`."""
    world = make_world(tmp_path)
    world.add_child("amy", sentiment(tmp_path / "amy.csv"))
    relabel(world, "x|y", "z")
    world.run(rounds=1)
    return world


def saved_and_loaded(world: World) -> tuple[torch.Tensor, torch.Tensor]:
    """The head that is kept, and the one that the next round starts from."""
    amy = world.children["amy"]
    private = amy.store("tiny").newest()
    tasks = amy.site.tasks(amy.site.encoder(world.encoder), [amy.registry.get("sentiment")], None)
    load_heads(tasks, private)
    kept = {name: torch.from_numpy(array) for name, array in private.under("sentiment/head/").items()}
    loaded = tasks["sentiment"].head.state_dict()
    assert set(kept) == set(loaded)
    return torch.cat([kept[name].flatten() for name in kept]), torch.cat([loaded[name].flatten() for name in kept])


def test_a_head_goes_on_where_the_labels_are_the_same(world: World) -> None:
    assert torch.equal(*saved_and_loaded(world))


def test_a_head_of_other_labels_that_read_alike_is_not_taken_for_its_own(world: World) -> None:
    relabel(world, "x", "y|z")
    assert not torch.equal(*saved_and_loaded(world))


def test_predictions_are_told_in_the_labels_that_the_head_was_trained_for(world: World) -> None:
    relabel(world, "cold", "warm")
    amy = world.children["amy"]
    assert open_predictor(amy.home, ChildSettings(), amy.registry.get("sentiment")).labels == ("x|y", "z")
