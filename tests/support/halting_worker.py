"""A worker's process that may be slow, or stop where it is told: `python -m tests.support.halting_worker FOLDER …`."""

import argparse
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from queues import doorbell
from queues.stream.home import StreamHome
from queues.stream.station import SILENCE, SLICE, Station
from trunkline.errors import TrunklineError


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pool", default="solo")
    parser.add_argument("--sleep", type=float, default=0.0, help="seconds of each step, beside its own")
    parser.add_argument("--visibility", type=float, default=doorbell.VISIBILITY)
    parser.add_argument("--silence", type=float, default=SILENCE)
    parser.add_argument("--slice", type=float, default=SLICE)
    parser.add_argument("--plain", action="store_true", help="the plain store of the tests")
    parser.add_argument("--at", nargs=2, help="touch a file and sleep there: in `gradient`, before or after `submit`")
    options = parser.parse_args()
    logging.basicConfig(level="INFO", format="%(relativeCreated)d %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kombu").setLevel("WARNING")
    home = StreamHome(options.folder)
    station = Station(home.spec.name, lambda: made(home, options), silence=options.silence, slice=options.slice)
    broker = doorbell.broker_of(doorbell.address(home)["redis"])
    doorbell.make_app(broker, home.spec.name, station, visibility=options.visibility)
    try:
        doorbell.work(station, pool=options.pool)
    except TrunklineError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def made(home: StreamHome, options: argparse.Namespace) -> Any:
    """The worker, with its handicaps."""
    from queues.stream.join import join
    from tests.support.plain_store import PlainReader

    worker = join(home, threads=1, store=PlainReader(home.store) if options.plain else None)
    if options.sleep:
        _before(worker.learner, "gradient", lambda: time.sleep(options.sleep))
    if options.at:
        point, file = options.at
        owner, name = (worker.learner, "gradient") if point == "gradient" else (worker.queues, "submit")
        _halt(owner, name, Path(file), after=point == "after")
    return worker


def _before(owner: Any, name: str, first: Callable[[], None]) -> None:
    whole: Callable[..., Any] = getattr(owner, name)

    def both(*arguments: Any) -> Any:
        first()
        return whole(*arguments)

    setattr(owner, name, both)


def _halt(owner: Any, name: str, file: Path, *, after: bool) -> None:
    whole: Callable[..., Any] = getattr(owner, name)

    def halt(*arguments: Any) -> Any:
        found = whole(*arguments) if after else None
        file.touch()
        time.sleep(600)
        return found

    setattr(owner, name, halt)


if __name__ == "__main__":
    raise SystemExit(main())
