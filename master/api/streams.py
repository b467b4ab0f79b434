"""The admin's part on streams: made, started, stopped, removed here; all else is passed on to the stream's own server."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import Field

from master.api.access import admin_only
from master.api.answers import Free, body_of, read_body, table
from master.api.files import Files
from master.api.parts import Parts
from master.jobs import MOST
from master.meeting import Meeting
from master.streams import Streams
from queues.stream.spec import StreamSpec
from tasks.folder import SHARED
from trunkline.errors import NotFound, TrunklineError, UsageError
from trunkline.messages import Name, Value
from trunkline.settings import build

CREATE_LIMIT = 64 << 20
"""Bytes of a new stream's declaration with its held-out rows."""

PUSH_LIMIT = 16 << 20
"""Bytes of one push; the stream's server has a limit of its own."""

LONG = 24 * 3600.0
"""Seconds that an answer is waited for which takes reading all that was recorded."""


class CreateStream(Value):
    """`POST /v1/admin/streams`."""

    spec: Free  # a StreamSpec
    version: Annotated[int, Field(ge=1, le=MOST)] | None = None  # of the encoder; None: the newest
    heldout: dict[Name, str] = Field(default_factory=dict)  # rows as JSON Lines, by task
    modules: Annotated[tuple[str, ...], Field(strict=False)] = ()  # files on the master's machine with the user's own code
    redis: str | None = Field(default=None, repr=False)
    broker: str | None = Field(default=None, repr=False)


class StartStream(Value):
    """`POST /v1/admin/streams/{name}/start`."""

    accept: bool = False  # go on although something was lost


class MergeRound(Value):
    """`POST /v1/admin/streams/{name}/merge`."""

    version: Annotated[int, Field(ge=1, le=MOST)]


def routes(parts: Parts, files: Files, streams: Streams) -> APIRouter:
    """Below `/v1/admin`."""
    router = APIRouter()
    limit = parts.settings.max_body_bytes

    def meeting(name: str) -> Meeting:
        return Meeting(streams.home(name), parts.ledger, parts.blobs, parts.clock)

    @router.get("/streams")
    def all_() -> list[dict[str, Any]]:
        return [streams.table(name) | {"server": _status(streams, name)} for name in streams.names()]

    @router.post("/streams", status_code=201)
    def create(body: Annotated[CreateStream, Depends(body_of(CreateStream, CREATE_LIMIT))]) -> dict[str, Any]:
        spec = build(StreamSpec, body.spec, "the stream")
        encoder = parts.ledger.encoder(spec.encoder)
        version = parts.ledger.version(spec.encoder, body.version)
        listed = files.manifest(encoder.manifest).files
        found = {name: parts.blobs.path(file.digest) for name, file in listed.items()}
        found[SHARED] = parts.blobs.path(version.digest)
        modules = [_module(path) for path in body.modules]
        newest = parts.ledger.version(spec.encoder).number
        streams.create(spec, found, rows=body.heldout, modules=modules, redis=body.redis, broker=body.broker, since=newest)
        about = {"stream": spec.name, "encoder": spec.encoder, "version": version.number}
        parts.ledger.event("stream.created", data=about)
        streams.turn()
        return streams.table(spec.name) | {"version": version.number}

    @router.get("/streams/{name}")
    def show(name: str) -> dict[str, Any]:
        return streams.table(name) | {"spec": streams.home(name).spec.model_dump(mode="json"), "server": _status(streams, name)}

    @router.post("/streams/{name}/start")
    def start(name: str, body: Annotated[StartStream, Depends(body_of(StartStream, limit))]) -> dict[str, Any]:
        streams.start(name, accept=body.accept)
        streams.turn()
        return streams.table(name)

    @router.post("/streams/{name}/stop")
    def stop(name: str) -> dict[str, Any]:
        streams.stop(name)
        return streams.table(name)

    @router.post("/streams/{name}/publish")
    def publish(name: str) -> dict[str, Any]:
        streams.check_runs(name)
        return table(meeting(name).publish())

    @router.post("/streams/{name}/merge")
    def merge(name: str, body: Annotated[MergeRound, Depends(body_of(MergeRound, limit))]) -> dict[str, Any]:
        streams.check_runs(name)
        met = meeting(name)
        return met.merge(parts.ledger.version(met.home.spec.encoder, body.version))

    @router.delete("/streams/{name}")
    def remove(name: str) -> dict[str, Any]:
        streams.remove(name)
        parts.ledger.event("stream.removed", data={"stream": name})
        return {"removed": name}

    @router.api_route("/streams/{name}/server/{path:path}", methods=["GET", "POST", "PATCH", "DELETE"])
    async def server(name: str, path: str, request: Request) -> StreamingResponse:
        return await _relayed(streams, name, path, request)

    return router


def pushes(parts: Parts, streams: Streams) -> APIRouter:
    """`POST /v1/queues/{task}/samples?stream=NAME`: JSON Lines, with the admin's token."""
    router = APIRouter(dependencies=[Depends(admin_only(parts))])

    @router.post("/v1/queues/{task}/samples")
    async def push(task: str, request: Request, stream: str | None = None) -> StreamingResponse:
        return await _relayed(streams, streams.find(stream), f"queues/{task}/samples", request)

    return router


async def _relayed(streams: Streams, name: str, path: str, request: Request) -> StreamingResponse:
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or (parts[0] == "rounds" and request.method != "GET"):
        raise NotFound(f"`{path}` should be a part of the API of a stream, found none.")
    body = await read_body(request, PUSH_LIMIT)
    query = "&".join(
        f"{quote(key)}={quote(value, safe='')}" for key, value in request.query_params.multi_items() if key != "stream"
    )
    target = f"/v1/{quote(path)}" + (f"?{query}" if query else "")
    return await run_in_threadpool(_asked, streams, name, request.method, target, body)


def _asked(streams: Streams, name: str, method: str, target: str, body: bytes) -> StreamingResponse:
    streams.check_runs(name)
    with ExitStack() as opening:
        answer = opening.enter_context(streams.client(name).talk(method, target, body or None, seconds=LONG))
        rest = opening.pop_all()

    def chunks() -> Iterator[bytes]:
        with rest:
            yield from answer.chunks

    kept = {key: value for key, value in answer.headers.items() if key.startswith("x-trunkline-") or key == "content-length"}
    return StreamingResponse(chunks(), answer.status, kept, answer.headers.get("content-type"))


def _status(streams: Streams, name: str) -> dict[str, Any] | None:
    """What its server says of itself; None where it does not answer."""
    try:
        return streams.client(name).call("GET", "/v1/status", seconds=5.0)
    except TrunklineError:
        return None


def _module(path: str) -> Path:
    found = Path(path)
    if not found.is_absolute() or found.suffix != ".py" or not found.is_file():
        raise UsageError(f"`modules` should be files of Python on the master's machine, by their whole path, found {path!r}.")
    return found
