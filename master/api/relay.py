"""A call that the server of a stream answers: its body and its answer go through piece by piece, and wait in no thread.

Neither side is held in memory beyond a piece: who sends or reads slowly is waited for by the other, through the sockets.
"""

import asyncio
import http.client
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from master.api.parts import Parts
from trunkline.clock import Deadline
from trunkline.errors import DeadlineExceeded, FailedError, Unreachable, UsageError

CHUNK = 1 << 18
"""Bytes that go through at a time."""

LOOK_SECONDS = 0.5
"""How often a call that waits looks whether the master stops."""

ANSWER_SECONDS = 90.0
"""That the server of a stream may take to begin its answer; it holds some calls open on purpose."""

UP = ("content-type", "range", "if-range", "if-none-match")
DOWN = ("content-type", "content-length", "content-range", "accept-ranges", "etag")
"""Headers that go through."""

_VALUE = re.compile(r"[\x20-\x7e]*")


@dataclass
class _Ends:
    """A connection to the server of a stream."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class _Reader(asyncio.StreamReader):
    """Gives what was received, also where sending failed meanwhile: then it says why."""

    def set_exception(self, exc: Exception) -> None:
        self.feed_eof()


async def _connected(path: Path) -> _Ends:
    reader = _Reader(limit=CHUNK)
    protocol = asyncio.StreamReaderProtocol(reader)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_unix_connection(lambda: protocol, str(path))
    return _Ends(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


async def relay(parts: Parts, socket: Path, target: str, request: Request) -> Response:
    """Have the server of a stream answer a call.

    :param socket: of the server.
    :param target: path and query at that server.
    :raises Unreachable: it does not answer.
    :raises UsageError: a body whose length is not said.
    """
    length = request.headers.get("content-length", "") if request.method == "PUT" else "0"
    if not re.fullmatch(r"\d{1,18}", length) or "transfer-encoding" in request.headers:
        raise UsageError(f"`Content-Length` should be a number of bytes, found {length[:40] or 'none'}.")
    try:
        ends = await _connected(socket)
    except OSError as error:
        raise _away(error.strerror or "nobody") from None
    try:
        status, headers = await _ask(parts, ends, target, request, int(length))
        if status < 400:
            return _Down(parts, ends, status, headers)
        async with asyncio.timeout(parts.settings.idle_seconds):
            told = await ends.reader.readexactly(min(int(headers["content-length"]), CHUNK))
        ends.writer.close()
        kept = {"content-type": headers.get("content-type", ""), "connection": "close"}  # or a refused body would have to be read
        return Response(told, status, kept)
    except (asyncio.IncompleteReadError, TimeoutError, OSError) as error:
        ends.writer.close()
        raise _away(str(error)) from None
    except BaseException:
        ends.writer.close()
        raise


async def _ask(parts: Parts, ends: _Ends, target: str, request: Request, length: int) -> tuple[int, Mapping[str, str]]:
    """Send the call, and read the head of the answer: it may come before all of a body is sent, where that is refused.

    :param length: of the body. Not a byte more is sent: to the server it would be the next call, which nobody let through.
    """
    told = {name: request.headers[name] for name in UP if name in request.headers} | {"content-length": str(length)}
    if not all(_VALUE.fullmatch(text) for text in (target, *told.values())):
        raise UsageError("a call should have printable headers, found others.")
    lines = [f"{request.method} {target} HTTP/1.1", "host: localhost"]  # kept open: a refusal is not followed by a reset
    lines += [f"{name}: {value}" for name, value in told.items()]
    ends.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    sending = asyncio.create_task(_send(parts, ends.writer, request, length))
    reading = asyncio.create_task(ends.reader.readuntil(b"\r\n\r\n"))
    try:
        deadline = Deadline(parts.clock, ANSWER_SECONDS, "the server of the stream to answer")
        while not reading.done():
            waited = {reading, sending} if not sending.done() else {reading}
            await asyncio.wait(waited, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                deadline = deadline.again()  # a body has a measure of its own
            elif (error := sending.exception()) is not None and not isinstance(error, OSError):
                raise error  # the caller is gone, or does not go on; where the server takes no more, it says why
            _check(parts, deadline)
        return _head(reading.result())
    except asyncio.LimitOverrunError as error:
        raise _away(str(error)) from None
    finally:
        for task in (sending, reading):
            task.cancel()
        await asyncio.gather(sending, reading, return_exceptions=True)


def _check(parts: Parts, deadline: Deadline) -> None:
    if parts.stopping.is_set():
        raise Unreachable("the master is stopping.", hint="Go on when it is there again.")
    deadline.check()


async def _send(parts: Parts, writer: asyncio.StreamWriter, request: Request, left: int) -> None:
    chunks = request.stream()
    idle = parts.settings.idle_seconds
    try:
        while left > 0:
            async with asyncio.timeout(idle):
                chunk = (await anext(chunks))[:left]
                left -= len(chunk)
                writer.write(chunk)
                await writer.drain()
    except StopAsyncIteration:
        raise UsageError(f"a body should have as many bytes as it says, found {left} fewer.") from None
    except TimeoutError:
        raise DeadlineExceeded(f"waited {idle:g} s for the next bytes of a body.") from None


def _head(data: bytes) -> tuple[int, Mapping[str, str]]:
    """Status, and the headers that go through."""
    line, _, rest = data.partition(b"\r\n")
    found = http.client.parse_headers(io.BytesIO(rest))
    headers = {name: value for name in DOWN if (value := found.get(name)) is not None}
    status = int(line.split()[1])
    if status not in (204, 304) and "content-length" not in headers:
        raise FailedError("the server of a stream should say how long its answer is, found nothing.")
    return status, headers


def _away(why: str) -> Unreachable:
    return Unreachable(f"the server of the stream should answer, found: {why}.", hint="It is started again by itself.")


class _Down(Response):
    """The answer."""

    def __init__(self, parts: Parts, ends: _Ends, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(None, status, dict(headers))
        self._parts, self._ends = parts, ends
        self._left = int(headers.get("content-length", 0))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            more = True
            while more and not gone.done() and not self._parts.stopping.is_set():
                async with asyncio.timeout(self._parts.settings.idle_seconds):
                    chunk = await self._ends.reader.read(min(CHUNK, self._left)) if self._left else b""
                    if self._left and not chunk:
                        return  # it broke off: so does this, and the caller goes on later
                    self._left -= len(chunk)
                    more = self._left > 0
                    await send({"type": "http.response.body", "body": chunk, "more_body": more})
        except (TimeoutError, OSError):
            return
        finally:
            gone.cancel()
            self._ends.writer.close()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
