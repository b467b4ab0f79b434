"""A proxy that ends TLS with the master's own certificate and keeps all that passes, as the two sides wrote it.

It listens on another address of the loopback under the same port, so a master that is known by that address has its children here.
"""

import asyncio
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from master import pki

ADDRESS = "127.0.0.2"
"""Where it listens; the master itself is on 127.0.0.1."""

CONNECT = 10.0
"""Seconds in which the master should take a connection."""


@dataclass
class Tap:
    """:param tls: the master's folder of certificates.
    :param kept: a file for each direction of each connection: what was read there, decrypted.
    """

    port: int
    tls: pki.Tls
    kept: Path
    connections: int = 0

    def frames(self) -> bytes:
        """All that passed so far."""
        return b"\0".join(path.read_bytes() for path in sorted(self.kept.iterdir()))

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end. (One thread for all: an SSL object takes no reader and writer at once.)"""
        self.connections += 1
        number = self.connections
        spoken = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        context = ssl.create_default_context(cafile=str(self.tls.ca))
        context.set_alpn_protocols([spoken] if spoken else [])
        try:
            async with asyncio.timeout(CONNECT):
                back, forth = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        except OSError:  # nobody there yet
            writer.close()
            return
        await asyncio.gather(self._pump(reader, forth, f"{number:04}-up"), self._pump(back, writer, f"{number:04}-down"))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, name: str) -> None:
        with (self.kept / name).open("ab", buffering=0) as kept, suppress(OSError):
            while data := await source.read(65_536):
                kept.write(data)
                sink.write(data)
                await sink.drain()
        sink.close()


@contextmanager
def tap(port: int, tls: Path, kept: Path) -> Iterator[Tap]:
    """A tap in front of a port, until the block ends. The master may come later."""
    kept.mkdir(parents=True)
    running = Tap(port, pki.ensure(tls, [ADDRESS, "127.0.0.1", "localhost"], time.time()), kept)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(running.tls.certificate, running.tls.key)
    context.set_alpn_protocols(["h2", "http/1.1"])
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True, name=f"tap-{port}")
    thread.start()
    opening = asyncio.start_server(running.talk, ADDRESS, port, ssl=context)
    server = asyncio.run_coroutine_threadsafe(opening, loop).result(CONNECT)
    try:
        yield running
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result(CONNECT)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CONNECT)
        loop.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
