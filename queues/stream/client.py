"""Talking to the server of a stream through the socket in its folder. HTTP by the standard library, without torch."""

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from trunkline.api_errors import error_from
from trunkline.errors import FailedError, Reason, RefusedValue, Unreachable

ANSWER_LIMIT = 64 << 20
"""Bytes of the largest answer that is taken into memory."""

_READ = 1 << 18


class Answer(NamedTuple):
    """An answer that was not an error."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    chunks: Iterator[bytes]  # of the body, as they come


class StreamClient:
    """Calls to the server of one stream. Each call has a connection of its own, so any thread may use it.

    :param path: of the socket.
    :param name: of the stream, for messages.
    :param seconds: how long connecting, or an answer, may take.
    """

    def __init__(self, path: Path, name: str, seconds: float = 60.0) -> None:
        self.path, self.name, self.seconds = path, name, seconds

    def call(
        self,
        method: str,
        target: str,
        body: bytes | str | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        seconds: float | None = None,
    ) -> Any:
        """The JSON that it answers.

        :param query: what stands after the `?`; None values are left out.
        :param seconds: for an answer that takes longer.
        :raises TrunklineError: what it said, as the same class.
        :raises Unreachable: nothing answers.
        """
        asked = urlencode({key: value for key, value in (query or {}).items() if value is not None})
        with self.talk(method, f"{target}?{asked}" if asked else target, body, seconds=seconds) as answer:
            data = _limited(answer.chunks)
        try:
            return json.loads(data) if data else None
        except ValueError:
            raise FailedError(f"`{method} {target}` should answer with JSON, found something else.") from None

    @contextmanager
    def talk(
        self,
        method: str,
        target: str,
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        seconds: float | None = None,
    ) -> Iterator[Answer]:
        """One request; the answer is read inside the block.

        :raises TrunklineError: what it said, as the same class.
        :raises Unreachable: nothing answers.
        """
        connection = _Connection(self.path, seconds or self.seconds)
        try:
            with self._translated():
                connection.request(method, target, body.encode() if isinstance(body, str) else body, dict(headers or {}))
                response = connection.getresponse()
            chunks = self._chunks(response)
            if response.status >= 400:
                raise error_from(response.status, _limited(chunks))
            yield Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, chunks)
        finally:
            connection.close()

    def _chunks(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        with self._translated():
            while chunk := response.read1(_READ):
                yield chunk

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise Unreachable(f"the server of stream {self.name!r} should answer in time, found nothing.") from None
        except (http.client.HTTPException, OSError) as error:
            said = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unreachable(
                f"the server of stream {self.name!r} should answer, found: {said}.",
                hint="It is started by the master, or by `trunkline-child stream serve`; its log is logs/server.log of the stream.",
            ) from None


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _limited(chunks: Iterator[bytes]) -> bytes:
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > ANSWER_LIMIT:
            raise RefusedValue(Reason.SIZE, f"an answer should have at most {ANSWER_LIMIT} bytes, found more.")
    return bytes(data)
