"""What the processes of a master have in common: an order on standard input, a log that stays small, and an end with the master.

A process reads one line of JSON, its order, so that no secret stands on a command line; then it watches standard input, which ends
when the master ends, however it ends. Nothing is lost by that: what counts lies in the master's state folder.
"""

import json
import logging
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from trunkline.logs import FORMAT, LogFile

LOOPBACK = "localhost,127.0.0.1,::1"

FLOWER_QUIET: Mapping[str, str] = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Environment in which Flower keeps to itself: no telemetry, no look for updates, nothing installed."""


def spawn(module: str, home: Path, log: Path) -> Popen[bytes]:
    """Start `python -m module` in a process group of its own. It waits for its order.

    :param home: working folder, and Flower's own folder.
    :param log: where its output goes, rotated.
    """
    installation = Path(__file__).resolve().parent.parent  # the process uses the same code as this one, whatever lies in its folder
    environment = {
        **os.environ,
        **FLOWER_QUIET,
        "FLWR_HOME": str(home),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(installation), os.environ.get("PYTHONPATH", "")))),
        "PYTHONUNBUFFERED": "1",
        **{name: ",".join(filter(None, (LOOPBACK, os.environ.get(name, "")))) for name in ("no_proxy", "NO_PROXY")},
    }
    with log.open("ab") as out:
        return Popen(
            [sys.executable, "-P", "-m", module],
            stdin=PIPE,
            stdout=out,
            stderr=out,
            cwd=home,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )


def give_order(process: Popen[bytes], order: Mapping[str, Any]) -> None:
    """Tell a process what to do. One that ended already is found by whoever waits for it."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(order).encode() + b"\n")


def take_order() -> dict[str, Any]:
    """Inside the process: wait for the order, send output and logs to the file that it names, and end when the master ends."""
    order = json.loads(_read_line(sys.stdin.fileno()) or b"{}")
    if not order:
        raise SystemExit("this program is started by `trunkline serve`, and ends with it")
    stream = LogStream(Path(order["log"]))
    sys.stdout = sys.stderr = stream
    logging.basicConfig(level=logging.INFO, stream=stream, format=FORMAT)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    threading.Thread(target=_follow, args=(sys.stdin.fileno(),), daemon=True, name="follow-master").start()
    return order


def _read_line(handle: int) -> bytes:
    line = bytearray()  # not through `sys.stdin`: its lock, held by the thread that follows, would be in the way of a normal end
    while not line.endswith(b"\n") and (more := os.read(handle, 1 << 16)):
        line += more
    return bytes(line)


def _follow(handle: int) -> None:
    while os.read(handle, 1024):
        pass
    os._exit(75)  # no clean-up: the master may be gone by kill -9, and nothing here needs any


class LogStream:
    """A text stream into a file that is rotated by size."""

    encoding = "utf-8"

    def __init__(self, path: Path) -> None:
        self._handler = LogFile(path)
        self._handler.setFormatter(logging.Formatter("%(message)s"))
        self._rest = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self._handler.emit(logging.makeLogRecord({"msg": line}))
        return len(text)

    def flush(self) -> None:
        self._handler.flush()

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return sys.__stderr__.fileno() if sys.__stderr__ else 2
