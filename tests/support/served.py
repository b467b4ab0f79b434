"""The server of a stream as a real process, that tests may kill."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from queues.stream.client import StreamClient
from queues.stream.home import StreamHome
from trunkline.clock import Deadline, SystemClock
from trunkline.errors import TrunklineError

ROOT = Path(__file__).parent.parent.parent

START_SECONDS = 90.0
STOP_SECONDS = 30.0


@dataclass
class Served:
    """One stream, and its server if it runs."""

    home: StreamHome
    process: subprocess.Popen[bytes] | None = None
    clock: SystemClock = field(default_factory=SystemClock)

    @property
    def client(self) -> StreamClient:
        return StreamClient(self.home.socket, self.home.spec.name)

    def call(self, method: str, path: str, body: bytes | str | None = None, **query: Any) -> Any:
        """What comes after `/v1/`; also what `queues.stream.asking` calls through."""
        return self.client.call(method, f"/v1/{path}", body, query=query)

    def launch(self, order: Mapping[str, Any] | None = None) -> subprocess.Popen[bytes]:
        """Start the server; it may not answer yet.

        :param order: as a master gives it, on standard input, which stays open; None: as a person starts it.
        """
        log = self.home.folder.parent / "process.log"
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "queues.stream", *([] if order else [str(self.home.folder)])],
                cwd=ROOT,
                stdin=subprocess.PIPE if order else subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )
        if order and self.process.stdin is not None:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        return self.process

    def start(self) -> None:
        """Start the server and wait until it answers."""
        process = self.launch()

        def answers() -> bool:
            assert process.poll() is None, self.said()
            return bool(self.call("GET", "status")["pid"] == process.pid)

        self.wait("the server of the stream to answer", answers)

    def said(self) -> str:
        """What the process printed."""
        return (self.home.folder.parent / "process.log").read_text(encoding="utf-8", errors="replace")

    def wait(self, what: str, until: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Wait with a deadline; a server that is away for a moment is asked again."""
        deadline = Deadline(self.clock, seconds, what)
        while True:
            with suppress(TrunklineError):
                if until():
                    return
            deadline.check()
            self.clock.sleep(0.05)

    def counts(self, task: str) -> dict[str, int]:
        names = ("pushed", "applied", "waiting", "leased", "submitted", "dead", "purged")
        found = self.call("GET", f"queues/{task}")
        return {name: found[name] for name in names}

    def kill(self) -> None:
        """SIGKILL the server; what it started lives on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def stop(self) -> int:
        """End it in an orderly way; give its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)

    def end(self) -> None:
        """Whatever runs of it."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        from queues.embedded import EmbeddedServer

        EmbeddedServer(self.home.redis).stop()


@contextmanager
def served(home: StreamHome) -> Iterator[Served]:
    """A stream whose server runs."""
    made = Served(home)
    try:
        made.start()
        yield made
    finally:
        made.end()
