"""Blobs down and up, in chunks that are read and written in threads; memory and the event loop do not feel their size.

Who may move which is decided in `turnstile`; how bytes are stored is `master/blobs.py`'s. A transfer that moves no byte for
`idle_seconds` is cut, and every transfer is when the master stops: both sides go on later from where they were.
"""

import asyncio
import logging
import os
import re
from collections.abc import Awaitable
from typing import Annotated, BinaryIO, cast

from fastapi import APIRouter, Depends, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from master.api.files import Files
from master.api.parts import Parts
from master.api.turnstile import Ticket, Turnstile
from master.blobs import BlobStore
from trunkline.api_errors import HAVE_HEADER, OFFSET_HEADER
from trunkline.clock import Deadline
from trunkline.errors import DeadlineExceeded, NotFound, RefusedValue, Unreachable, UsageError

CHUNK = 1 << 20
"""Bytes that are read or written at a time."""

LOOK_SECONDS = 0.5
"""How often a transfer that waits looks whether the master stops."""

log = logging.getLogger(__name__)


def routes(parts: Parts, files: Files) -> APIRouter:
    """`/v1/blobs/{sha256}`."""
    router = APIRouter(prefix="/v1")
    turnstile = Turnstile(parts, files)

    @router.get("/blobs/{digest}")
    def get(request: Request, ticket: Annotated[Ticket, Depends(turnstile)]) -> Response:
        file = _open(parts.blobs, ticket.digest)
        try:
            size = os.fstat(file.fileno()).st_size
            begin = _first_byte(request, size)
            turnstile.announce(ticket, begin, size)
            return _Outflow(parts, turnstile, ticket, file, begin, size)
        except BaseException:
            file.close()
            raise

    @router.head("/blobs/{digest}")
    def head(ticket: Annotated[Ticket, Depends(turnstile)]) -> Response:
        with parts.blobs.upload(ticket.digest, ticket.limit, owner=ticket.owner) as upload:
            return Response(status_code=200 if upload.done else 204, headers={HAVE_HEADER: str(upload.have())})

    @router.put("/blobs/{digest}")
    async def put(request: Request, ticket: Annotated[Ticket, Depends(turnstile)]) -> Response:
        """Bytes from an offset on; a body that begins elsewhere than the last one ended is told where to begin."""
        offset = _number(request, OFFSET_HEADER, 0)
        size = offset + _number(request, "Content-Length", None)
        inflow = _Inflow(parts, ticket, offset, size)
        try:
            have = await inflow.run(request.receive)
        except RefusedValue as error:
            await run_in_threadpool(turnstile.refused, ticket, error)
            raise
        finally:
            await run_in_threadpool(turnstile.moved, ticket, inflow.moved)
        return Response(status_code=201 if have == size else 202, headers={HAVE_HEADER: str(have)})

    return router


# -- down --------------------------------------------------------------------------------------------------------------


class _Outflow(Response):
    """A blob from a byte on."""

    def __init__(self, parts: Parts, turnstile: Turnstile, ticket: Ticket, file: BinaryIO, begin: int, size: int) -> None:
        headers = {"Content-Length": str(size - begin), "Accept-Ranges": "bytes", "ETag": f'"{ticket.digest}"'}
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{size - 1}/{size}"
        super().__init__(None, 206 if begin else 200, headers, "application/octet-stream")
        self._parts, self._turnstile, self._ticket = parts, turnstile, ticket
        self._file, self._begin, self._size = file, begin, size

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
                await _taken(self._parts, send({"type": "http.response.body", "body": chunk, "more_body": more}))
                at += len(chunk)
        except (DeadlineExceeded, Unreachable) as error:
            log.info("blob %s to %s was cut: %s", self._ticket.digest[:12], self._ticket.child, error.message)
        finally:
            gone.cancel()
            self._file.close()
            await run_in_threadpool(self._turnstile.moved, self._ticket, at - self._begin)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _open(blobs: BlobStore, digest: str) -> BinaryIO:
    try:
        return blobs.path(digest).open("rb")
    except FileNotFoundError:
        raise NotFound(f"blob {digest} should be there, found none.") from None


def _first_byte(request: Request, size: int) -> int:
    """Where the answer begins: `Range: bytes=N-`. Other forms of ranges are answered with the whole, as HTTP allows."""
    found = re.fullmatch(r"bytes=(\d{1,18})-", request.headers.get("Range", ""))
    begin = int(found[1]) if found else 0
    if begin and begin >= size:
        raise UsageError(f"`Range` should begin before byte {size}, found {begin}.")
    return begin


# -- up ----------------------------------------------------------------------------------------------------------------


class _Inflow:
    """The body of one upload on its way to the disk. What came before a connection broke is kept."""

    def __init__(self, parts: Parts, ticket: Ticket, offset: int, size: int) -> None:
        self._parts, self._ticket, self._offset, self._size = parts, ticket, offset, size
        self._held, self._length = memoryview(bytearray(CHUNK)), 0  # one buffer: fresh ones cost more than the copying
        self.moved = 0  # bytes that were written

    async def run(self, receive: Receive) -> int:
        """Take the whole body.

        :returns: bytes of the blob that are there.
        :raises RefusedValue: `size`, `digest`: more than allowed, or not what was promised.
        :raises Conflict: it begins at another byte than the next one.
        :raises ClientDisconnect, DeadlineExceeded, Unreachable: it broke off.
        """
        ticket = self._ticket
        self._upload = self._parts.blobs.upload(ticket.digest, ticket.limit, size=self._size, owner=ticket.owner)
        try:
            try:
                more = True
                while more:
                    message = await _arrived(self._parts, receive)
                    more = message.get("more_body", False)
                    await self._take(memoryview(message.get("body", b"")))
            except (ClientDisconnect, DeadlineExceeded, Unreachable):
                await self._flush()
                raise
            return await self._flush()
        finally:
            await run_in_threadpool(self._upload.close)

    async def _take(self, rest: memoryview) -> None:
        while rest:
            room = min(len(rest), CHUNK - self._length)
            self._held[self._length : self._length + room] = rest[:room]
            self._length, rest = self._length + room, rest[room:]
            if self._length == CHUNK:
                await self._flush()

    async def _flush(self) -> int:
        chunks = [self._held[: self._length]] if self._length else []
        have = await run_in_threadpool(self._upload.write, self._offset, cast(list[bytes], chunks))
        self.moved += self._length
        self._offset, self._length = self._offset + self._length, 0
        return have


def _number(request: Request, name: str, default: int | None) -> int:
    text = request.headers.get(name)
    if text is None and default is not None:
        return default
    if text is None or not re.fullmatch(r"\d{1,18}", text):
        raise UsageError(f"`{name}` should be a number of bytes, found {text or 'none'}.")
    return int(text)


# -- both ways ---------------------------------------------------------------------------------------------------------


async def _taken(parts: Parts, step: Awaitable[None]) -> None:
    """Send one chunk. A send that was begun cannot be begun again, so it is watched from beside.

    :raises DeadlineExceeded, Unreachable: see `_Watch`.
    """
    task, watch = asyncio.ensure_future(step), _Watch(parts, "be taken")
    try:
        while not (await asyncio.wait([task], timeout=LOOK_SECONDS))[0]:
            watch.look()
        task.result()
    finally:
        task.cancel()


async def _arrived(parts: Parts, receive: Receive) -> Message:
    """The next piece of a body. Waiting for it can be broken off and begun again.

    :raises ClientDisconnect: the caller is gone.
    :raises DeadlineExceeded, Unreachable: see `_Watch`.
    """
    watch = _Watch(parts, "arrive")
    while True:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                message = await receive()
        except TimeoutError:
            watch.look()
            continue
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        return message


class _Watch:
    """One step of a transfer may take `idle_seconds`, and ends with the master. Either way the transfer can be resumed."""

    def __init__(self, parts: Parts, what: str) -> None:
        self._parts, self._deadline = parts, Deadline(parts.clock, parts.settings.idle_seconds, f"bytes to {what}")

    def look(self) -> None:
        """:raises DeadlineExceeded: no byte moved for that long.
        :raises Unreachable: the master stops.
        """
        if self._parts.stopping.is_set():
            raise Unreachable("the master is stopping.", hint="Go on when it is there again.")
        self._deadline.check()
