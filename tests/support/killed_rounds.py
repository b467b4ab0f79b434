"""A parameter server into which rounds come, killed at a point: a process that forks one for each line that it reads.

    POINT|COUNT|FOLDER|BOOT   dies by SIGKILL when it comes to that point for the COUNT-th time; `never|0`: it does all it should.
                              A line with another BOOT comes after a power cut

What it should: take a round of job-1, then play a turn of one step on task `a`. Said to it again, it goes on where it was killed.
"""

import os
import sys
import time
from pathlib import Path

import torch

from queues.connection import connect
from queues.store.reader import FileReader
from queues.store.writer import FileWriter
from queues.stream.home import StreamHome
from queues.stream.server import ParameterServer
from queues.writer import QueueWriter
from tests.support import few_numbers
from tests.support.killed_server import Killer
from trunkline.clock import SystemClock

CALLS = {
    "record": ("append",),
    "store": ("put", "checkpoint"),
    "queues": ("hold", "set_state", "commit"),
    "rounds": ("attach", "opening", "_write", "_snapshot"),
}
POINTS = tuple(f"{when} {part}.{name}" for part, names in CALLS.items() for name in names for when in ("before", "after"))
INSIDE = ("begun", "brought up", "changed", "finished", "written down", "flipped")

ROUND, TURN = "job-1/1", "master/job-2/1/in"


def play(home: StreamHome, url: str, point: str, count: int, boot: str) -> None:
    spec, killer = home.spec, Killer(point, count)
    lock = home.lock()
    store = FileWriter(home.store, spec, few_numbers.parameters(spec), home.epoch, boot=boot)
    store._reach = killer.reach  # type: ignore[method-assign]
    client = connect(url)
    queues = QueueWriter(client, spec.name, epoch=home.epoch)
    server = ParameterServer(home, spec, queues, store, SystemClock(), incarnation=home.next_incarnation())
    parts = {"record": server.record, "store": store, "queues": queues, "rounds": server._rounds}
    for part, names in CALLS.items():
        for name in names:
            setattr(parts[part], name, killer.wrapped(f"{part}.{name}", getattr(parts[part], name)))
    server.start()
    server.merge(ROUND, home.folder / "target", home.folder / "base")
    server.begin_turn(TURN, home.folder / "initial", 1, ("a",))
    work(home, url, server)
    server.stop()
    store.close()
    client.close()
    lock.release()


def work(home: StreamHome, url: str, server: ParameterServer) -> None:
    """A worker and the server by turns, until the turn is over."""
    client, end = connect(url), time.monotonic() + 30
    queues, reader = QueueWriter(client, home.spec.name, epoch=home.epoch, worker="here"), FileReader(home.store)
    while (server.turn_table() or {})["done"] is None:
        assert time.monotonic() < end, "a turn should end"
        server.turn()
        if (claim := queues.claim()) is not None:
            reader.send(few_numbers.computed(claim, reader))
            queues.submit(claim)
        server.turn()
        time.sleep(0.005)
    client.close()


def main() -> None:
    torch.set_num_threads(1)
    url = sys.argv[1]
    for line in sys.stdin:
        point, count, folder, boot = line.strip().split("|")
        pid = os.fork()
        if pid == 0:
            try:
                play(StreamHome(Path(folder)), url, point, int(count), boot)
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
