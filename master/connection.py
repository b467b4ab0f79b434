"""One connection to the API or to the SuperLink. The head of a call is measured: uvicorn takes one of any size, for any time.

Bodies have their own measure, in `api.answers` and in `api.blobs`.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 65_536
"""Bytes that may come without a head being whole or a byte of a body arriving; a call of ours needs about 500."""

HEAD_SECONDS = 30.0
"""A head may take so long, and so may whatever comes after the answer to a call and is not the next one."""

LEAVE_SECONDS = 1.0
"""What was cut has so long to hear why; the end of TLS would wait for a caller that goes on sending."""


class MeasuredConnection(HttpToolsProtocol):
    """Cuts a caller whose head is too long or too slow, whoever it is: no token was seen yet."""

    head_seconds = HEAD_SECONDS

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._idle_bytes = 0  # since something whole was read
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_here()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():  # what comes after it was cut
            return
        self._idle_bytes += len(data)
        if self.cycle is None or self.cycle.response_complete:
            self._expect_head()
        super().data_received(data)
        if self._idle_bytes > HEAD_BYTES and not self.transport.is_closing():
            self._cut(f"The head of a request should have at most {HEAD_BYTES} bytes.")

    def on_headers_complete(self) -> None:
        self._idle_bytes = 0
        self._head_here()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        super().on_body(body)

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._too_late)

    def _head_here(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_late(self) -> None:
        if not self.transport.is_closing():
            self._cut(f"The head of a request should arrive within {self.head_seconds:g} s.")

    def _cut(self, why: str) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.send_400_response(why)
        else:
            self.transport.close()  # in the middle of an answer
        self.loop.call_later(LEAVE_SECONDS, self.transport.abort)
