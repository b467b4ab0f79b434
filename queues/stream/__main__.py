"""The process that serves a stream.

python -m queues.stream FOLDER    in the foreground, until SIGTERM or SIGINT
python -m queues.stream           started by a master: one line of JSON on standard input says `folder`, and the process ends
                                  when that input does, that is with its master, however that one ends
"""

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from queues.stream.home import StreamHome
from trunkline.clock import SystemClock
from trunkline.errors import TrunklineError
from trunkline.installation import check_installation
from trunkline.logs import logging_to

QUIET = ("uvicorn", "transformers", "httpx")

STOP_SECONDS = 60.0
"""A clean end may take so long; then it ends as by a kill, which loses nothing either."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a stream; the exit code is that of its error."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _end(stop))
    if words:
        folder = Path(words[0])
    else:
        order = json.loads(_read_line(sys.stdin.fileno()) or b"{}")
        if "folder" not in order:
            print("error: `python -m queues.stream FOLDER` should name the folder of a stream, found none.", file=sys.stderr)
            return 2
        folder = Path(order["folder"])
        threading.Thread(target=_follow, args=(sys.stdin.fileno(), stop), daemon=True, name="follow-master").start()
    return run(StreamHome(folder), stop)


def run(home: StreamHome, stop: threading.Event) -> int:
    """Serve until told to stop; what went wrong is said on standard error, in its last line."""
    try:
        check_installation()
        _ = home.spec  # is it a stream? Nothing is made where there is none
        with logging_to(home.logs / "server.log", "info", QUIET):
            try:
                from queues.stream.running import serve  # torch, which takes seconds

                serve(home, stop, SystemClock())
            except TrunklineError as error:
                logging.getLogger("queues.stream").error("%s", error)
                raise
            except Exception:
                logging.getLogger("queues.stream").exception("the server of the stream ended")
                raise
    except TrunklineError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def _end(stop: threading.Event) -> None:
    """Ask for a clean end, and see to it that there is one."""
    if not stop.is_set():
        stop.set()
        timer = threading.Timer(STOP_SECONDS, os._exit, (75,))
        timer.daemon = True
        timer.start()


def _read_line(handle: int) -> bytes:
    line = bytearray()  # not through `sys.stdin`: its lock, held by the thread that follows, would be in the way of a normal end
    while not line.endswith(b"\n") and (more := os.read(handle, 1 << 16)):
        line += more
    return bytes(line)


def _follow(handle: int, stop: threading.Event) -> None:
    while os.read(handle, 1024):
        pass
    _end(stop)


if __name__ == "__main__":
    sys.exit(main())
