"""The admin's part on encoders. The CLI makes their files, with torch, and sends them as blobs; the daemon needs no torch."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from master.api.answers import Free, Number, body_of, table
from master.api.files import Files
from master.api.parts import Parts
from master.jobs import MOST
from master.records import Encoder, Version
from master.sharing.history import picture
from trunkline.api import BlobFile
from trunkline.errors import NotFound, SpecError
from trunkline.messages import Digest, Name, Value
from trunkline.sets import SetFile


class CreateEncoder(Value):
    """`POST /v1/admin/encoders`, after every file, the manifest and the initial set were sent as blobs."""

    name: Name
    type: Name
    spec: Free  # an EncoderSpec
    manifest: Digest  # of `Manifest.encode()`
    first: BlobFile  # the initial parameter set


class Rollback(Value):
    """`POST /v1/admin/encoders/{name}/rollback`."""

    version: Annotated[int, Field(ge=1, le=MOST)]


def routes(parts: Parts, files: Files) -> APIRouter:
    """Encoders: list, create, show, versions, diff, conflicts, rollback."""
    router = APIRouter()
    ledger, limit = parts.ledger, parts.settings.max_body_bytes

    @router.get("/encoders")
    def encoders() -> list[dict[str, Any]]:
        return [_short(parts, encoder) for encoder in ledger.encoders()]

    @router.post("/encoders", status_code=201)
    def create(body: Annotated[CreateEncoder, Depends(body_of(CreateEncoder, limit))]) -> dict[str, Any]:
        shared = _checked(parts, files, body)
        encoder = ledger.create_encoder(
            body.name, body.type, body.spec, body.manifest, shared, first=body.first.digest, size=body.first.size
        )
        return _short(parts, encoder)

    @router.get("/encoders/{name}")
    def show(name: str) -> dict[str, Any]:
        encoder = ledger.encoder(name)
        listed = files.manifest(encoder.manifest).model_dump(mode="json")["files"]
        return _short(parts, encoder) | {"shared": encoder.shared, "files": listed}

    @router.get("/encoders/{name}/versions")
    def versions(name: str) -> list[dict[str, Any]]:
        return [table(version) for version in ledger.versions(name)]

    @router.get("/encoders/{name}/versions/{number}")
    def version(name: str, number: Number) -> dict[str, Any]:
        return table(ledger.version(name, number)) | {"lineage": _lineage(ledger.versions(name), number)}

    @router.get("/encoders/{name}/diff")
    def diff(name: str, old: Number, new: Number) -> dict[str, Any]:
        """Two versions, for the CLI to fetch and compare: comparing 2.5 GB is no work for a request."""
        pair = {"old": table(ledger.version(name, old)), "new": table(ledger.version(name, new))}
        return pair | {"shared": ledger.encoder(name).shared}

    @router.get("/encoders/{name}/conflicts")
    def conflicts(name: str, rounds: Annotated[int, Query(ge=1, le=1_000)] = 10) -> dict[str, Any]:
        """How its tasks get on with each other, from the newest rounds."""
        return picture(ledger, name, rounds)

    @router.post("/encoders/{name}/rollback")
    def rollback(name: str, body: Annotated[Rollback, Depends(body_of(Rollback, limit))]) -> dict[str, Any]:
        return table(ledger.rollback(name, body.version))

    return router


def _short(parts: Parts, encoder: Encoder) -> dict[str, Any]:
    told = table(encoder)
    del told["shared"]
    return told | {"current": table(parts.ledger.version(encoder.name))}


def _checked(parts: Parts, files: Files, body: CreateEncoder) -> dict[str, Any]:
    """What the parameter sets of a new encoder look like: name -> [shape, dtype].

    :raises NotFound: a file was not sent before.
    :raises SpecError: the initial set is among the files that any child may fetch without a grant, or a size is wrong.
    :raises DamagedFile: the initial set is no parameter set.
    """
    listed = files.manifest(body.manifest).files
    if body.first.digest in {file.digest for file in listed.values()} | {body.manifest}:
        raise SpecError("the initial parameter set should not be among the encoder's files, found it there.")
    for name, file in {**listed, "the initial parameter set": body.first}.items():
        if not parts.blobs.known(file.digest):
            raise NotFound(f"{name} should be sent before the encoder is declared, found no blob {file.digest[:12]}.")
        if (size := parts.blobs.size(file.digest)) != file.size:
            raise SpecError(f"{name} should have {file.size} bytes, found {size}.")
    with SetFile(parts.blobs.path(body.first.digest)) as first:
        return {name: [list(tensor.shape), tensor.dtype] for name, tensor in first.spec.items()}


def _lineage(versions: list[Version], number: int) -> list[int]:
    """The numbers that lead to a version, newest first."""
    parents = {version.number: version.parent_number for version in versions}
    if number not in parents:
        raise NotFound(f"version {number} should be there, found none.")
    line: list[int] = []
    at: int | None = number
    while at is not None and at not in line:
        line.append(at)
        at = parents.get(at)
    return line
