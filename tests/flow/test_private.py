"""Tensors of the encoder that stay at each site: trained there, kept there, never sent (FedBN and its kind)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from child.predict import open_predictor
from child.settings import ChildSettings
from tasks import encoders
from tasks.specs import EncoderSpec, Module, TaskSpec
from tests.support.world import World, make_world, sentiment, write_reviews
from trunkline.errors import SpecError
from trunkline.messages import Update
from trunkline.sets import SetFile

torch.set_num_threads(1)

NORMED = '''"""A perceptron with batch normalisation."""

from torch import Tensor, nn


class Normed(nn.Module):
    """(B, 4) to (B, hidden)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.layers = nn.Sequential(nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, hidden))

    def forward(self, features: Tensor) -> Tensor:
        return self.layers(features)
'''

TRAINING = {"steps": 6, "learning_rate": 1e-2, "head_learning_rate": 1e-2}


def world_of(folder: Path, private: tuple[str, ...] = ("norms",)) -> World:
    """Two children whose samples lie apart."""
    modules = folder / "modules"
    modules.mkdir()
    (modules / "normed.py").write_text(NORMED, encoding="utf-8")
    source = Module(path=f"{modules / 'normed.py'}:Normed", options={"hidden": 8}, seed=1)
    spec = EncoderSpec(name="sensor", type="sensor", shape=(4,), source=source, private=private)
    world = make_world(folder, spec)
    for seed, name in enumerate(("amy", "ben")):
        rng = np.random.default_rng(seed)
        rows = [
            [*(rng.standard_normal(4) + 5 * seed).round(3), "ab"[k % 2], ("train", "train", "validation")[k % 3]] for k in range(90)
        ]
        lines = ["x0,x1,x2,x3,label,split", *(",".join(map(str, row)) for row in rows)]
        (folder / f"{name}.csv").write_text("\n".join(lines), encoding="utf-8")
        task = {"name": "alarm", "encoder": "sensor", "head": "single", "data": str(folder / f"{name}.csv"), "label": "label"}
        child = world.add_child(name, TaskSpec.model_validate({**task, "fields": ["x0", "x1", "x2", "x3"], "batch_size": 16}))
        (child.home.modules / "normed.py").write_text(NORMED, encoding="utf-8")
    return world


def kept(world: World, name: str) -> dict[str, np.ndarray]:
    tensors = world.children[name].store("sensor").newest().tensors
    return {key.removeprefix("@body/"): np.array(value) for key, value in tensors.items() if key.startswith("@body/")}


NORM = {f"layers.1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}


def test_what_is_private_is_trained_at_each_site_and_never_sent(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    job = world.run(rounds=3, training=TRAINING, keep_rounds=3)
    for row in job.pen.updates(3):
        with SetFile(world.blobs.path(Update.of_table(row.update).digest)) as sent:
            assert not NORM & set(sent.spec)
    assert not NORM & set(world.current())
    amy, ben = kept(world, "amy"), kept(world, "ben")
    assert set(amy) == set(ben) == NORM
    assert int(amy["layers.1.num_batches_tracked"]) == 18, "over all rounds"
    assert amy["layers.1.num_batches_tracked"].dtype == np.int64
    assert np.abs(amy["layers.1.running_mean"] - ben["layers.1.running_mean"]).max() > 0.1, "their samples lie apart"
    assert not np.array_equal(amy["layers.1.weight"], ben["layers.1.weight"])


def test_without_it_everybody_has_the_same(tmp_path: Path) -> None:
    world = world_of(tmp_path, private=())
    world.run(rounds=1, training=TRAINING)
    assert set(world.current()) >= NORM
    assert kept(world, "amy") == {}


def test_a_child_that_restarts_goes_on_with_its_own(tmp_path: Path) -> None:
    digests = []
    for restarts in (False, True):
        folder = tmp_path / str(restarts)
        folder.mkdir()
        world = world_of(folder)
        for _ in range(2):
            world.run(rounds=1, training=TRAINING)
            if restarts:
                for name in list(world.children):
                    world.add_child(name)
        digests.append(world.digest())
    assert digests[0] == digests[1]


def test_one_encoder_after_another_does_not_mix_sites(tmp_path: Path) -> None:
    """A loaded encoder serves many messages: what one of them left in it must not reach the next."""
    world = world_of(tmp_path)
    world.run(rounds=1, training=TRAINING)
    store = world.children["amy"].store("sensor")
    encoder = world.children["amy"].site.encoder(world.encoder)
    encoder.load_private({})
    begun = encoder.private_tensors()
    fresh = encoders.load(tmp_path / "encoder", (tmp_path / "modules",)).private_tensors()
    assert all(np.array_equal(begun[name], fresh[name]) for name in NORM)
    assert not np.array_equal(begun["layers.1.weight"], store.newest().tensors["@body/layers.1.weight"])


def test_predictions_use_the_site_s_own(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.run(rounds=2, training=TRAINING)
    child = world.children["ben"]
    found = open_predictor(child.home, ChildSettings(), child.registry.get("alarm"), encoder="sensor")
    mine = kept(world, "ben")
    assert all(np.array_equal(found.encoder.private_tensors()[name], mine[name]) for name in NORM)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"private": ["*nothing*"]}, "`private` should match parameters, found none"),
        ({"private": ["*"]}, "should leave something to share"),
        ({"private": ["*LayerNorm*"], "freeze": ["*LayerNorm*"]}, "`private` should leave out what is frozen"),
    ],
)
def test_declarations_that_cannot_be(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        make_world(tmp_path, **changes)


def test_norms_of_a_text_encoder_stay_and_frozen_ones_are_left_out(tmp_path: Path) -> None:
    world = make_world(tmp_path, private=["norms"], freeze=["embeddings"])
    world.add_child("amy", sentiment(write_reviews(tmp_path / "amy.csv", 40, 1)))
    world.run(rounds=1)
    names = set(world.current())
    assert names
    assert not any("LayerNorm" in name or "embeddings" in name for name in names)
    mine = world.children["amy"].store("tiny").newest().tensors
    assert {key for key in mine if key.startswith("@body/")} >= {"@body/encoder.layer.0.attention.output.LayerNorm.weight"}
    assert not any("embeddings" in key for key in mine)
