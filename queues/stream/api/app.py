"""The API of one stream as an application. What each call does is in `queues.stream.desk`."""

import json
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from queues.settings import State
from queues.stream.api import parameters, rounds
from queues.stream.api.answers import HANDLERS, body_of, number, read_body
from queues.stream.depot import Depot
from queues.stream.desk import Desk
from queues.stream.edge import BODY_LIMIT
from trunkline.errors import UsageError
from trunkline.values import Section

STEP_HEADER, DIGEST_HEADER, APPLIED_HEADER = "X-Trunkline-Step", "X-Trunkline-Digest", "X-Trunkline-Applied"
"""On a snapshot: the step that it is of, the SHA-256 of its bytes, and as JSON the samples of each task that it learned from."""

PRODUCER_LIMIT = 200
"""Characters of a producer's name at most: it becomes a part of a key."""


class SetState(Section):
    """`POST /v1/queues/{task}/state`."""

    state: State


class Chosen(Section):
    """`POST /v1/queues/{task}/dead/…`."""

    batches: Annotated[tuple[str, ...], Field(max_length=10_000)] | None = None  # ids; None: all


class Changes(Section):
    """`PATCH /v1/queues/{task}`; checked against the queue's other settings at the desk."""

    settings: dict[str, Any]


class Replay(Section):
    """`POST /v1/replay`."""

    start: Annotated[int, Field(ge=0)] | None = None  # step of a checkpoint, or 0; None: the earliest there is
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None  # of torch, as the workers had them


def make_app(desk: Desk, depot: Depot | None = None) -> Starlette:
    """Everything that the server of a stream answers.

    :param depot: for workers on other machines; None: there are none.
    """

    def get(path: str, function: Callable[[Request], Any]) -> Route:
        async def answer(request: Request) -> Response:
            return JSONResponse(await run_in_threadpool(function, request))

        return Route(path, answer, methods=["GET"])

    def post(path: str, function: Callable[[Request], Awaitable[Any]], method: str = "POST") -> Route:
        async def answer(request: Request) -> Response:
            return JSONResponse(await function(request))

        return Route(path, answer, methods=[method])

    async def push(request: Request) -> Any:
        producer = request.query_params.get("producer", "")
        if len(producer) > PRODUCER_LIMIT or not producer.isprintable():
            raise UsageError(f"`producer` should be at most {PRODUCER_LIMIT} printable characters, found others.")
        first, line = number(request, "first", 0), number(request, "line", 1)
        body = await read_body(request, BODY_LIMIT)
        return await run_in_threadpool(desk.push, _task(request), body, producer=producer, first=first, line=line)

    async def set_state(request: Request) -> Any:
        return await run_in_threadpool(desk.set_state, _task(request), (await body_of(request, SetState)).state)

    async def change(request: Request) -> Any:
        return await run_in_threadpool(desk.change, _task(request), (await body_of(request, Changes)).settings)

    async def retry(request: Request) -> Any:
        return await run_in_threadpool(desk.retry, _task(request), (await body_of(request, Chosen)).batches)

    async def purge_dead(request: Request) -> Any:
        return await run_in_threadpool(desk.purge_dead, _task(request), (await body_of(request, Chosen)).batches)

    async def purge(request: Request) -> Any:
        return await run_in_threadpool(desk.purge, _task(request))

    async def replay(request: Request) -> Any:
        wanted = await body_of(request, Replay)
        return await run_in_threadpool(desk.replay, wanted.start, wanted.threads)

    def snapshot(request: Request) -> Response:
        handle, name = tempfile.mkstemp(prefix="snapshot-", dir=desk.home.cache)
        os.close(handle)
        path = Path(name)
        try:
            found = desk.snapshot(path)
        except BaseException:
            path.unlink()
            raise
        headers = {
            STEP_HEADER: str(found["step"]),
            DIGEST_HEADER: str(found["digest"]),
            APPLIED_HEADER: json.dumps(found["applied"]),
        }
        return FileResponse(path, headers=headers, media_type="application/octet-stream", background=BackgroundTask(path.unlink))

    queue = "/v1/queues/{task}"
    routes = [
        get("/v1/status", lambda request: desk.status()),
        get("/v1/workers", lambda request: desk.workers()),
        get("/v1/out", lambda request: desk.out()),
        get("/v1/scores", lambda request: desk.scores(number(request, "most", 100))),
        get(
            "/v1/lineage",
            lambda request: desk.lineage(
                number(request, "most", 100),
                number(request, "step", 0) if "step" in request.query_params else None,
                request.query_params.get("batch"),
            ),
        ),
        Route("/v1/snapshot", snapshot, methods=["GET"]),
        post("/v1/replay", replay),
        get("/v1/queues", lambda request: desk.stats()),
        get(queue, lambda request: desk.stats(_task(request))[0]),
        post(queue, change, "PATCH"),
        get(f"{queue}/samples", lambda request: desk.peek(_task(request), number(request, "most", 10))),
        post(f"{queue}/samples", push),
        post(f"{queue}/samples", purge, "DELETE"),
        post(f"{queue}/state", set_state),
        get(
            f"{queue}/dead",
            lambda request: desk.dead(_task(request), number(request, "most", 100), number(request, "samples", 3)),
        ),
        post(f"{queue}/dead/retry", retry),
        post(f"{queue}/dead/purge", purge_dead),
        *rounds.routes(desk),
    ]
    return Starlette(routes=[*routes, *parameters.routes(depot)], exception_handlers=HANDLERS)


def _task(request: Request) -> str:
    return str(request.path_params["task"])
