"""A worker as `trunkline worker` runs it: Celery in the foreground. `python -m benchmarks.streams.worker FOLDER`.

With `--times FILE` it writes down when each gradient began: `BATCH SECONDS` a line, seconds of the machine's own clock.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from queues import doorbell
from queues.queue import Claim
from queues.stream.home import StreamHome
from queues.stream.serve_worker import QUIET
from tasks.step import Gradient
from trunkline.errors import TrunklineError
from trunkline.logs import logging_to


def main() -> int:
    """Work until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams.worker")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=Path)
    asked = parser.parse_args()
    home = StreamHome(asked.folder)
    try:
        with logging_to(home.logs / "worker.log", "info", QUIET):
            doorbell.work(doorbell.station_of(home, lambda: _joined(home, asked.times)))
    except TrunklineError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _joined(home: StreamHome, times: Path | None) -> Any:
    from queues.stream.join import join

    worker = join(home, threads=1)
    if times is not None:
        whole = worker.learner.gradient

        def noted(claim: Claim[bytes], seed: int) -> Gradient:
            at = time.monotonic()
            with times.open("a", encoding="ascii") as file:
                file.write(f"{claim.id} {at}\n")
            return whole(claim, seed)

        worker.learner.gradient = noted  # type: ignore[method-assign]
    return worker


if __name__ == "__main__":
    sys.exit(main())
