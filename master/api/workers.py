"""What workers on other machines ask of a master: one stream's parameters, with a token that opens this stream and nothing else."""

import re
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field

from master.api.access import bearer, is_admin
from master.api.answers import body_of
from master.api.parts import Parts
from master.api.relay import relay
from master.streams import Streams
from master.worker_tokens import WorkerTokens
from trunkline.errors import Conflict, NotAuthorized, NotFound, Unreachable
from trunkline.messages import Name, Value

PART = re.compile(r"[a-z]{1,20}(/[0-9a-f]{64})?")
"""What may stand behind `worker/`; which there are is the stream's to say."""


class MakeToken(Value):
    """`POST /v1/admin/streams/{name}/worker-tokens`."""

    label: Name = Field(default="workers")


def admin(parts: Parts, tokens: WorkerTokens) -> APIRouter:
    """Below `/v1/admin`: tokens are made and revoked."""
    router = APIRouter(prefix="/streams/{name}/worker-tokens")

    @router.get("")
    def labels(name: str) -> list[dict[str, Any]]:
        return [{"label": label, "made": made} for label, made in sorted(tokens.labels(name).items())]

    @router.post("", status_code=201)
    def make(name: str, body: Annotated[MakeToken, Depends(body_of(MakeToken, parts.settings.max_body_bytes))]) -> dict[str, Any]:
        token = tokens.make(name, body.label)
        parts.ledger.event("stream.token_made", data={"stream": name, "label": body.label})
        return {"stream": name, "label": body.label, "token": token}

    @router.delete("/{label}")
    def revoke(name: str, label: str) -> dict[str, Any]:
        tokens.revoke(name, label)
        parts.ledger.event("stream.token_revoked", data={"stream": name, "label": label})
        return {"stream": name, "revoked": label}

    return router


def routes(parts: Parts, streams: Streams, tokens: WorkerTokens) -> APIRouter:
    """`/v1/streams` and `/v1/streams/{name}/worker…`, for a worker's token or the admin's."""
    router = APIRouter(prefix="/v1/streams")

    @router.get("")
    def names(request: Request) -> list[str]:
        """The streams that the caller's token opens."""
        token = bearer(request)
        found = [name for name in streams.names() if is_admin(parts, token) or tokens.opens(name, token)]
        if not found and not is_admin(parts, token):
            raise _refused()
        return found

    async def passed_on(name: str, request: Request, path: str = "") -> Response:
        socket = await run_in_threadpool(_admitted, parts, streams, tokens, name, bearer(request))
        if path and not PART.fullmatch(path):
            raise NotFound(f"`{path[:100]}` should be something that workers ask for, found that it is not.")
        query = request.scope["query_string"].decode("ascii", "replace")
        target = "/v1/worker" + (f"/{path}" if path else "") + (f"?{query}" if query else "")
        return await relay(parts, socket, target, request)

    for path in ("/{name}/worker", "/{name}/worker/{path:path}"):
        router.add_api_route(path, passed_on, methods=["GET", "PUT", "DELETE"], response_model=None)
    return router


def _admitted(parts: Parts, streams: Streams, tokens: WorkerTokens, name: str, token: str) -> Path:
    """The socket of the stream's server, for the admin and the stream's workers. Nobody else learns which streams there are.

    :raises NotAuthorized: the token is neither's.
    :raises Unreachable: the stream's server does not run; also where somebody stopped it, for workers wait until it does.
    """
    if not is_admin(parts, token) and (name not in streams.names() or not tokens.opens(name, token)):
        raise _refused()
    try:
        streams.check_runs(name)
    except Conflict as error:
        raise Unreachable(error.message, hint=error.hint) from None
    return streams.home(name).socket


def _refused() -> NotAuthorized:
    return NotAuthorized(
        "the token should be one of a stream's workers, or the admin's, found another.",
        hint="Ask the admin for a new one: trunkline stream worker-token.",
    )
