"""The server of a stream, as a program.

python -m queues.stream FOLDER    in the foreground, until SIGTERM or SIGINT
python -m queues.stream           started by a master: one line of JSON on standard input says `folder`, and the process ends
                                  when that input does, that is with its master, however that one ends
"""

import json
import os
import sys
from pathlib import Path

from queues.stream.home import StreamHome
from queues.stream.process import Ending, run
from trunkline.errors import TrunklineError, UsageError
from trunkline.installation import check_installation


def main() -> int:
    """Serve a stream; the exit code is that of its error, which is said in the last line on standard error."""
    ending = Ending()
    try:
        check_installation()
        folder, accept = _order(ending)
        run(StreamHome(folder), ending, accept=accept)
    except TrunklineError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def _order(ending: Ending) -> tuple[Path, bool]:
    if len(sys.argv) == 2:
        return Path(sys.argv[1]), False
    order = json.loads(_read_line(sys.stdin.fileno()) or b"{}") if len(sys.argv) == 1 else {}
    if "folder" not in order:
        raise UsageError("`python -m queues.stream FOLDER` should name the folder of a stream, found none.")
    ending.follow(sys.stdin.fileno())
    return Path(order["folder"]), bool(order.get("accept"))


def _read_line(handle: int) -> bytes:
    line = bytearray()  # not through `sys.stdin`: its lock, held by the thread that follows, would be in the way of a normal end
    while not line.endswith(b"\n") and (more := os.read(handle, 1 << 16)):
        line += more
    return bytes(line)


if __name__ == "__main__":
    sys.exit(main())
