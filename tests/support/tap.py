"""A proxy that ends TLS with the master's own certificate and keeps all that passes, as the two sides wrote it.

It listens on another address of the loopback under the same port, so a master that is known by that address has its children here.
"""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ADDRESS = "127.0.0.2"
"""Where it listens; the master itself is on 127.0.0.1."""


@dataclass
class Tap:
    """:param tls: the folder with `ca.pem`, `server.pem` and `server.key`.
    :param kept: a file for each direction of each connection: what was read there, decrypted.
    """

    port: int
    tls: Path
    kept: Path
    connections: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def frames(self) -> bytes:
        """All that passed so far."""
        return b"\0".join(path.read_bytes() for path in sorted(self.kept.iterdir()))

    def serve(self, listener: socket.socket) -> None:
        """Accept until the listener is closed."""
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(caller,), daemon=True).start()

    def _talk(self, caller: socket.socket) -> None:
        with self._lock:
            self.connections += 1
            number = self.connections
        inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        inside.load_cert_chain(self.tls / "server.pem", self.tls / "server.key")
        inside.set_alpn_protocols(["h2", "http/1.1"])
        caller.settimeout(60)
        try:
            with inside.wrap_socket(caller, server_side=True) as outer:
                spoken = outer.selected_alpn_protocol()
                outside = ssl.create_default_context(cafile=str(self.tls / "ca.pem"))
                outside.set_alpn_protocols([spoken] if spoken else [])
                plain = socket.create_connection(("127.0.0.1", self.port), timeout=10)
                with outside.wrap_socket(plain, server_hostname="127.0.0.1") as inner:
                    up = threading.Thread(target=self._pump, args=(outer, inner, f"{number:04}-up"), daemon=True)
                    up.start()
                    self._pump(inner, outer, f"{number:04}-down")
                    up.join(60)
        except OSError:
            caller.close()

    def _pump(self, source: ssl.SSLSocket, sink: ssl.SSLSocket, name: str) -> None:
        source.settimeout(120)
        with (self.kept / name).open("ab", buffering=0) as kept, suppress(OSError):
            while data := source.recv(65_536):
                kept.write(data)
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def tap(port: int, tls: Path, kept: Path) -> Iterator[Tap]:
    """A tap in front of a port, until the block ends. The master may come later."""
    kept.mkdir(parents=True)
    with socket.create_server((ADDRESS, port)) as listener:
        running = Tap(port, tls, kept)
        thread = threading.Thread(target=running.serve, args=(listener,), daemon=True)
        thread.start()
        yield running
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)
