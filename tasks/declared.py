"""A declaration as it is written down, for every site to read: without the places on the admin's machine.

A module stands there by its file's name: each site finds the file in folders of its own choice. What came from a local folder
stands there as `sha256:…`, a digest of that folder's files, so whoever has the same files can tell. A name at the hub is nobody's
secret and stays.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from tasks.folder import DECLARATION
from tasks.specs import Config, EncoderSpec, Module, Pretrained
from trunkline.errors import SpecError
from trunkline.files import sha256_file, storage

FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
"""What is read of a model's folder."""


def read_spec(folder: Path) -> EncoderSpec:
    """The declaration in an encoder's folder.

    :raises SpecError: there is none.
    """
    path = folder / DECLARATION
    try:
        return EncoderSpec.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise SpecError(f"`{folder}` should be the folder of an encoder, found no {DECLARATION}.") from None
    except ValidationError as error:
        said = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise SpecError(f"`{path}` should declare an encoder, found: {said}.") from None


def by_file_name(spec: EncoderSpec, modules: Sequence[Path]) -> tuple[EncoderSpec, Sequence[Path]]:
    """A declaration that names a module's file without its folder, and the folders in which it is found here."""
    if not isinstance(spec.source, Module) or not spec.source.path.rpartition(":")[0].endswith(".py"):
        return spec, modules
    file, _, name = spec.source.path.rpartition(":")
    path = Path(file).expanduser()
    if path.name == file:
        return spec, (*modules, Path())
    source = spec.source.model_copy(update={"path": f"{path.name}:{name}"})
    return spec.model_copy(update={"source": source}), (path.parent, *(folder / path.parent for folder in modules))


def without_folders(spec: EncoderSpec) -> EncoderSpec:
    """The declaration with a digest in the place of each local folder.

    :raises StorageFailed: a folder cannot be read.
    """
    source = spec.source
    if isinstance(source, Pretrained):
        source = source.model_copy(update={"path": _told(source.path)})
    elif isinstance(source, Config):
        source = source.model_copy(update={"path": _told(source.path), "tokenizer": _told(source.tokenizer)})
    return spec.model_copy(update={"source": source})


def _told(path: str | None) -> str | None:
    if path is None or not (folder := Path(path).expanduser()).is_dir():
        return path
    with storage(folder):
        files = sorted({file for pattern in FILES for file in folder.glob(pattern) if file.is_file()})
        lines = "".join(f"{sha256_file(file)}  {file.name}\n" for file in files)
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"
