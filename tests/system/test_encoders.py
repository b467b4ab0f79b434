"""What is no text, low-rank products, and each way to train and to send, over real processes: the same as in one process.

One master and two children play one job a kind of encoder or training. Each is compared with the same job over the local link,
whose numbers `tests/flow/test_oracles.py` compares with a plain script; then with what its own mathematics says of it.
"""

import csv
import json
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from child.cli import main as child_main
from child.home import ChildHome
from child.predict import open_predictor
from child.registry import Registry
from child.settings import ChildSettings
from child.state import PrivateStore
from master.blobs import BlobStore
from master.cli import encoder_files
from master.cli import main as admin_main
from tasks.plugins import load
from tasks.specs import Config, EncoderSpec, Lora, Module, TaskSpec
from tests.support import tiny
from tests.support.cluster import Cluster, cluster
from tests.support.world import World, make_world, sentiment, write_reviews
from trunkline.codecs import Decoder
from trunkline.sets import SetFile

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(600)]

torch.set_num_threads(1)

CHILDREN = {"amy": 60, "ben": 80}
TRAINING: Mapping[str, Any] = {"steps": 8, "learning_rate": 2e-3, "head_learning_rate": 2e-2}
FASTER: Mapping[str, Any] = {"steps": 30, "learning_rate": 2e-2, "head_learning_rate": 5e-2}

PERCEPTRON = Path(__file__).parents[2] / "examples" / "vector_encoder" / "encoder.py"
PICTURES = '''"""An encoder of small images."""

from torch import Tensor, nn


class Pictures(nn.Module):
    """Images (B, 1, 6, 6) to vectors (B, hidden)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, hidden))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)
'''


@dataclass(frozen=True)
class Kind:
    """An encoder, what its job says besides, and the task that trains it."""

    source: Mapping[str, Any]
    job: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    task: str = "sentiment"

    @property
    def spec(self) -> dict[str, Any]:
        return {"encoder": None, "rounds": 2, **self.job, "training": {**TRAINING, **self.training}}


TEXT: Mapping[str, Any] = {"type": "text", "max_length": 32}
KINDS = {
    "tiny": Kind(TEXT),
    "low": Kind({**TEXT, "tuning": Lora(rank=4, targets=("*query", "*value"))}),
    "parts": Kind(TEXT, training={"micro_batch": 3}),
    "near": Kind(TEXT, training={"prox": 50.0}),
    "half": Kind(TEXT, {"codec": "bf16"}),
    "quarter": Kind(TEXT, {"codec": "int8", "rule": "adam"}),
    "corrected": Kind(TEXT, {"rule": "scaffold"}, {"optimizer": "sgd", "warmup": 0.0, "clip_norm": 0.0, "learning_rate": 0.05}),
    "sensor": Kind({"type": "sensor", "shape": (4,)}, training=FASTER, task="alarm"),
    "pictures": Kind({"type": "image", "shape": (1, 6, 6)}, training=FASTER, task="bars"),
}


def spec_of(name: str, tokenizer: Path, modules: Path) -> EncoderSpec:
    """:param modules: where the files of modules lie."""
    own = {
        "sensor": Module(path=f"{PERCEPTRON}:Perceptron", options={"width": 4, "hidden": 16}, seed=1),
        "pictures": Module(path=f"{modules / 'pictures.py'}:Pictures", options={"hidden": 16}, seed=1),
    }
    source = own.get(name) or Config(options=tiny.OPTIONS, seed=1, tokenizer=str(tokenizer))
    return EncoderSpec.model_validate({"name": name, "source": source, **KINDS[name].source})


def tasks_of(folder: Path, name: str, count: int, seed: int) -> list[TaskSpec]:
    """A child's three tasks, and their files."""
    rng = random.Random(seed)
    splits = ["train"] * 7 + ["validation"] + ["test"] * 2
    with (alarms := folder / f"{name}-alarms.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["x0", "x1", "x2", "x3", "label", "split"])
        for number in range(count):
            values = [round(rng.gauss(0, 1), 3) for _ in range(4)]
            writer.writerow([*values, "alarm" if values[0] + values[1] > 0 else "calm", splits[number % 10]])
    with (bars := folder / f"{name}-bars.jsonl").open("w", encoding="utf-8") as file:
        for number in range(count):
            upright, place = rng.random() < 0.5, rng.randrange(6)
            image = [[float((column if upright else row) == place) for column in range(6)] for row in range(6)]
            row = {"pixels": image, "label": "upright" if upright else "flat", "split": splits[number % 10]}
            file.write(json.dumps(row) + "\n")
    common = {"head": "single", "label": "label", "batch_size": 8}
    return [
        sentiment(write_reviews(folder / f"{name}.csv", count, seed)),
        TaskSpec.model_validate(
            {"name": "alarm", "encoder": "sensor", "data": str(alarms), "fields": ["x0", "x1", "x2", "x3"], **common}
        ),
        TaskSpec.model_validate({"name": "bars", "encoder": "image", "data": str(bars), "fields": ["pixels"], **common}),
    ]


def give_modules(folder: Path) -> Path:
    """The site's or the admin's own code."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(PERCEPTRON, folder / "encoder.py")
    (folder / "pictures.py").write_text(PICTURES, encoding="utf-8")
    return folder


@dataclass
class Played:
    """What all the jobs came to."""

    made: Cluster
    folder: Path
    tokenizer: Path
    jobs: dict[str, str]

    def current(self, name: str) -> str:
        return self.made.call("GET", f"/v1/admin/encoders/{name}")["current"]["digest"]

    @property
    def blobs(self) -> BlobStore:
        return BlobStore(self.made.folder / "master" / "blobs")

    def tensors(self, name: str, version: int) -> dict[str, np.ndarray[Any, Any]]:
        found = self.made.call("GET", f"/v1/admin/encoders/{name}/versions/{version}")
        with self.blobs.open_set(found["digest"]) as file:
            return {key: np.array(value) for key, value in file.tensors().items()}

    def round(self, name: str, number: int) -> dict[str, Any]:
        return self.made.call("GET", f"/v1/admin/jobs/{self.jobs[name]}/rounds/{number}")

    def here(self, name: str, folder: Path) -> World:
        """The same job in one process."""
        folder.mkdir()
        world = make_world(folder, spec_of(name, self.tokenizer, self.folder / "modules"))
        for seed, (child, count) in enumerate(CHILDREN.items()):
            site = world.add_child(child, *tasks_of(folder, child, count, seed))
            give_modules(site.home.modules)
        spec = KINDS[name].spec
        del spec["encoder"]
        world.run(**spec)
        return world


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    folder = tmp_path_factory.mktemp("encoders")
    with cluster(folder, CHILDREN) as made:
        give_modules(folder / "modules")
        for seed, (name, count) in enumerate(CHILDREN.items()):
            home = ChildHome(folder / name)
            give_modules(home.modules)
            for task in tasks_of(folder, name, count, seed)[1:]:
                Registry(home).add(task)
        for name in KINDS:
            if name != "tiny":  # the cluster made that one
                add_encoder(made, spec_of(name, folder / "tokenizer", folder / "modules"))
        children = {"wanted": 2, "least": 2}
        jobs = {name: made.start_job(**{**kind.spec, "encoder": name, "children": children}) for name, kind in KINDS.items()}
        for job in jobs.values():
            made.finish(job, 300.0)
        yield Played(made, folder, folder / "tokenizer", jobs)


def add_encoder(made: Cluster, spec: EncoderSpec) -> None:
    place = made.folder / f"encoder-{spec.name}"
    encoder_files.make(spec, place, (), lambda note: None)
    with made.admin() as https:
        written = json.loads((place / "encoder.json").read_bytes())
        encoder_files.send(https, place, spec.name, spec.type, written, lambda note: None)


@pytest.mark.parametrize("name", KINDS)
def test_real_processes_come_to_the_bits_of_one_process(played: Played, name: str, tmp_path: Path) -> None:
    world = played.here(name, tmp_path / "here")
    assert played.current(name) == world.digest()
    assert {update["child"] for update in played.round(name, 2)["updates"]} == set(CHILDREN)


def test_jobs_of_three_encoder_types_ran_at_once_on_one_master(played: Played) -> None:
    """T-46: both children took part in all of them meanwhile; the test above says that each came to what it comes to alone."""
    rounds = {name: played.made.job(played.jobs[name])["rounds"] for name in ("tiny", "sensor", "pictures")}
    begun = {name: found[0]["opened"] for name, found in rounds.items()}
    ended = {name: found[-1]["closed"] for name, found in rounds.items()}
    assert max(begun.values()) < min(ended.values()), f"each should begin before any ends, found {begun} and {ended}"
    assert {len(played.round(name, 1)["updates"]) for name in rounds} == {2}


@pytest.mark.parametrize(("name", "made_by"), [("sensor", PERCEPTRON), ("pictures", None)])
def test_what_is_no_text_is_exported_and_predicted_with(
    played: Played, name: str, made_by: Path | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given a module of one's own, When it was trained and exported, Then it and the private head say what the child says."""
    state = ["--state", str(played.made.folder / "master")]
    out = tmp_path / "out"
    assert admin_main(["encoder", "export", name, "--format", "safetensors", "--out", str(out), "-q", *state]) == 0
    task = next(one for one in tasks_of(tmp_path, "amy", 60, 0) if one.name == KINDS[name].task)
    rows = _rows(Path(task.data))
    new = tmp_path / "new.jsonl"
    new.write_text("".join(json.dumps({key: row[key] for key in task.fields}) + "\n" for row in rows), encoding="utf-8")
    home = played.folder / "amy"
    capsys.readouterr()
    words = ["task", "predict", task.name, "--file", str(new), "--home", str(home)]
    assert child_main(["--output", "json", *words]) == 0
    answers = json.loads(capsys.readouterr().out)["data"]
    right = [answer["label"] == row["label"] for answer, row in zip(answers, rows, strict=True)]
    assert np.mean(right) > 0.85, "both tasks can be read off their features"

    from safetensors.torch import load_file

    module = load(
        f"{made_by or played.folder / 'modules' / 'pictures.py'}:{'Perceptron' if made_by else 'Pictures'}",
        (),
        "trunkline.encoders",
    )
    encoder = module(width=4, hidden=16) if made_by else module(hidden=16)
    encoder.load_state_dict(load_file(out / "model.safetensors"))
    private = PrivateStore(ChildHome(home).private / name).newest()
    weight, bias = (torch.from_numpy(np.array(private.tensors[f"{task.name}/head/linear.{part}"])) for part in ("weight", "bias"))
    features = torch.tensor([_features(task, row) for row in rows], dtype=torch.float32)
    with torch.no_grad():
        plain = (encoder.eval()(features) @ weight.T + bias).softmax(1)
    assert torch.allclose(plain.max(1).values, torch.tensor([answer["probability"] for answer in answers]), atol=1e-4)


def test_the_head_predicts_as_it_does_in_one_process(played: Played, tmp_path: Path) -> None:
    world = played.here("tiny", tmp_path / "here")
    texts = ["the food was good 1", "room was hated 2"]
    task = Registry(world.children["amy"].home).get("sentiment")
    homes = (world.children["amy"].home, ChildHome(played.folder / "amy"))
    here, there = (open_predictor(home, ChildSettings(), task, encoder="tiny").answer(texts) for home in homes)
    assert here == there


def test_of_low_rank_training_the_products_are_fused_and_the_export_is_a_plain_model(played: Played, tmp_path: Path) -> None:
    base, target, told = played.tensors("low", 1), played.tensors("low", 2), played.round("low", 1)
    products = [name for name in base if name.endswith(("query.weight", "value.weight"))]
    assert set(products) == set(base) and len(products) == 4, "what is shared is the matrices, by their plain names"
    fused = {name: np.zeros(array.shape) for name, array in base.items()}
    means = {name: [np.zeros(()), np.zeros(())] for name in base}
    reference = played.made.call("GET", "/v1/admin/encoders/low/versions/1")["digest"]
    for update in told["updates"]:
        weight = told["weights"][update["child"]]
        with played.blobs.open_set(reference) as first, SetFile(played.blobs.path(update["digest"])) as wire:
            assert set(wire.spec) == {f"{name}@{part}" for name in products for part in "AB"}, "never one factor without the other"
            for name in products:
                a, b = (wire.read(f"{name}@{part}").astype(np.float64) for part in "AB")
                moved_to = base[name] + b @ a
                assert np.abs(b @ a).max() > 0
                assert np.array_equal(Decoder(wire, "float32", first).read(name, slice(0, len(a[0]))), moved_to.astype(np.float32))
                fused[name] += weight * moved_to
                means[name] = [means[name][0] + weight * a, means[name][1] + weight * b]
    for name in products:
        assert np.allclose(target[name], fused[name], atol=1e-7)
        by_factors = base[name] + means[name][1] @ means[name][0]
        assert np.abs(target[name] - by_factors).max() > 1e-5, "fusing the factors one by one would give another matrix"

    from transformers import AutoModel

    state = ["--state", str(played.made.folder / "master")]
    assert admin_main(["encoder", "export", "low", "--out", str(tmp_path / "out"), "-q", *state]) == 0
    loaded = AutoModel.from_pretrained(tmp_path / "out").state_dict()
    last = played.tensors("low", 3)
    assert all(np.array_equal(loaded[name].numpy(), last[name]) for name in products)
    assert not any("lora" in name.lower() or "@" in name for name in loaded)


def moved(played: Played, name: str, version: int = 3) -> np.ndarray[Any, Any]:
    """How far the shared parameters came from where they began, flat."""
    first, last = played.tensors("tiny", 1), played.tensors(name, version)
    return np.concatenate([(last[key].astype(np.float64) - first[key]).ravel() for key in sorted(first)])


def test_a_batch_in_parts_learns_what_the_whole_batch_learns(played: Played) -> None:
    whole, parts = moved(played, "tiny"), moved(played, "parts")
    assert not np.array_equal(whole, parts), "it was summed in another order"
    assert np.linalg.norm(whole - parts) < 1e-2 * np.linalg.norm(whole)


def test_the_proximal_term_holds_children_near_the_initial_set(played: Played) -> None:
    free, near = moved(played, "tiny", 2), moved(played, "near", 2)
    assert 0 < np.linalg.norm(near) < 0.8 * np.linalg.norm(free)


def test_half_the_bytes_come_to_nearly_the_same_parameters(played: Played) -> None:
    full, half = moved(played, "tiny"), moved(played, "half")
    assert 0 < np.linalg.norm(full - half) < 0.05 * np.linalg.norm(full)
    sizes = [
        sum(update["size"] for number in (1, 2) for update in played.round(name, number)["updates"]) for name in ("half", "tiny")
    ]
    assert 0.45 < sizes[0] / sizes[1] < 0.6


def _rows(path: Path) -> list[dict[str, Any]]:
    """Test rows of a file."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file)) if path.suffix == ".csv" else [json.loads(line) for line in file]
    return [row for row in rows if row["split"] == "test"]


def _features(task: TaskSpec, row: Mapping[str, Any]) -> Any:
    if task.name == "alarm":
        return [float(row[name]) for name in task.fields]
    return [row["pixels"]]
