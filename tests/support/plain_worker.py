"""A worker's process on the plain store: `python -m tests.support.plain_worker FOLDER [--pool …] [--sleep S] [--visibility S]`.

With `--at POINT FILE` it touches FILE and sleeps for ever when it comes there: in `gradient`, before `submit`, after `submit`.
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from queues import doorbell
from queues.stream.home import StreamHome
from trunkline.errors import TrunklineError


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pool", default="solo")
    parser.add_argument("--sleep", type=float, default=0.0)
    parser.add_argument("--visibility", type=float, default=doorbell.VISIBILITY)
    parser.add_argument("--silence", type=float, default=doorbell.SILENCE)
    parser.add_argument("--slice", type=float, default=doorbell.SLICE)
    parser.add_argument("--at", nargs=2, default=None)
    options = parser.parse_args()
    logging.basicConfig(level="INFO", format="%(relativeCreated)d %(levelname)s %(name)s: %(message)s")
    home = StreamHome(options.folder)
    doorbell.SLICE = options.slice

    def make() -> Any:
        from queues.stream.join import join
        from tests.support.plain_store import PlainReader

        worker = join(home, threads=1, store=PlainReader(home.store))
        _slow(worker, "learner", "gradient", options.sleep)
        if options.at:
            point, file = options.at
            owner, name = {"gradient": ("learner", "gradient"), "before": ("queues", "submit"), "after": ("queues", "submit")}[
                point
            ]
            _halt(worker, owner, name, Path(file), after=point == "after")
        return worker

    station = doorbell.Station(home.spec.name, make, silence=options.silence)
    broker = doorbell.broker_of(doorbell.address(home)["redis"])
    doorbell.make_app(broker, home.spec.name, station, visibility=options.visibility)
    try:
        doorbell.work(station, pool=options.pool)
    except TrunklineError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _slow(worker: Any, owner: str, name: str, seconds: float) -> None:
    whole: Callable[..., Any] = getattr(getattr(worker, owner), name)

    def slow(*arguments: Any) -> Any:
        time.sleep(seconds)
        return whole(*arguments)

    if seconds:
        setattr(getattr(worker, owner), name, slow)


def _halt(worker: Any, owner: str, name: str, file: Path, *, after: bool) -> None:
    whole: Callable[..., Any] = getattr(getattr(worker, owner), name)

    def halt(*arguments: Any) -> Any:
        found = whole(*arguments) if after else None
        file.touch()
        time.sleep(600)
        return found

    setattr(getattr(worker, owner), name, halt)


if __name__ == "__main__":
    raise SystemExit(main())
