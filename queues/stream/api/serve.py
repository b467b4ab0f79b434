"""Running the API: uvicorn in a thread, on the socket in the stream's folder."""

import os
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import uvicorn
from starlette.applications import Starlette

from trunkline.clock import Clock, Deadline
from trunkline.errors import FailedError, StorageFailed
from trunkline.files import storage

CONNECTIONS = 200
"""At a time; others are told to come again."""

STOP_SECONDS = 10.0


class SocketServer:
    """The API on a socket that this user alone may use, while it is entered.

    :param path: of the socket. One that a killed server left is removed: whoever holds the stream's lock is the only server.
    """

    def __init__(self, app: Starlette, path: Path, clock: Clock) -> None:
        self._path, self._clock = path, clock
        self._socket = listen(path)
        config = uvicorn.Config(
            app,
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=int(STOP_SECONDS),
            limit_concurrency=CONNECTIONS,
        )
        self._server = uvicorn.Server(config)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="api", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = Deadline(self._clock, 30.0, "the API of the stream to begin")
        while not self._server.started:
            if self._failure is not None or not self._thread.is_alive():
                raise FailedError(f"the API of the stream should begin to answer, found: {self._failure}.")
            deadline.check()
            self._clock.sleep(0.005)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.should_exit = True
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            self._server.force_exit = True
            self._thread.join(STOP_SECONDS)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def alive(self) -> bool:
        """Whether it still answers."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except (Exception, SystemExit) as error:  # noqa: BLE001 - told to whoever waits for it to begin
            self._failure = error


def listen(path: Path) -> socket.socket:
    """A socket that listens, and that nobody else may open.

    :raises StorageFailed: it cannot be made there.
    """
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.parent.is_symlink() or path.parent.stat().st_uid != os.getuid():
            raise StorageFailed(f"`{path.parent}` should belong to this user, found another's.", hint="Remove it.")
        path.unlink(missing_ok=True)
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            found.bind(str(path))
            path.chmod(0o600)
            found.listen(256)
        except OSError:
            found.close()
            raise
    return found
