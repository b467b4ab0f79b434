"""What workers on other machines ask of the server of a stream, below `/v1/worker`; `queues.store.remote` has the list of calls."""

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from queues.store.snapshots import Snapshot
from queues.store.store import Verdict
from queues.stream.api.answers import number
from queues.stream.depot import Depot
from trunkline.errors import DeadlineExceeded, QueueFull, StateError, UsageError

CHUNK = 1 << 18
"""Bytes that are sent, or written, at a time."""

IDLE_SECONDS = 60.0
"""A transfer that moves no byte for so long is cut; it can be gone on with."""

WAIT_SECONDS = 20.0
"""A call waits for a verdict so long at most."""

WAITING = 150
"""Calls that wait for a verdict at a time; others are told to come again."""

FIRST, LONGEST = 0.002, 0.02
"""Seconds between two looks for a verdict: the first ones, and at most."""

log = logging.getLogger(__name__)


def routes(depot: Depot | None) -> list[Route]:
    """All calls.

    :param depot: None: the stream's store is one that no other process reaches.
    """
    if depot is None:
        return [Route("/v1/worker", _none, methods=["GET"])]
    waiting = _Waiting(depot)

    async def described(request: Request) -> Response:
        return JSONResponse((await run_in_threadpool(depot.described)).table())

    async def step(request: Request) -> Response:
        return JSONResponse({"step": await run_in_threadpool(depot.reader.step)})

    async def file(request: Request) -> Response:
        path = await run_in_threadpool(depot.file, str(request.path_params["digest"]))
        return await run_in_threadpool(_file, path, request)

    async def parameters(request: Request) -> Response:
        half = bool(number(request, "half", 0))
        return await run_in_threadpool(_snapshot, depot, half, request)

    async def put(request: Request) -> Response:
        try:
            return await _put(depot, request)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody hears it; what came is gone

    async def withdraw(request: Request) -> Response:
        batch, attempt = _gradient(request)
        await run_in_threadpool(depot.reader.withdraw, batch, attempt)
        return JSONResponse({})

    async def verdict(request: Request) -> Response:
        found = await waiting.verdict(*_gradient(request), _seconds(request))
        return JSONResponse({"verdict": found})

    def route(path: str, answer: Callable[[Request], Awaitable[Response]], method: str = "GET") -> Route:
        return Route(f"/v1/worker{path}", answer, methods=[method])

    return [
        route("", described),
        route("/step", step),
        route("/files/{digest}", file),
        route("/parameters", parameters),
        route("/gradients", put, "PUT"),
        route("/gradients", withdraw, "DELETE"),
        route("/verdict", verdict),
    ]


async def _none(request: Request) -> Response:
    raise StateError(
        "a stream should keep its store in a file for workers of other processes, found one that keeps it in memory.",
        hint='Create it with `kind = "file"` in its section `store`.',
    )


def _gradient(request: Request) -> tuple[str, int]:
    batch = request.query_params.get("batch", "")
    if not 0 < len(batch) <= 200:
        raise UsageError(f"`batch` should be the id of a batch, found {len(batch)} characters.")
    return batch, number(request, "attempt", 0)


def _seconds(request: Request) -> float:
    text = request.query_params.get("seconds", "0")
    found = float(text) if re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text) else math.nan
    if not math.isfinite(found):
        raise UsageError(f"`seconds` should be a number of seconds, found {text[:40]!r}.")
    return min(found, WAIT_SECONDS)


# -- down --------------------------------------------------------------------------------------------------------------


def _snapshot(depot: Depot, half: bool, request: Request) -> Response:
    known, wanted = request.headers.get("If-None-Match"), request.headers.get("If-Range")
    if known is not None and known == (tag := depot.snapshots.current(half)):
        return Response(status_code=304, headers={"ETag": tag})
    found = depot.snapshots.take(half, wanted)
    try:
        begin = _first_byte(request, len(found.data)) if wanted == found.tag else 0
        return _Outflow(_OfSnapshot(depot, found), begin, len(found.data), {"ETag": found.tag})
    except BaseException:
        depot.snapshots.let_go(found)
        raise


def _file(path: Path, request: Request) -> Response:
    size = path.stat().st_size
    return _Outflow(_OfFile(path), _first_byte(request, size), size, {})


def _first_byte(request: Request, size: int) -> int:
    """Where the answer begins: `Range: bytes=N-`. Other forms of ranges are answered with the whole, as HTTP allows."""
    found = re.fullmatch(r"bytes=(\d{1,18})-", request.headers.get("Range", ""))
    begin = int(found[1]) if found else 0
    if begin and begin >= size:
        raise UsageError(f"`Range` should begin before byte {size}, found {begin}.")
    return begin


class _OfSnapshot:
    """Bytes of a snapshot."""

    def __init__(self, depot: Depot, snapshot: Snapshot) -> None:
        self._depot, self._snapshot = depot, snapshot

    async def read(self, at: int) -> bytes:
        return bytes(self._snapshot.data[at : at + CHUNK])

    def close(self) -> None:
        self._depot.snapshots.let_go(self._snapshot)


class _OfFile:
    """Bytes of a file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")

    async def read(self, at: int) -> bytes:
        return await run_in_threadpool(self._read, at)

    def _read(self, at: int) -> bytes:
        self._file.seek(at)
        return self._file.read(CHUNK)

    def close(self) -> None:
        self._file.close()


class _Outflow(Response):
    """Many bytes, from one of them on. Its source is closed, whatever becomes of it."""

    def __init__(self, source: _OfSnapshot | _OfFile, begin: int, size: int, headers: dict[str, str]) -> None:
        headers |= {"Content-Length": str(size - begin), "Accept-Ranges": "bytes"}
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{size - 1}/{size}"
        super().__init__(None, 206 if begin else 200, headers, "application/octet-stream")
        self._source, self._begin, self._size = source, begin, size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_disconnected(receive))
        at = self._begin
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            more = True
            while more and not gone.done():
                chunk = await self._source.read(at)
                at += len(chunk)
                more = bool(chunk) and at < self._size
                async with asyncio.timeout(IDLE_SECONDS):
                    await send({"type": "http.response.body", "body": chunk, "more_body": more})
        except TimeoutError:
            log.info("a transfer to a worker was cut after %d of %d bytes: it took none for %g s", at, self._size, IDLE_SECONDS)
        finally:
            gone.cancel()
            self._source.close()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# -- up ----------------------------------------------------------------------------------------------------------------


async def _put(depot: Depot, request: Request) -> Response:
    """Take a gradient; what is wrong with it is said as soon as it is known, and then the rest is not read."""
    text = request.headers.get("Content-Length", "")
    if not re.fullmatch(r"\d{1,18}", text):
        raise UsageError(f"`Content-Length` should be a number of bytes, found {text[:40] or 'none'}.")
    with ExitStack() as stack:
        arrival = await run_in_threadpool(stack.enter_context, depot.arrivals.arriving(int(text)))
        held = bytearray()
        chunks = request.stream()
        more = True
        while more:
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    held += await anext(chunks)
            except StopAsyncIteration:
                more = False
            except TimeoutError:
                raise DeadlineExceeded(f"waited {IDLE_SECONDS:g} s for the next bytes of a gradient.") from None
            if held and (len(held) >= CHUNK or not more):
                await run_in_threadpool(arrival.write, bytes(held))
                held.clear()
        return JSONResponse({"taken": await run_in_threadpool(arrival.finish)})


class _Waiting:
    """Calls that wait for verdicts. They hold no thread: many workers wait at a time."""

    def __init__(self, depot: Depot) -> None:
        self._depot, self._waiting = depot, 0

    async def verdict(self, batch: str, attempt: int, seconds: float) -> Verdict | None:
        """What became of a gradient, as soon as anything did."""
        if self._waiting >= WAITING:
            raise QueueFull(f"at most {WAITING} workers should wait for a verdict at a time, found as many.", hint="Ask again.")
        self._waiting += 1
        try:
            return await self._wait(batch, attempt, seconds)
        finally:
            self._waiting -= 1

    async def _wait(self, batch: str, attempt: int, seconds: float) -> Verdict | None:
        loop = asyncio.get_running_loop()
        end, pause = loop.time() + seconds, FIRST
        while True:
            found = self._depot.reader.verdict(batch, attempt, 0.0)  # a look at mapped memory
            left = end - loop.time()
            if found is not None or left <= 0:
                return found
            await asyncio.sleep(min(pause, left))
            pause = min(LONGEST, pause * 1.1)
