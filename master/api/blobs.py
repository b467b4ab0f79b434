"""Blobs down and up. Who may move which is decided here; how bytes are stored is `master/blobs.py`'s.

    caller   GET                                HEAD (how much is there?), PUT
    admin    any blob                           any blob
    child    files of encoders; a parameter     with a grant to send: any one update of its round
             set with a grant to fetch it

Every byte that goes out to a child is announced in the ledger before it leaves (`blob.sent`: child, job, round, digest, first
byte), so the order of events proves that no set left before its confirmation. What was moved in the end is `blob.moved`.
"""

import asyncio
import logging
import re
import threading
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Annotated, BinaryIO, TypeVar, cast

from fastapi import APIRouter, Depends, Path, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from master.api.access import bearer, find_child, is_admin
from master.api.files import Files
from master.api.parts import Parts
from master.blobs import Incoming
from master.tokens import Direction, Grant
from trunkline.api import GRANT_HEADER, HAVE_HEADER, OFFSET_HEADER
from trunkline.errors import DeadlineExceeded, NotAuthorized, RefusedValue, Unreachable, UsageError

CHUNK = 1 << 20
"""Bytes that are read or written at a time, in a thread of their own."""

BLOBS_A_GRANT = 4
"""Different blobs that one child may send in one round: an update, and a few tries that were made anew."""

LOOK_SECONDS = 0.5
"""How often a transfer that waits looks whether the master stops."""

Result = TypeVar("Result")

log = logging.getLogger(__name__)

Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class Ticket:
    """A transfer that may take place."""

    digest: str
    direction: Direction
    child: str | None  # None: the admin
    grant: Grant | None  # None: the admin, or a file of an encoder
    limit: int  # bytes at most, upwards


class Turnstile:
    """Says who may move what, and writes down who was refused."""

    def __init__(self, parts: Parts, files: Files) -> None:
        self._parts, self._files = parts, files
        self._lock = threading.Lock()
        self._sent: dict[tuple[str, str, int], set[str]] = {}  # blobs that a child began to send, by (child, job, round)

    def __call__(self, request: Request, digest: Digest) -> Ticket:
        """:raises NotAuthorized: the caller may not."""
        direction: Direction = "down" if request.method == "GET" else "up"
        token, most = bearer(request), self._parts.settings.max_blob_bytes
        if is_admin(self._parts, token):
            return Ticket(digest, direction, None, None, most)
        child = find_child(self._parts, token).name
        if direction == "down" and self._files.public(digest):
            return Ticket(digest, direction, child, None, most)
        try:
            grant = self._grant(request, digest, direction, child)
        except NotAuthorized as error:
            told = {"digest": digest, "direction": direction, "detail": error.message}
            self._parts.ledger.event("transfer.refused", child=child, data=told)
            raise
        return Ticket(digest, direction, child, grant, min(most, grant.size))

    def _grant(self, request: Request, digest: str, direction: Direction, child: str) -> Grant:
        token = request.headers.get(GRANT_HEADER)
        if token is None:
            raise NotAuthorized(f"blob {digest[:12]} should be moved with a grant of this round, found none.")
        grant = self._parts.gate.check(token, digest=digest if direction == "down" else None, direction=direction, child=child)
        if request.method == "PUT":
            with self._lock:
                begun = self._sent.setdefault((child, grant.job, grant.round), set())
                if digest not in begun and len(begun) >= BLOBS_A_GRANT:
                    raise NotAuthorized(f"a round should take one update of a child, found more than {BLOBS_A_GRANT} blobs sent.")
                begun.add(digest)
        return grant


def routes(parts: Parts, files: Files) -> APIRouter:
    """`/v1/blobs/{sha256}`."""
    router = APIRouter(prefix="/v1")
    allowed = Turnstile(parts, files)

    @router.get("/blobs/{digest}")
    def get(request: Request, ticket: Annotated[Ticket, Depends(allowed)]) -> Response:
        size = parts.blobs.size(ticket.digest)
        begin = _first_byte(request, size)
        _announce(parts, ticket, begin, size)
        return Outgoing(parts, ticket, parts.blobs.path(ticket.digest).open("rb"), begin, size)

    @router.head("/blobs/{digest}")
    def head(ticket: Annotated[Ticket, Depends(allowed)]) -> Response:
        with parts.blobs.upload(ticket.digest, ticket.limit, owner=ticket.child or "") as upload:
            return Response(status_code=200 if upload.done else 204, headers={HAVE_HEADER: str(upload.have())})

    @router.put("/blobs/{digest}")
    async def put(request: Request, ticket: Annotated[Ticket, Depends(allowed)]) -> Response:
        """Bytes from an offset on; a body that begins elsewhere than the last one ended is told where to begin."""
        offset = _number(request, OFFSET_HEADER, 0)
        size = offset + _number(request, "Content-Length", None)
        upload = parts.blobs.upload(ticket.digest, ticket.limit, size=size, owner=ticket.child or "")
        try:
            have = await _receive(parts, request, upload, offset)
        except RefusedValue as error:
            await run_in_threadpool(_refused, parts, ticket, error)
            raise
        finally:
            await run_in_threadpool(upload.close)
            await run_in_threadpool(_moved, parts, ticket, upload.have() - offset)
        return Response(status_code=201 if upload.done else 202, headers={HAVE_HEADER: str(have)})

    return router


# -- down --------------------------------------------------------------------------------------------------------------


class Outgoing(Response):
    """A blob from a byte on. Read chunk by chunk in a thread, so neither memory nor the event loop feels its size."""

    def __init__(self, parts: Parts, ticket: Ticket, file: BinaryIO, begin: int, size: int) -> None:
        headers = {"Content-Length": str(size - begin), "Accept-Ranges": "bytes", "ETag": f'"{ticket.digest}"'}
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{size - 1}/{size}"
        super().__init__(None, 206 if begin else 200, headers, "application/octet-stream")
        self._parts, self._ticket, self._file, self._begin, self._size = parts, ticket, file, begin, size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_disconnected(receive))
        at = self._begin
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            self._file.seek(at)
            more = True
            while more and not gone.done():
                chunk = await run_in_threadpool(self._file.read, CHUNK)
                more = bool(chunk) and at + len(chunk) < self._size
                await _within(self._parts, send({"type": "http.response.body", "body": chunk, "more_body": more}), "be taken")
                at += len(chunk)
        except (DeadlineExceeded, Unreachable) as error:
            log.info("blob %s to %s was cut: %s", self._ticket.digest[:12], self._ticket.child, error.message)
        finally:
            gone.cancel()
            self._file.close()
            await run_in_threadpool(_moved, self._parts, self._ticket, at - self._begin)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _first_byte(request: Request, size: int) -> int:
    """Where the answer begins: `Range: bytes=N-`. Other forms of ranges are answered with the whole, as HTTP allows."""
    found = re.fullmatch(r"bytes=(\d{1,18})-", request.headers.get("Range", ""))
    begin = int(found[1]) if found else 0
    if begin and begin >= size:
        raise UsageError(f"`Range` should begin before byte {size}, found {begin}.")
    return begin


# -- up ----------------------------------------------------------------------------------------------------------------


async def _receive(parts: Parts, request: Request, upload: Incoming, offset: int) -> int:
    """Write the body to the blob. What came before the connection broke is kept.

    :returns: bytes that are there.
    """
    held, length = memoryview(bytearray(CHUNK)), 0  # one buffer an upload: fresh ones cost more than the copying

    async def flush() -> int:
        chunks = [held[:length]] if length else []
        return await run_in_threadpool(upload.write, offset, cast(list[bytes], chunks))

    try:
        more = True
        while more:
            message = await _within(parts, request.receive(), "arrive")
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            rest, more = memoryview(message.get("body", b"")), message.get("more_body", False)
            while rest:
                room = min(len(rest), CHUNK - length)
                held[length : length + room] = rest[:room]
                length, rest = length + room, rest[room:]
                if length == CHUNK:
                    offset, length = await flush(), 0
    except (ClientDisconnect, DeadlineExceeded, Unreachable):
        await flush()
        raise
    return await flush()


def _number(request: Request, name: str, default: int | None) -> int:
    text = request.headers.get(name)
    if text is None and default is not None:
        return default
    if text is None or not re.fullmatch(r"\d{1,18}", text):
        raise UsageError(f"`{name}` should be a number of bytes, found {text or 'none'}.")
    return int(text)


# -- both ways ---------------------------------------------------------------------------------------------------------


async def _within(parts: Parts, step: Awaitable[Result], what: str) -> Result:
    """One step of a transfer, which may take `idle_seconds` and ends with the master.

    :raises DeadlineExceeded: no byte moved for that long.
    :raises Unreachable: the master stops. Either way the transfer can be resumed.
    """
    task = asyncio.ensure_future(step)
    end = parts.clock.monotonic() + parts.settings.idle_seconds
    try:
        while not (await asyncio.wait([task], timeout=LOOK_SECONDS))[0]:
            if parts.stopping.is_set():
                raise Unreachable("the master is stopping.", hint="Go on when it is there again.")
            if parts.clock.monotonic() >= end:
                raise DeadlineExceeded(f"waited {parts.settings.idle_seconds:g} s for bytes to {what}.", hint="Go on from there.")
        return task.result()
    finally:
        task.cancel()


# -- what the ledger is told -------------------------------------------------------------------------------------------


def _announce(parts: Parts, ticket: Ticket, begin: int, size: int) -> None:
    """Before the first byte leaves."""
    if ticket.child is None:
        return
    told = {"digest": ticket.digest, "first": begin, "size": size}
    if ticket.grant is None:
        parts.ledger.event("file.sent", child=ticket.child, data=told)
    else:
        parts.ledger.event("blob.sent", job=ticket.grant.job, round=ticket.grant.round, child=ticket.child, data=told)


def _moved(parts: Parts, ticket: Ticket, count: int) -> None:
    """After a transfer of a parameter set ended, however it ended."""
    if ticket.grant is not None:
        told = {"digest": ticket.digest, "direction": ticket.direction, "bytes": count}
        parts.ledger.event("blob.moved", job=ticket.grant.job, round=ticket.grant.round, child=ticket.child, data=told)


def _refused(parts: Parts, ticket: Ticket, error: RefusedValue) -> None:
    told = {"digest": ticket.digest, "direction": ticket.direction, "reason": str(error.reason), "detail": error.message}
    grant = ticket.grant
    parts.ledger.event(
        "transfer.refused", job=grant.job if grant else None, round=grant.round if grant else None, child=ticket.child, data=told
    )
