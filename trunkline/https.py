"""HTTPS to a master: JSON calls, tried again inside a deadline; blobs are in `transfers`. Built on the standard library alone.

A call is tried again after a jittered, doubling pause when nothing answered or when the answer says `retryable`, until
`patience.progress` seconds went by without a gain. So what is called through here is safe to happen twice, or says `retry=False`.
"""

import hashlib
import http.client
import json
import random
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlencode

from trunkline.api_errors import ERROR_HEADER, error_from
from trunkline.clock import Clock, Deadline
from trunkline.connections import Connections, ask
from trunkline.errors import FailedError, NotAuthorized, Reason, RefusedValue, TrunklineError
from trunkline.retry import persist

Result = TypeVar("Result")

BODY_LIMIT = 64 << 20
"""The largest JSON answer that is taken into memory, in bytes."""

_READ = 1 << 16  # bytes; a read never waits for all of them


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a caller waits. Seconds."""

    connect: float = 10.0
    answer: float = 60.0  # between two bytes
    progress: float = 120.0  # tries go on until nothing was gained for this long
    first_pause: float = 0.1
    longest_pause: float = 10.0


class Answer(NamedTuple):
    """An answer that was not an error."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    chunks: Iterator[bytes]  # of the body, as they come


class Https:
    """Connections to one master. Safe to use from several threads.

    :param url: e.g. `https://master.example:8440`.
    :param ca: PEM of the authority to trust; nothing else is trusted, least of all the system's authorities. None trusts anybody,
        and is for `fetch_authority` alone.
    :param token: the bearer token, if there is one.
    :raises UsageError: not an https URL.
    :raises DamagedFile: `ca` is not a certificate.
    """

    def __init__(
        self, url: str, ca: str | None, token: str | None, clock: Clock, rng: random.Random, patience: Patience | None = None
    ) -> None:
        self.url, self.clock, self.rng, self.patience = url.rstrip("/"), clock, rng, patience or Patience()
        self._connections = Connections(self.url, ca, self.patience.connect)
        self.host, self.port = self._connections.host, self._connections.port
        self._always = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def call(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        answer_seconds: float | None = None,
        retry: bool = True,
    ) -> Any:
        """The JSON that the master answers.

        :param query: what stands after the `?`; None values are left out.
        :param answer_seconds: for a call that the master holds open on purpose.
        :raises TrunklineError: what the master said, as the same class.
        :raises Unreachable: nothing answered.
        :raises NotAuthorized: the master is not the one that was expected, or does not take this token.
        """
        what = f"{method} {path}"
        headers = {"Content-Type": "application/json"} if body is not None else {}
        asked = urlencode({key: value for key, value in (query or {}).items() if value is not None})
        target = f"{path}?{asked}" if asked else path
        data = body.encode() if isinstance(body, str) else body

        def once() -> Any:
            with self.talk(method, target, headers, content=data, answer_seconds=answer_seconds) as answer:
                return _json(what, answer)

        return self.tried(once, what) if retry else once()

    @contextmanager
    def talk(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        *,
        content: bytes | Iterable[bytes] | None = None,
        answer_seconds: float | None = None,
    ) -> Iterator[Answer]:
        """One request, tried once; the answer is read inside the block.

        :raises TrunklineError: what the master said, as the same class; or what the network said, in our words.
        """
        connection = self._connections.take(answer_seconds or self.patience.answer)
        response, reusable = None, False
        try:
            with self._connections.translated():
                response = ask(connection, method, target, self._always | dict(headers or {}), content)
            chunks = self._chunks(response)
            if response.status >= 400:
                raise error_from(response.status, _limited(chunks) or response.headers.get(ERROR_HEADER, ""))
            yield Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, chunks)
            reusable = (response.isclosed() or response.length == 0) and not response.will_close
        finally:
            if response is not None:
                response.close()  # it may hold the socket on its own
            if reusable:
                self._connections.keep(connection)
            else:
                connection.close()

    def _chunks(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        with self._connections.translated():
            while chunk := response.read1(_READ):
                yield chunk

    def tried(self, once: Callable[[], Result], what: str, gained: Callable[[], int] = lambda: 0) -> Result:
        """Try until it works, or until nothing was gained for `patience.progress` seconds.

        :param gained: a number that grows with every gain.
        """
        patience, since = self.patience, self.clock.monotonic()
        try:
            return persist(
                once,
                Deadline(self.clock, patience.progress, what),
                self.rng,
                first=patience.first_pause,
                most=patience.longest_pause,
                spread=0.5,
                gained=gained,
            )
        except TrunklineError as error:
            if error.retryable:
                error.message += f" Tried {what} for {self.clock.monotonic() - since:.0f} s."
            raise


def fetch_authority(url: str, fingerprint: str, clock: Clock, rng: random.Random, patience: Patience | None = None) -> str:
    """PEM of the authority of a master that is not known yet, believed only because its SHA-256 is the one expected.

    :raises NotAuthorized: another certificate came: another master, or somebody in between.
    :raises Unreachable: nothing answers there.
    """
    with Https(url, None, None, clock, rng, patience) as https:
        told = https.call("GET", "/v1/ca")
        pem = str(told.get("ca")) if isinstance(told, dict) else ""
        try:
            found = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
        except ValueError:
            found = "no certificate"
        if found != fingerprint:
            raise NotAuthorized(
                f"the authority of the master at {https.host}, port {https.port}, should have the fingerprint {fingerprint[:16]}…, "
                f"found {found[:16]}….",
                hint="Ask the admin for a new invitation; do not go on if it happens again.",
            )
    return pem


def _json(what: str, answer: Answer) -> Any:
    data = _limited(answer.chunks)
    try:
        return json.loads(data) if data else None
    except ValueError:
        raise FailedError(f"`{what}` should answer with JSON, found something else.") from None


def _limited(chunks: Iterator[bytes]) -> bytes:
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > BODY_LIMIT:
            raise RefusedValue(Reason.SIZE, f"an answer should have at most {BODY_LIMIT} bytes, found more.")
    return bytes(data)
