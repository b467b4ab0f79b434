"""The files of an encoder, on their way to the master and back. Making one loads torch, here: the daemon never does."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from master.cli.base import where
from tasks.folder import SHARED
from trunkline.terminal import amount

if TYPE_CHECKING:
    from tasks.specs import EncoderSpec
    from trunkline.https import Https

Note = Callable[[str], None]


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="trunkline-") as folder:
        yield Path(folder)


def make(spec: "EncoderSpec", folder: Path, modules: Sequence[Path], note: Note) -> None:
    """Write an encoder's folder.

    :raises SpecError: it cannot be made as it is declared.
    """
    note("loading torch")
    from tasks import encoders

    note(f"making encoder {spec.name!r}")
    encoders.create(spec, folder, modules)


def send(https: "Https", folder: Path, name: str, type_: str, spec: Mapping[str, Any], note: Note) -> dict[str, Any]:
    """Bring an encoder's folder to the master and declare it. May be repeated: what is there does not travel again.

    :returns: the encoder as the master has it.
    """
    from trunkline import transfers
    from trunkline.api import BlobFile, Manifest
    from trunkline.files import sha256_file

    files = {path.name: BlobFile(digest=sha256_file(path), size=path.stat().st_size) for path in sorted(folder.iterdir())}
    for file_name, file in files.items():
        note(f"sending {file_name} ({amount(file.size)})")
        transfers.send(https, folder / file_name, file.digest, None, check=False)
    first = files.pop(SHARED)
    manifest = Manifest(files=files)
    digest = _send_manifest(https, manifest.encode())
    body = {"name": name, "type": type_, "spec": dict(spec), "manifest": digest, "first": first.model_dump(mode="json")}
    return https.call("POST", where("encoders"), json.dumps(body))


def _send_manifest(https: "Https", data: bytes) -> str:
    from hashlib import sha256

    from trunkline import transfers

    digest = sha256(data).hexdigest()
    with scratch() as folder:
        (folder / "manifest").write_bytes(data)
        transfers.send(https, folder / "manifest", digest, None, check=False)
    return digest


def fetch(https: "Https", encoder: Mapping[str, Any], to: Path, note: Note) -> Path:
    """Bring an encoder's files, without any parameter set, to a folder."""
    from trunkline import transfers

    to.mkdir(parents=True, exist_ok=True)
    for name, file in encoder["files"].items():
        note(f"fetching {name} ({amount(file['size'])})")
        transfers.fetch(https, file["digest"], file["size"], None, to / name)
    return to


def fetch_set(https: "Https", version: Mapping[str, Any], to: Path, note: Note) -> Path:
    """Bring the parameter set of a version to a file."""
    from trunkline import transfers

    note(f"fetching version {version['number']} ({amount(version['size'])})")
    transfers.fetch(https, version["digest"], version["size"], None, to)
    return to
