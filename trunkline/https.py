"""HTTPS to a master: JSON calls, tried again inside a deadline. httpx is known to this module only; blobs are in `transfers`.

A call is tried again after a jittered, doubling pause when nothing answered or when the answer says `retryable`, until
`patience.progress` seconds went by without a gain. So what is called through here is safe to happen twice, or says `retry=False`.
"""

import hashlib
import json
import random
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

import httpx

from trunkline.api import ERROR_HEADER, error_from
from trunkline.clock import Clock
from trunkline.errors import (
    DamagedFile,
    FailedError,
    NotAuthorized,
    Reason,
    RefusedValue,
    TrunklineError,
    Unreachable,
    UsageError,
)

Result = TypeVar("Result")

BODY_LIMIT = 64 << 20
"""The largest JSON answer that is taken into memory, in bytes."""


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
        self.host, self.port = split_url(url)
        self._client = httpx.Client(
            base_url=self.url,
            verify=_context(ca),
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(self.patience.answer, connect=self.patience.connect),
            limits=httpx.Limits(max_connections=16, max_keepalive_connections=4, keepalive_expiry=20.0),
            trust_env=self.host not in ("localhost", "127.0.0.1", "::1"),  # a site's proxy is used, but never for the loopback
            follow_redirects=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

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
        params = {key: value for key, value in (query or {}).items() if value is not None}

        def once() -> Any:
            with self.talk(method, path, headers, content=body, params=params, answer_seconds=answer_seconds) as answer:
                return _json(what, answer)

        return self.tried(once, what) if retry else once()

    @contextmanager
    def talk(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        content: bytes | str | Iterator[bytes] | None = None,
        params: Mapping[str, Any] | None = None,
        answer_seconds: float | None = None,
    ) -> Iterator[Answer]:
        """One request, tried once; the answer is read inside the block.

        :raises TrunklineError: what the master said, as the same class; or what the network said, in our words.
        """
        wait = httpx.Timeout(answer_seconds or self.patience.answer, connect=self.patience.connect)
        sent = {"Accept-Encoding": "identity", **(headers or {})}
        with self._translated(), self._client.stream(
            method, path, headers=sent, content=content, params=params, timeout=wait
        ) as response:
            if response.status_code >= 400:
                told = _limited(response.iter_raw()) or response.headers.get(ERROR_HEADER, "")
                raise error_from(response.status_code, told)
            yield Answer(response.status_code, response.headers, response.iter_raw())

    def tried(self, once: Callable[[], Result], what: str, progress: Callable[[], int] = lambda: 0) -> Result:
        """Try until it works, or until nothing was gained for `patience.progress` seconds.

        :param progress: a number that grows with every gain.
        """
        gained, since, pause = progress(), self.clock.monotonic(), self.patience.first_pause
        while True:
            try:
                return once()
            except TrunklineError as error:
                if not error.retryable:
                    raise
                if progress() > gained:
                    gained, since, pause = progress(), self.clock.monotonic(), self.patience.first_pause
                waited = self.clock.monotonic() - since
                if waited >= self.patience.progress:
                    error.message += f" Tried {what} for {waited:.0f} s."
                    raise
            left = self.patience.progress - (self.clock.monotonic() - since)
            self.clock.sleep(min(left, pause * self.rng.uniform(0.5, 1.5)))
            pause = min(2 * pause, self.patience.longest_pause)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """What httpx and ssl say, as errors of ours that name host, port, cause and what to do."""
        where = f"the master at {self.host}, port {self.port},"
        try:
            yield
        except httpx.HTTPError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise NotAuthorized(
                    f"{where} should show a certificate of the authority that this side knows, found: {_cause(error)}.",
                    hint="Check the address and the clock; if the master was made anew, enrol again.",
                ) from error
            wanted = "answer in time" if isinstance(error, httpx.TimeoutException) else "answer"
            raise Unreachable(f"{where} should {wanted}, found: {_cause(error)}.", hint=_HINT) from error
        except ssl.SSLError as error:
            raise Unreachable(f"{where} should speak TLS, found: {_cause(error)}.", hint=_HINT) from error


_HINT = "Is it running, and is the port open from here? `trunkline doctor` on its machine and `trunkline-child doctor` here look."


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


def split_url(url: str) -> tuple[str, int]:
    """Host and port of a master's address.

    :raises UsageError: not an https URL.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 443
    except ValueError:
        host, port = None, 0
    if not host or not url.startswith("https://"):
        raise UsageError(f"the master's address should be like https://master.example:8440, found {url!r}.")
    return host, port


def _context(ca: str | None) -> ssl.SSLContext:
    if ca is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
    try:
        context = ssl.create_default_context(cadata=ca)
    except (ssl.SSLError, ValueError):
        raise DamagedFile("the authority's certificate should be PEM, found something else.", hint="Enrol again.") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


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


def _cause(error: BaseException) -> str:
    """The words at the bottom of a chain of errors."""
    text = str(error)
    while (inner := error.__cause__ or error.__context__) is not None:
        error, text = inner, str(inner) or text
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
    return (text or type(error).__name__).strip().rstrip(".")
