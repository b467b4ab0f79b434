"""Connections to one master: TLS with its own authority, kept for the next call; the network's errors in our words."""

import errno
import http.client
import os
import select
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from trunkline.errors import DamagedFile, NotAuthorized, Unreachable, UsageError

_HINT = "Is it running, and is the port open from here? `trunkline doctor` on its machine and `trunkline-child doctor` here look."

_NETWORK = frozenset(
    getattr(errno, name, -1) for name in ("ENETUNREACH", "EHOSTUNREACH", "ENETDOWN", "EHOSTDOWN", "ETIMEDOUT", "EADDRNOTAVAIL")
)
"""What the network says by number; other errors of the system, such as a full disk, are not its."""

_IDLE = 4  # connections that are kept for the next call


class Connections:
    """Connections to one host and port. Safe to use from several threads.

    :param ca: PEM of the authority to trust, and no other; None trusts anybody.
    :param seconds: how long connecting, with the handshake, may take.
    :raises UsageError: not an https URL.
    :raises DamagedFile: `ca` is not a certificate.
    """

    def __init__(self, url: str, ca: str | None, seconds: float) -> None:
        self.host, self.port = split_url(url)
        self._context, self._seconds = _context(ca), seconds
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPSConnection] = []

    def close(self) -> None:
        """Close those that are kept."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def take(self, answer_seconds: float) -> http.client.HTTPSConnection:
        """One that is open.

        :param answer_seconds: how long to wait between two bytes.
        :raises Unreachable, NotAuthorized: nobody answers, or not the one that was expected.
        """
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if connection.sock is not None and not _hung_up(connection.sock):
                    connection.sock.settimeout(answer_seconds)
                    return connection
                connection.close()
        connection = self._new()
        with self.translated():
            try:
                connection.connect()
            except BaseException:
                connection.close()
                raise
        connection.sock.settimeout(answer_seconds)
        return connection

    def _new(self) -> http.client.HTTPSConnection:
        proxy = _proxy(self.host)
        if proxy is None:
            return http.client.HTTPSConnection(self.host, self.port, timeout=self._seconds, context=self._context)
        connection = http.client.HTTPSConnection(*proxy, timeout=self._seconds, context=self._context)
        connection.set_tunnel(self.host, self.port)
        return connection

    def keep(self, connection: http.client.HTTPSConnection) -> None:
        """Give one back whose answer was read to the end."""
        with self._lock:
            if len(self._idle) < _IDLE:
                self._idle.append(connection)
                return
        connection.close()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """What sockets, ssl and http.client say, as errors of ours that name host, port, cause and what to do."""
        where = f"the master at {self.host}, port {self.port},"
        try:
            yield
        except ssl.SSLCertVerificationError as error:
            raise NotAuthorized(
                f"{where} should show a certificate of the authority that this side knows, found: {error.verify_message}.",
                hint="Check the address and the clock; if the master was made anew, enrol again.",
            ) from error
        except ssl.SSLError as error:
            raise Unreachable(f"{where} should speak TLS, found: {error.reason or error}.", hint=_HINT) from error
        except http.client.HTTPException as error:
            raise Unreachable(f"{where} should answer, found: {_cause(error)}.", hint=_HINT) from error
        except TimeoutError as error:
            raise Unreachable(f"{where} should answer in time, found nothing.", hint=_HINT) from error
        except OSError as error:
            if isinstance(error, ConnectionError | socket.gaierror) or error.errno in _NETWORK:
                raise Unreachable(f"{where} should answer, found: {_cause(error)}.", hint=_HINT) from error
            raise


def ask(
    connection: http.client.HTTPSConnection,
    method: str,
    target: str,
    headers: Mapping[str, str],
    content: bytes | Iterable[bytes] | None,
) -> http.client.HTTPResponse:
    """Send a request. A master that refuses a long body may hang up before it has all; its answer is read all the same."""
    try:
        connection.request(method, target, content, dict(headers))
    except (ConnectionError, ssl.SSLEOFError) as error:
        try:
            return connection.getresponse()
        except (OSError, http.client.HTTPException):
            raise error from None
    return connection.getresponse()


def _hung_up(connection: socket.socket) -> bool:
    """Whether the other side closed a connection that nobody used for a while: then it can be read from."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([connection], [], [], 0)[0])


def _proxy(host: str) -> tuple[str, int] | None:
    """The site's proxy (`HTTPS_PROXY`, `NO_PROXY`), which is never used for the loopback."""
    if host in ("localhost", "127.0.0.1", "::1") or not any(name.lower() == "https_proxy" for name in os.environ):
        return None
    from urllib.request import getproxies, proxy_bypass

    url = getproxies().get("https", "")
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if proxy_bypass(host) or not parts.hostname:
        return None
    return parts.hostname, parts.port or 8080


def _cause(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (text or type(error).__name__).strip().rstrip(".")


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
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and name; knows no authority yet
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
    try:
        context.load_verify_locations(cadata=ca)
    except (ssl.SSLError, ValueError):
        raise DamagedFile("the authority's certificate should be PEM, found something else.", hint="Enrol again.") from None
    return context
