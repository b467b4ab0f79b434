import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tasks import encoders
from tasks.export import FORMATS, export
from tasks.specs import EncoderSpec, Module
from trunkline.errors import Conflict, SpecError
from trunkline.sets import SetFile, write_set

OWN = "from torch import nn\n\nclass Net(nn.Linear):\n    hidden = 2\n"


@pytest.fixture
def shared(encoder_folder: Path, tmp_path: Path) -> SetFile:
    """The encoder's set, moved by one."""
    with SetFile(encoder_folder / "shared.safetensors") as first:
        write_set(tmp_path / "set", {name: np.asarray(tensor + 1, tensor.dtype) for name, tensor in first.tensors().items()})
    return SetFile(tmp_path / "set")


@pytest.mark.parametrize("form", FORMATS)
def test_the_weights_are_the_set_and_the_frozen_part(form: str, encoder_folder: Path, shared: SetFile, tmp_path: Path) -> None:
    export(encoder_folder, shared, tmp_path / "out", form, "the card")
    found = load_file(tmp_path / "out" / "model.safetensors")
    with SetFile(encoder_folder / "frozen.safetensors") as frozen:
        wanted = shared.tensors() | frozen.tensors()
    assert set(found) == set(wanted) and all(np.array_equal(found[name], wanted[name]) for name in wanted)
    assert (tmp_path / "out" / "README.md").read_text() == "the card"


def test_the_files_of_each_form(encoder_folder: Path, shared: SetFile, tmp_path: Path) -> None:
    files = {}
    for form in FORMATS:
        export(encoder_folder, shared, tmp_path / form, form, "")
        files[form] = {str(path.relative_to(tmp_path / form)) for path in (tmp_path / form).rglob("*") if path.is_file()}
    assert files["hf"] == {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert files["safetensors"] == {"README.md", "encoder.json", "model.safetensors"}
    assert files["sentence-transformers"] - files["hf"] == {"modules.json", "sentence_bert_config.json", "1_Pooling/config.json"}
    pooling = json.loads((tmp_path / "sentence-transformers" / "1_Pooling" / "config.json").read_text())
    assert (
        pooling["word_embedding_dimension"] == 32 and pooling["pooling_mode_mean_tokens"] and not pooling["pooling_mode_cls_token"]
    )


def test_what_cannot_be_exported_is_told_and_leaves_nothing(encoder_folder: Path, shared: SetFile, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="`format` should be one of hf, sentence-transformers, safetensors, found 'onnx'"):
        export(encoder_folder, shared, tmp_path / "out", "onnx", "")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "note").write_text("mine")
    with pytest.raises(Conflict):
        export(encoder_folder, shared, tmp_path / "used", "hf", "")
    assert {path.name for path in tmp_path.iterdir()} == {"set", "used"}


def test_a_users_module_has_weights_only(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    source = Module(path=str(tmp_path / "own.py:Net"), options={"in_features": 3, "out_features": 2})
    encoders.create(EncoderSpec(name="v", source=source, shape=(3,)), tmp_path / "e")
    with SetFile(tmp_path / "e" / "shared.safetensors") as first:
        with pytest.raises(SpecError, match="should be safetensors for an encoder of a user's module"):
            export(tmp_path / "e", first, tmp_path / "out", "hf", "")
        export(tmp_path / "e", first, tmp_path / "out", "safetensors", "")
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == {"weight", "bias"}
