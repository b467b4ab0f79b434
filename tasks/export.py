"""An encoder in the forms that others read: Hugging Face, sentence-transformers, or bare safetensors. Needs no torch.

What is written loads without Trunkline: `AutoModel.from_pretrained(folder)`, `SentenceTransformer(folder)`.
"""

import json
import shutil
from pathlib import Path

import numpy as np

from tasks.declared import read_spec
from tasks.folder import DECLARATION, FROZEN, SHARED
from tasks.specs import EncoderSpec
from trunkline.errors import SpecError
from trunkline.files import write_atomically
from trunkline.folders import new_folder
from trunkline.sets import SetFile

FORMATS = ("hf", "sentence-transformers", "safetensors")

_OWN = {DECLARATION, FROZEN, SHARED}


def export(encoder_folder: Path, shared: SetFile, out: Path, format: str, card: str) -> None:
    """Write an encoder with these shared parameters; the folder appears whole or not at all.

    :param encoder_folder: as `tasks.encoders.create` wrote it.
    :param shared: the parameter set of the version that is exported.
    :param format: one of FORMATS.
    :param card: text of the model card, README.md.
    :raises SpecError: no such format, or the encoder has no such form.
    :raises Conflict: `out` is there and not empty.
    """
    if format not in FORMATS:
        raise SpecError(f"`format` should be one of {', '.join(FORMATS)}, found {format!r}.")
    spec = read_spec(encoder_folder)
    if format != "safetensors" and spec.features != "text":
        raise SpecError(f"`format` should be safetensors for an encoder of a user's module, found {format!r}.")
    with new_folder(out) as beside:
        _weights(beside / "model.safetensors", encoder_folder, shared)
        write_atomically(beside / "README.md", card.encode())
        _about(beside, encoder_folder, spec, form=format)


def _weights(path: Path, encoder_folder: Path, shared: SetFile) -> None:
    from safetensors.numpy import save_file

    with SetFile(encoder_folder / FROZEN) as frozen:
        tensors = frozen.tensors() | shared.tensors()
    # Other readers ask the file which library its tensors are meant for.
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, str(path), metadata={"format": "pt"})


def _about(folder: Path, encoder_folder: Path, spec: EncoderSpec, form: str) -> None:
    if form == "safetensors":
        shutil.copyfile(encoder_folder / DECLARATION, folder / DECLARATION)
        return
    for file in sorted(encoder_folder.iterdir()):
        if file.is_file() and file.name not in _OWN:
            shutil.copyfile(file, folder / file.name)
    if form == "sentence-transformers":
        _sentence_transformers(folder, spec)


def _sentence_transformers(folder: Path, spec: EncoderSpec) -> None:
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    hidden = _hidden(json.loads((folder / "config.json").read_bytes()))
    pooling = {
        "word_embedding_dimension": hidden,
        "pooling_mode_cls_token": spec.pooling == "cls",
        "pooling_mode_mean_tokens": spec.pooling == "mean",
        "pooling_mode_max_tokens": spec.pooling == "max",
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    _json(folder / "modules.json", modules)
    _json(folder / "1_Pooling" / "config.json", pooling)
    _json(folder / "sentence_bert_config.json", {"max_seq_length": spec.max_length, "do_lower_case": False})


def _hidden(config: dict[str, object]) -> int:
    """Kinds of model name it differently."""
    for key in ("hidden_size", "dim", "d_model", "n_embd"):
        if isinstance(config.get(key), int):
            return int(config[key])  # type: ignore[call-overload]
    raise SpecError("`config.json` should tell the hidden size, found none.")


def _json(path: Path, value: object) -> None:
    write_atomically(path, json.dumps(value, indent=2).encode())
