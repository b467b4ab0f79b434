"""A TCP proxy on the loopback that cuts connections where it is told to, at any byte of either direction."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cut:
    """Where to cut one connection: after so many bytes of the caller's, or of the answer's. None: never."""

    up: int | None = None
    down: int | None = None


@dataclass
class Proxy:
    """:param cuts: one a connection, in the order in which they come; those after the last run through.
    :param always: what happens to those after the last.
    """

    target: int
    cuts: list[Cut] = field(default_factory=list)
    always: Cut = field(default_factory=Cut)
    port: int = 0
    connections: int = 0
    up: int = 0  # bytes that went through
    down: int = 0

    _open: list[socket.socket] = field(default_factory=list)

    def drop(self) -> None:
        """Close every connection that is open now."""
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve(self, listener: socket.socket) -> None:
        """Accept until the listener is closed."""
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            cut = self.cuts.pop(0) if self.cuts else self.always
            self.connections += 1
            threading.Thread(target=self._run, args=(caller, cut), daemon=True).start()

    def _run(self, caller: socket.socket, cut: Cut) -> None:
        try:
            master = socket.create_connection(("127.0.0.1", self.target), timeout=10)
        except OSError:
            caller.close()
            return
        self._open += [caller, master]
        one = threading.Thread(target=self._pump, args=(caller, master, cut.up, "up"), daemon=True)
        one.start()
        self._pump(master, caller, cut.down, "down")
        one.join()
        for end in (caller, master):
            end.close()

    def _pump(self, source: socket.socket, sink: socket.socket, left: int | None, way: str) -> None:
        source.settimeout(30)
        with suppress(OSError):
            while left is None or left > 0:
                data = source.recv(65_536 if left is None else min(65_536, left))
                if not data:
                    break
                sink.sendall(data)
                setattr(self, way, getattr(self, way) + len(data))
                left = None if left is None else left - len(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy(target: int, *cuts: Cut, always: Cut | None = None) -> Iterator[Proxy]:
    """A proxy in front of a port, until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = Proxy(target, list(cuts), always or Cut(), listener.getsockname()[1])
        thread = threading.Thread(target=running.serve, args=(listener,), daemon=True)
        thread.start()
        yield running
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)
