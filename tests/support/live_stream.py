"""A stream whose server and workers are real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from queues.embedded import EmbeddedServer
from queues.queue import Counts
from queues.redis import RedisQueues, connect
from queues.store.reader import FileReader
from queues.stream.home import StreamHome
from tests.support import small_stream
from trunkline.errors import TrunklineError

ROOT = Path(__file__).parent.parent.parent

PROGRAMS = {
    "trunkline": "import sys; from trunkline.start import admin; sys.exit(admin())",
    "trunkline-child": "import sys; from trunkline.start import agent; sys.exit(agent())",
}

Found = TypeVar("Found")


def eventually(look: Callable[[], Found], seconds: float = 120.0, what: str = "it") -> Found:
    """What is found as soon as there is something."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, f"{what} should have come by now"
        time.sleep(0.01)
    return found


class LiveStream:
    """One that is served."""

    def __init__(self, folder: Path, **change: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.home = small_stream.folder(folder / "reviews", **change)
        self.learner = small_stream.learner(self.home)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.clients: list[Any] = []
        self.pushed: dict[str, int] = {}

    def start(self, module: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """A process of a module, or of one of our programs; its words are in `logs/`."""
        path = self.home.logs / f"test-{len(self.processes)}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *(("-c", PROGRAMS[module]) if module in PROGRAMS else ("-m", module)), *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | environment,
            )
        self.processes.append(process)
        return process

    def serve(self) -> subprocess.Popen[bytes]:
        process = self.start("queues.stream", str(self.home.folder))
        eventually(lambda: self.home.server() or process.poll() is not None, what="the server")
        assert process.poll() is None, self.words()
        return process

    def worker(self, *arguments: str) -> subprocess.Popen[bytes]:
        return self.start("tests.support.halting_worker", str(self.home.folder), *arguments)

    def words(self) -> str:
        """What all processes said."""
        return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')}" for path in sorted(self.home.logs.glob("*.log")))

    @property
    def url(self) -> str:
        return (self.home.server() or {})["redis"]

    def queues(self) -> RedisQueues:
        self.clients.append(connect(self.url))
        return RedisQueues(self.clients[-1], self.home.spec.name, epoch=self.home.epoch)

    def push(self, queues: RedisQueues, task: str, count: int) -> None:
        first = self.pushed.get(task, 0)
        queues.push(task, small_stream.samples(self.learner, task, count, first), producer="tests", first=first + 1)
        self.pushed[task] = first + count

    def settled(self, queues: RedisQueues, seconds: float = 120.0) -> dict[str, Counts]:
        """The counts, when all that was pushed has changed the parameters; each batch made one step."""

        def look() -> dict[str, Counts] | None:
            try:
                counts = {task: queues.counts(task) for task in self.pushed}
            except TrunklineError:  # its server may be away for a moment
                return None
            assert all(of.conserved for of in counts.values()), counts
            return counts if all(of.applied == self.pushed[task] for task, of in counts.items()) else None

        return eventually(look, seconds, "what was pushed") or {}

    def steps(self) -> int:
        return FileReader(self.home.store).step()

    def batches(self) -> int:
        """That all pushed samples make."""
        sizes = {task.name: task.batch_size for task in self.home.spec.tasks}
        return sum(count // sizes[task] for task, count in self.pushed.items())

    def kill_redis(self) -> None:
        os.kill(int((self.home.redis / "redis.pid").read_text()), signal.SIGKILL)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(10)
        EmbeddedServer(self.home.redis).stop()


@contextmanager
def live_stream(folder: Path, **change: Any) -> Iterator[LiveStream]:
    """A stream with its server; all its processes end with the block."""
    stream = LiveStream(folder, **change)
    try:
        stream.serve()
        yield stream
    finally:
        stream.close()
        print(stream.words())  # shown where a test failed


__all__ = ["LiveStream", "StreamHome", "eventually", "live_stream"]
