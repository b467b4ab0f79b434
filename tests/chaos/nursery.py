"""A process that has everything imported forks those that act: `python -m tests.chaos.nursery FOLDER`. Lines of JSON come and go:

{"role": …, "log": FILE}  ->  {"pid": 123}        and, when one ended,  {"ended": 123, "code": -9}
"""

import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.chaos.points import Point
from tests.chaos.roles import Order, act
from trunkline.errors import TrunklineError

ROOT = Path(__file__).parents[2]


def main() -> None:
    import torch

    import queues.doorbell
    import queues.stream.running
    from queues.stream.home import StreamHome
    from tests.chaos import material

    _ = queues.doorbell, queues.stream.running  # loaded once, for all
    torch.set_num_threads(1)
    learner = material.learner(StreamHome(Path(sys.argv[1])))
    told = bytearray()
    while True:
        if select.select([0], [], [], 0.02)[0]:
            more = os.read(0, 1 << 16)
            if not more:
                return
            told += more
            while b"\n" in told:
                line, _, told = told.partition(b"\n")
                _say({"pid": _fork(json.loads(line), learner)})
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                _say({"ended": found[0], "code": os.waitstatus_to_exitcode(found[1])})


def _say(table: dict[str, int]) -> None:
    os.write(1, json.dumps(table).encode() + b"\n")


def _fork(table: dict[str, Any], learner: Any) -> int:
    pid = os.fork()
    if pid:
        return pid
    log = os.open(table.pop("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    point = table.pop("point")
    order = Order(**table, point=None if point is None else Point(**point))
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    if order.role in ("producer", "worker"):
        logging.basicConfig(stream=sys.stderr, level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    print(f"-- {os.getpid()} {order.role} {order.number} {point or ''}", file=sys.stderr)
    code = 1
    try:
        act(order, learner)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except TrunklineError as error:
        print(f"error: {error}", file=sys.stderr)
        code = error.exit_code
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


class Nursery:
    """What the stage has of such a process."""

    def __init__(self, folder: Path, logs: Path) -> None:
        self.logs = logs
        with (logs / "nursery.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.nursery", str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            )
        self._codes: dict[int, int] = {}
        self._born: list[int] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def start(self, order: Order) -> int:
        """Fork one; tell its process id."""
        assert self.process.stdin
        log = self.logs / f"{order.role}-{order.number}.log"
        self.process.stdin.write(json.dumps(asdict(order) | {"log": str(log)}).encode() + b"\n")
        self.process.stdin.flush()
        with self._changed:
            if not self._changed.wait_for(lambda: self._born, 120.0):
                raise TimeoutError("the nursery should fork, found that it does not")
            return self._born.pop()

    def code(self, pid: int) -> int | None:
        """How a process ended; None: it lives."""
        return self._codes.get(pid)

    def ended(self, pid: int, seconds: float) -> int | None:
        """Wait for an end; None: it did not come in time."""
        end = time.monotonic() + seconds
        while pid not in self._codes and time.monotonic() < end:
            time.sleep(0.01)
        return self._codes.get(pid)

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            table = json.loads(line)
            with self._changed:
                if "pid" in table:
                    self._born.append(table["pid"])
                else:
                    self._codes[table["ended"]] = table["code"]
                self._changed.notify_all()

    def close(self, pids: list[int]) -> None:
        """End all that still live, and itself."""
        for pid in pids:
            if pid not in self._codes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                self.ended(pid, 10.0)
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait(30)
        if self.process.stdout:
            self.process.stdout.close()


if __name__ == "__main__":
    main()
