import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tasks import declared, encoders, sources
from tasks.encoders import Encoder
from tasks.processors import TextProcessor
from tasks.specs import Config, EncoderSpec, Module, Pretrained
from tests.support import tiny
from trunkline.errors import Conflict, DamagedFile, RefusedValue, SpecError
from trunkline.files import sha256_file
from trunkline.sets import SetFile, encode_set
from trunkline.settings import build
from trunkline.tensors import TensorSpec, row_slices
from trunkline.toml import read_toml

TEXTS: list[tuple[str, ...]] = [("good food",), ("the place was slow and very bad",), ("win",)]


def inputs(encoder: Encoder, texts: list[tuple[str, ...]] = TEXTS) -> dict[str, Tensor]:
    assert isinstance(encoder.processor, TextProcessor)
    lines = [text for (text,) in texts]
    return dict(encoder.processor.tokenizer(lines, padding=True, return_tensors="pt", return_token_type_ids=False))


@pytest.fixture
def hugging_face(tokenizer_folder: Path, tmp_path: Path) -> Path:
    """A folder as `save_pretrained` writes it, with four layers."""
    from transformers import AutoConfig, AutoModel

    folder = tmp_path / "hf"
    options: dict[str, Any] = tiny.OPTIONS | {"num_hidden_layers": 4}
    shutil.copytree(tokenizer_folder, folder)
    model = AutoModel.from_config(AutoConfig.for_model(**options))
    model.save_pretrained(folder)
    return folder


def spec_of(source: Any, **change: Any) -> EncoderSpec:
    return EncoderSpec.model_validate({"name": "e", "source": source, "max_length": 16} | change)


# -- what is written down for every site to read -----------------------------------------------------------------------


def test_no_place_on_this_machine_is_written_down(hugging_face: Path, tmp_path: Path) -> None:
    """Given a model whose folder, and whose own files, name places here, When encoders are made, Then no file of theirs does."""
    for name, keys in {
        "config.json": ["_name_or_path"],
        "tokenizer_config.json": ["name_or_path", "special_tokens_map_file"],
    }.items():
        held = json.loads((hugging_face / name).read_text())
        (hugging_face / name).write_text(json.dumps(held | dict.fromkeys(keys, str(hugging_face))))
    path = str(hugging_face)
    sources = [Pretrained(path=path), Config(path=path, seed=1), Config(options=dict(tiny.OPTIONS), tokenizer=path)]
    for number, source in enumerate(sources):
        made = tmp_path / f"e{number}"
        encoders.create(spec_of(source), made)
        assert [file.name for file in made.iterdir() if str(tmp_path).encode() in file.read_bytes()] == []
        encoders.load(made)


def test_a_folder_is_told_by_what_is_in_it(hugging_face: Path, tmp_path: Path) -> None:
    there = shutil.copytree(hugging_face, tmp_path / "there")
    one, other = (declared.without_folders(spec_of(Pretrained(path=str(folder)))) for folder in (hugging_face, there))
    assert one == other
    (there / "config.json").write_text("{}")
    assert declared.without_folders(spec_of(Pretrained(path=str(there)))) != one


def test_a_name_at_the_hub_stays() -> None:
    for source in (Pretrained(path="org/model", revision="r"), Config(path="org/model", tokenizer="org/other")):
        assert declared.without_folders(spec_of(source)).source == source


def test_one_that_was_written_with_its_folder_is_still_read(encoder_folder: Path, tiny_spec: EncoderSpec, tmp_path: Path) -> None:
    old = shutil.copytree(encoder_folder, tmp_path / "old")
    (old / "encoder.json").write_text(tiny_spec.model_dump_json())
    assert encoders.load(old).spec == tiny_spec


# -- from a config and a seed ------------------------------------------------------------------------------------------


def test_the_same_declaration_makes_the_same_files(tiny_spec: EncoderSpec, encoder_folder: Path, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    encoders.create(tiny_spec, tmp_path / "again")
    assert torch.equal(torch.get_rng_state(), before)
    names = sorted(path.name for path in encoder_folder.iterdir())
    assert names == [
        "config.json",
        "encoder.json",
        "frozen.safetensors",
        "shared.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert [sha256_file(tmp_path / "again" / name) for name in names] == [sha256_file(encoder_folder / name) for name in names]
    assert isinstance(tiny_spec.source, Config)
    other = tiny_spec.model_copy(update={"source": tiny_spec.source.model_copy(update={"seed": 2})})
    encoders.create(other, tmp_path / "other")
    assert sha256_file(tmp_path / "other" / "shared.safetensors") != sha256_file(encoder_folder / "shared.safetensors")


def test_what_was_created_is_loaded(encoder: Encoder, tiny_spec: EncoderSpec, encoder_folder: Path) -> None:
    assert encoder.spec == declared.without_folders(tiny_spec) and encoder.hidden == 32
    with SetFile(encoder_folder / "shared.safetensors") as shared, SetFile(encoder_folder / "frozen.safetensors") as frozen:
        assert shared.spec == encoder.shared_spec()
        assert set(shared.spec) | set(frozen.spec) == set(encoder.body.state_dict()) and not set(shared.spec) & set(frozen.spec)
        assert all("embeddings" in name for name in frozen.spec) and not any("embeddings" in name for name in shared.spec)
        for name, tensor in encoder.body.state_dict().items():
            stored = (frozen if name in frozen.spec else shared).read(name)
            assert np.array_equal(tensor.numpy(), stored), name


def test_the_same_vectors_as_hugging_face(hugging_face: Path, tmp_path: Path) -> None:
    from transformers import AutoModel

    encoders.create(spec_of(Pretrained(path=str(hugging_face))), tmp_path / "e")
    encoder = encoders.load(tmp_path / "e").eval()
    given = inputs(encoder)
    wanted = AutoModel.from_pretrained(hugging_face, local_files_only=True).eval()(**given).last_hidden_state
    found = encoder(given)
    assert torch.equal(found.tokens, wanted)
    mask = given["attention_mask"].unsqueeze(-1)
    assert torch.allclose(found.pooled, (wanted * mask).sum(1) / mask.sum(1), atol=1e-6)
    assert torch.equal(found.mask, given["attention_mask"])


def test_the_first_layers_are_kept(hugging_face: Path, tmp_path: Path) -> None:
    from transformers import AutoModel

    encoders.create(spec_of(Pretrained(path=str(hugging_face)), layers=2), tmp_path / "e")
    encoder = encoders.load(tmp_path / "e").eval()
    given = inputs(encoder)
    model = AutoModel.from_pretrained(hugging_face, local_files_only=True).eval()
    assert torch.equal(encoder(given).tokens, model(**given, output_hidden_states=True).hidden_states[2])
    assert json.loads((tmp_path / "e" / "config.json").read_text())["num_hidden_layers"] == 2


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_padding_does_not_reach_the_pooled_vector(pooling: Any, encoder: Encoder) -> None:
    encoder.spec = encoder.spec.model_copy(update={"pooling": pooling})
    encoder.eval()
    given = inputs(encoder)
    together = encoder(given)
    for row in range(3):
        length = int(given["attention_mask"][row].sum())
        alone = encoder({name: tensor[row : row + 1, :length] for name, tensor in given.items()})
        assert torch.allclose(together.pooled[row], alone.pooled[0], atol=1e-5)
        tokens = together.tokens[row, :length]  # type: ignore[index]
        plain = {"mean": tokens.mean(0), "cls": tokens[0], "max": tokens.max(0).values}[pooling]
        assert torch.allclose(together.pooled[row], plain, atol=1e-6)


def test_half_precision_weights_become_float32(hugging_face: Path, tmp_path: Path) -> None:
    from transformers import AutoModel

    AutoModel.from_pretrained(hugging_face, local_files_only=True).to(torch.bfloat16).save_pretrained(hugging_face)
    encoders.create(spec_of(Pretrained(path=str(hugging_face)), layers=1), tmp_path / "e")
    encoder = encoders.load(tmp_path / "e")
    assert {tensor.dtype for tensor in encoder.body.state_dict().values()} == {torch.float32}
    assert {spec.dtype for spec in encoder.shared_spec().values()} == {"F32"}


def test_dropout_can_be_set_for_the_whole_network(hugging_face: Path, tmp_path: Path) -> None:
    for dropout in (0.5, 0.0):
        encoders.create(spec_of(Pretrained(path=str(hugging_face)), layers=1, dropout=dropout), tmp_path / str(dropout))
        encoder = encoders.load(tmp_path / str(dropout)).train()
        given = inputs(encoder)
        assert torch.equal(encoder(given).pooled, encoder(given).pooled) == (dropout == 0.0)
        assert {part.p for part in encoder.modules() if isinstance(part, nn.Dropout)} == {dropout}


# -- as named tensors --------------------------------------------------------------------------------------------------


def test_a_parameter_set_goes_in_and_comes_out(encoder: Encoder) -> None:
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=spec.shape).astype(np.float32) for name, spec in encoder.shared_spec().items()}
    places = {name: tensor.data_ptr() for name, tensor in encoder.shared_parameters().items()}
    encoder.load_shared(given.__getitem__)
    assert {
        name: tensor.data_ptr() for name, tensor in encoder.shared_parameters().items()
    } == places  # an optimiser keeps its hold
    for name, spec in encoder.shared_spec().items():
        parts = [encoder.read_shared(name, rows) for rows in row_slices(spec, 40)]
        assert np.array_equal(np.concatenate(parts), given[name]), name
    name = next(iter(given))
    copy = encoder.read_shared(name, slice(0, 1))
    copy += 1
    assert np.array_equal(encoder.read_shared(name, slice(0, 1)), given[name][:1])


def test_a_set_of_another_shape_is_refused(encoder: Encoder) -> None:
    with pytest.raises(RefusedValue, match="should be"):
        encoder.load_shared(lambda name: np.zeros((1, 1), np.float32))


def test_only_what_is_trained_has_a_gradient(encoder: Encoder) -> None:
    frozen = {name for name, parameter in encoder.body.named_parameters() if not parameter.requires_grad}
    assert frozen == set(encoder.frozen_tensors()) and set(encoder.shared_parameters()) == set(encoder.shared_spec())
    captured: list[Tensor] = []
    encoder.body.embeddings.register_forward_hook(lambda *a: captured.append(a[-1]))  # type: ignore[union-attr]
    encoder(inputs(encoder)).pooled.sum().backward()
    assert not captured[0].requires_grad  # backward stops above the embeddings
    assert all(parameter.grad is not None for parameter in encoder.shared_parameters().values())


def test_a_frozen_file_that_does_not_fit_is_damaged(encoder_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(encoder_folder, tmp_path / "e")
    (tmp_path / "e" / "frozen.safetensors").write_bytes(encode_set({"x": np.zeros(1, np.float32)}))
    with pytest.raises(DamagedFile, match="should hold 'embeddings"):
        encoders.load(tmp_path / "e")


def test_without_a_first_set_the_shared_part_waits_for_one(encoder_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(encoder_folder, tmp_path / "e", ignore=shutil.ignore_patterns("shared.safetensors"))
    encoder = encoders.load(tmp_path / "e")
    with SetFile(encoder_folder / "shared.safetensors") as file:
        encoder.load_shared(file.read)
    given = inputs(encoder)
    assert torch.equal(encoder(given).pooled, encoders.load(encoder_folder)(given).pooled)


# -- what cannot work is told ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "change", "said"),
    [
        ("model.safetensors>pytorch_model.bin", {}, "should hold weights as safetensors, found pytorch_model.bin"),
        ("model.safetensors>", {}, "found no weights"),
        ("config.json>", {}, "found no config.json"),
        ("tokenizer.json>", {}, "tokenizer"),
        ("", {"layers": 5}, "`layers` should be at most 4"),
        ("", {"max_length": 65}, "`max_length` should be at most 64"),
        ("", {"freeze": ("embedings.*",)}, "found none for 'embedings.*'"),
        ("", {"freeze": ("*",)}, "`freeze` should leave something to share"),
    ],
)
def test_folders_and_declarations_that_cannot_work(damage: str, change: Any, said: str, hugging_face: Path, tmp_path: Path) -> None:
    if damage:
        old, _, new = damage.partition(">")
        (hugging_face / old).rename(hugging_face / new if new else tmp_path / "away")
    with pytest.raises(SpecError) as caught:
        encoders.create(spec_of(Pretrained(path=str(hugging_face)), **change), tmp_path / "e")
    assert said in str(caught.value)
    assert not [path.name for path in tmp_path.iterdir() if path.name not in ("hf", "away")]


def test_weights_that_lack_a_layer_are_not_made_up(hugging_face: Path, tmp_path: Path) -> None:
    config = json.loads((hugging_face / "config.json").read_text())
    (hugging_face / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 5}))
    with pytest.raises(SpecError, match=r"should hold every weight of bert, found none for encoder.layer.4"):
        encoders.create(spec_of(Pretrained(path=str(hugging_face))), tmp_path / "e")


@pytest.mark.parametrize("junk", [b"", b"junk", b"\xff" * 100])
def test_weights_that_are_no_safetensors(junk: bytes, hugging_face: Path, tmp_path: Path) -> None:
    (hugging_face / "model.safetensors").write_bytes(junk)
    with pytest.raises(SpecError, match="should make an encoder, found"):
        encoders.create(spec_of(Pretrained(path=str(hugging_face))), tmp_path / "e")


@pytest.mark.parametrize("path", ["nobody/no-such-model", "no-such-model", "not a name!"])
def test_a_hub_name_while_offline_is_told(path: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"a folder here or a model at the hub, found neither.*local folder"):
        encoders.create(spec_of(Pretrained(path=path)), tmp_path / "e")


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/at/all", "~/nowhere", "a/b/c"])
def test_a_path_is_never_looked_for_at_the_hub(path: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="should be a folder with a model, found none"):
        encoders.create(spec_of(Pretrained(path=path)), tmp_path / "e")


@pytest.mark.parametrize(
    ("options", "tokenizer", "said"),
    [
        ({"model_type": "no_such_kind"}, True, "no_such_kind"),
        ({"vocab_size": 10}, True, "`vocab_size` should be at least"),
        ({}, False, "`source.tokenizer` should be"),
        ({"hidden_size": 33}, True, "should make an encoder"),
        ({"hidden_size": 0}, True, "should make an encoder, found: "),
        ({"initializer_range": 0}, True, "should make an encoder, found: .*expected float, got int"),
        ({"initializer_range": 1e38}, True, "should be finite, found NaN or infinity"),
        ({"model_type": "t5"}, True, "found an encoder with a decoder"),
    ],
)
def test_configs_that_cannot_work(options: Any, tokenizer: bool, said: str, tokenizer_folder: Path, tmp_path: Path) -> None:
    source = Config(options=tiny.OPTIONS | options, tokenizer=str(tokenizer_folder) if tokenizer else None)
    with pytest.raises(SpecError, match=said):
        encoders.create(spec_of(source), tmp_path / "e")


def test_code_in_a_models_folder_is_not_run(hugging_face: Path, tmp_path: Path) -> None:
    config = json.loads((hugging_face / "config.json").read_text())
    own = {"auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}, "model_type": "own"}
    (hugging_face / "config.json").write_text(json.dumps(config | own))
    (hugging_face / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(SpecError):
        encoders.create(spec_of(Pretrained(path=str(hugging_face))), tmp_path / "e")
    assert not (tmp_path / "ran").exists()


def test_a_folder_in_use_is_left_alone(tiny_spec: EncoderSpec, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine")
    with pytest.raises(Conflict):
        encoders.create(tiny_spec, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["note"]
    with pytest.raises(SpecError, match=r"found no encoder.json"):
        encoders.load(tmp_path)
    (tmp_path / "encoder.json").write_text("{}")
    with pytest.raises(SpecError, match="should declare an encoder"):
        encoders.load(tmp_path)


# -- a user's own module -----------------------------------------------------------------------------------------------

EXAMPLE = Path(__file__).parents[3] / "examples" / "vector_encoder"


def module_spec(**change: Any) -> EncoderSpec:
    source = Module(
        path=str(change.pop("path", EXAMPLE / "encoder.py:Perceptron")), options=change.pop("options", {"width": 4, "hidden": 8})
    )
    return EncoderSpec.model_validate({"name": "v", "type": "sensor", "source": source, "shape": (4,)} | change)


def test_a_users_module_is_an_encoder(tmp_path: Path) -> None:
    encoders.create(module_spec(freeze=("layers.0.*",)), tmp_path / "e")
    assert sorted(path.name for path in (tmp_path / "e").iterdir()) == ["encoder.json", "frozen.safetensors", "shared.safetensors"]
    assert str(EXAMPLE) not in (tmp_path / "e" / "encoder.json").read_text()  # a site finds the file in its own folders
    encoder = encoders.load(tmp_path / "e", [EXAMPLE])
    assert encoder.hidden == 8 and set(encoder.frozen_tensors()) == {"layers.0.weight", "layers.0.bias"}
    features = torch.randn(3, 4)
    assert torch.equal(encoder({"features": features}).pooled, encoder.body(features))
    with pytest.raises(SpecError, match=r"`encoder.py` should be a file with your code, found none"):
        encoders.load(tmp_path / "e", [tmp_path])


def test_the_example_is_declared_in_a_file(tmp_path: Path) -> None:
    spec = build(EncoderSpec, read_toml(EXAMPLE / "encoder.toml"), "encoder.toml")
    encoders.create(spec, tmp_path / "e", [EXAMPLE])
    assert encoders.load(tmp_path / "e", [EXAMPLE]).hidden == 32


OWN = """
import torch
from torch import nn

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5))
        self.register_buffer("passing", torch.ones(2), persistent=False)
    def forward(self, x):
        return self.layer(x)

class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
    def forward(self, x):
        return self.layer(x).sum()

def no_module():
    return 3
"""


def test_buffers_that_change_are_shared_and_the_width_is_found_by_zeros(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    encoders.create(module_spec(path=tmp_path / "own.py:Counting", options={}, shape=(2, 3)), tmp_path / "e")
    encoder = encoders.load(tmp_path / "e", [tmp_path])
    assert encoder.hidden == 5
    spec = encoder.shared_spec()
    assert spec["layer.2.running_mean"] == TensorSpec((5,)) and spec["layer.2.num_batches_tracked"] == TensorSpec((), "I64")
    assert "passing" not in spec and "layer.2.running_mean" not in encoder.shared_parameters()
    encoder.train()({"features": torch.randn(4, 2, 3)})
    assert encoder.read_shared("layer.2.num_batches_tracked", slice(0, 1)).tolist() == 1
    with SetFile(tmp_path / "e" / "shared.safetensors") as file:
        encoder.load_shared(file.read)
    assert encoder.read_shared("layer.2.num_batches_tracked", slice(0, 1)).tolist() == 0


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("Counting", {"wdith": 1}, "should take the options"),
        ("no_module", {}, "should make a torch.nn.Module, found int"),
        ("Flat", {}, r"should answer \(B, hidden\), found \(\)"),
        ("Counting", {}, r"should read features of the shape"),
    ],
)
def test_modules_that_cannot_work(name: str, options: Any, said: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(SpecError, match=said):
        encoders.create(module_spec(path=tmp_path / f"own.py:{name}", options=options, shape=(3,)), tmp_path / "e")


def test_transformers_is_left_as_loud_as_it_was(tmp_path: Path) -> None:
    from transformers.utils import logging

    before = logging.get_verbosity()
    with pytest.raises(SpecError), sources._hugging_face("x"):
        raise ValueError("said")
    assert logging.get_verbosity() == before
