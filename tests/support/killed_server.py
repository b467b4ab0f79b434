"""Parameter servers that kill themselves. A process that has everything imported forks one for each line that it reads:

    POINT|COUNT|BOOT   dies by SIGKILL when it comes to that point for the COUNT-th time; `never|0|1`: when it is told to end.
                       BOOT: what it takes for the machine's word of when it was started
    -> pid 123
    -> ended -9        by which signal, or with which code

Points are `before` and `after` what the server says to its record, its store and its queues, and those of the store itself.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from queues.connection import connect
from queues.store.writer import FileWriter
from queues.stream.home import StreamHome
from queues.stream.server import ParameterServer
from queues.writer import QueueWriter
from tests.support import few_numbers
from trunkline.clock import SystemClock

CALLS = {
    "record": ("append", "sync"),
    "store": ("apply", "done", "checkpoint"),
    "queues": ("hold", "work", "commit", "nack", "release", "adopt", "reopen"),
}
POINTS = tuple(f"{when} {part}.{name}" for part, names in CALLS.items() for name in names for when in ("before", "after"))
INSIDE = ("begun", "changed", "finished", "written down", "flipped", "told", "checkpoint: tensors", "checkpoint: state")


class Killer:
    """Ends the process when it comes to a point often enough."""

    def __init__(self, point: str, count: int) -> None:
        self.point, self.left = point, count

    def reach(self, point: str) -> None:
        if point == self.point:
            self.left -= 1
            if self.left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def calling(*arguments: Any, **named: Any) -> Any:
            self.reach(f"before {name}")
            found = call(*arguments, **named)
            self.reach(f"after {name}")
            return found

        return calling


def serve(home: StreamHome, url: str, point: str, count: int, boot: str) -> None:
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    spec, killer = home.spec, Killer(point, count)
    lock = home.lock()
    store = FileWriter(home.store, spec, few_numbers.parameters(spec), home.epoch, boot=boot)
    store._reach = store._checkpoints._reach = killer.reach  # type: ignore[method-assign]
    client = connect(url)
    queues = QueueWriter(client, spec.name, epoch=home.epoch)
    server = ParameterServer(home, spec, queues, store, SystemClock(), incarnation=home.next_incarnation())
    for part, names in CALLS.items():
        for name in names:
            one = {"record": server.record, "store": store, "queues": queues}[part]
            setattr(one, name, killer.wrapped(f"{part}.{name}", getattr(one, name)))
    server.run(lambda: bool(stopping))
    store.close()
    client.close()
    lock.release()


def main() -> None:
    torch.set_num_threads(1)
    home, url = StreamHome(Path(sys.argv[1])), sys.argv[2]
    for line in sys.stdin:
        point, count, boot = line.strip().split("|")
        pid = os.fork()
        if pid == 0:
            try:
                serve(home, url, point, int(count), boot)
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        print(f"pid {pid}", flush=True)
        print(f"ended {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}", flush=True)


class Nursery:
    """What a test has of such a process."""

    def __init__(self, home: StreamHome, url: str) -> None:
        command = [sys.executable, "-m", "tests.support.killed_server", str(home.folder), url]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = 0

    def start(self, point: str = "never", count: int = 0, boot: int = 0) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{point}|{count}|boot {boot}\n")
        self.process.stdin.flush()
        self.pid = int(self._read("pid"))

    def ended(self) -> int:
        """Wait for its end; tell the code."""
        code, self.pid = int(self._read("ended")), 0
        return code

    def stop(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return self.ended()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.ended() == -9

    def _read(self, word: str) -> str:
        assert self.process.stdout
        found = self.process.stdout.readline().split()
        assert found[:1] == [word], found
        return found[1]

    def close(self) -> None:
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()
        self.process.wait(30)


if __name__ == "__main__":
    main()
