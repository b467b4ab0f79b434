"""Running the API: uvicorn in a thread of the daemon, TLS always on, a stop that ends."""

import errno
import socket
import threading
from types import TracebackType
from typing import Self

import uvicorn
from fastapi import FastAPI

from master.connection import MeasuredConnection
from master.pki import Tls
from trunkline.clock import Clock, Deadline
from trunkline.errors import AlreadyRunning, FailedError, SettingsError

KEEP_ALIVE = 30
"""Seconds an idle connection is kept; a child that polls need not shake hands each time."""


class ApiServer:
    """The API on a port, from `start` to `stop`.

    :raises AlreadyRunning: the port is in use; the message names it.
    :raises SettingsError: this machine has no such address.
    """

    def __init__(
        self, app: FastAPI, host: str, port: int, tls: Tls, *, clock: Clock, stop_seconds: float = 10.0, connections: int = 2_000
    ) -> None:
        self._clock, self._stop_seconds = clock, stop_seconds
        self._stopping: threading.Event | None = getattr(app.state, "stopping", None)
        self._socket = listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app,
            http=MeasuredConnection,
            ssl_certfile=tls.certificate,
            ssl_keyfile=str(tls.key),
            log_config=None,  # the daemon's own
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=max(1, int(stop_seconds)),
            limit_concurrency=connections,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="api", daemon=True)
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to answer; returns when it does.

        :raises FailedError: it did not begin, and why.
        """
        if self._stopping is not None:
            self._stopping.clear()
        self._thread.start()
        deadline = Deadline(self._clock, 30.0, "the API to begin")
        while not self._server.started:
            if self._failure is not None or not self._thread.is_alive():
                raise FailedError(f"the API should begin to answer on port {self.port}, found: {self._failure}.")
            deadline.check()
            self._clock.sleep(0.005)

    def alive(self) -> bool:
        """Whether it still answers."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Take no more calls, let those that run end within `stop_seconds`, cut the rest."""
        if self._stopping is not None:
            self._stopping.set()  # long polls answer at once
        self._server.should_exit = True
        self._thread.join(self._stop_seconds)
        if self._thread.is_alive():
            self._server.force_exit = True
            self._thread.join(self._stop_seconds)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except (Exception, SystemExit) as error:  # noqa: BLE001 - told to whoever waits in `start`
            self._failure = error


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, before anything else starts.

    :raises AlreadyRunning: the port is in use.
    :raises SettingsError: this machine has no such address, or this user may not listen there.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise SettingsError(f"`host` should be an address of this machine, found {host!r}: {error.strerror}.") from None
    found = socket.socket(family, kind, protocol)
    try:
        if hasattr(socket, "SO_REUSEADDR"):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(2_048)
    except OSError as error:
        found.close()
        raise _why_not(error, host, port) from None
    return found


def _why_not(error: OSError, host: str, port: int) -> AlreadyRunning | SettingsError:
    if error.errno == errno.EADDRINUSE:
        return AlreadyRunning(
            f"port {port} of {host} should be free, found another program on it.",
            hint="Stop that one, or set another `port`.",
        )
    return SettingsError(f"`host` and `port` should be open to this user, found {host}, {port}: {error.strerror}.")
