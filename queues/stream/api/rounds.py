"""The part of a stream's API where rounds come in: at a master what they came to, at a child the rounds themselves.

Parameter sets are named by their paths: who calls is a process of the same machine. The master's API passes none of this on.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from queues.stream.api.answers import body_of
from queues.stream.desk import Desk
from trunkline.errors import UsageError
from trunkline.values import Name, Section

RoundName = Annotated[str, Field(min_length=1, max_length=300)]
Where = Annotated[str, Field(min_length=1, max_length=4096)]


class Merge(Section):
    """`POST /v1/rounds/merge`: add target less base, once a name."""

    name: RoundName
    base: Where
    target: Where


class Attach(Section):
    """`POST /v1/rounds/attach`: whether the stream learns in rounds only."""

    attached: bool


class Begin(Section):
    """`POST /v1/rounds/begin`."""

    name: RoundName
    initial: Where
    steps: Annotated[int, Field(ge=1, le=1_000_000)]
    tasks: Annotated[tuple[Name, ...], Field(min_length=1)]
    fresh: bool = False  # whether the moments of the shared layers begin anew


class End(Section):
    """`POST /v1/rounds/end`: take what it came to so far."""

    name: RoundName
    why: Annotated[str, Field(max_length=500)] = ""


def routes(desk: Desk) -> list[Route]:
    """Below `/v1/rounds`."""

    async def added(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(lambda: desk.keeping().added()))

    async def turn(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(lambda: desk.keeping().turn_table()))

    async def merge(request: Request) -> Response:
        body = await body_of(request, Merge)
        return JSONResponse(await run_in_threadpool(lambda: desk.keeping().merge(body.name, _path(body.target), _path(body.base))))

    async def attach(request: Request) -> Response:
        body = await body_of(request, Attach)
        return JSONResponse(await run_in_threadpool(lambda: desk.keeping().attach(body.attached)))

    async def begin(request: Request) -> Response:
        body = await body_of(request, Begin)
        begun: Any = await run_in_threadpool(
            lambda: desk.keeping().begin_turn(body.name, _path(body.initial), body.steps, body.tasks, fresh=body.fresh)
        )
        return JSONResponse(begun)

    async def end(request: Request) -> Response:
        body = await body_of(request, End)
        return JSONResponse(await run_in_threadpool(lambda: desk.keeping().end_turn(body.name, body.why)))

    return [
        Route("/v1/rounds", added, methods=["GET"]),
        Route("/v1/rounds/turn", turn, methods=["GET"]),
        Route("/v1/rounds/merge", merge, methods=["POST"]),
        Route("/v1/rounds/attach", attach, methods=["POST"]),
        Route("/v1/rounds/begin", begin, methods=["POST"]),
        Route("/v1/rounds/end", end, methods=["POST"]),
    ]


def _path(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise UsageError(f"a parameter set should be named by its whole path, found {text[:200]!r}.")
    return path
