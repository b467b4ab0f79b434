"""`python -m benchmarks.learning`: run and report the learning study."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.learning.report import write
from benchmarks.learning.results import Results
from benchmarks.learning.study import chosen, main_part, tuning
from benchmarks.value import drive
from queues.embedded import EmbeddedServer
from trunkline.clock import SystemClock
from trunkline.errors import TrunklineError

FOLDER = Path(__file__).parents[1] / "out" / "learning"
WORKER = (sys.executable, "-m", "benchmarks.learning.worker")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was asked for.

    :returns: 0 where all of it is done, 6 where something is left.
    """
    asked = _parser().parse_args(arguments)
    try:
        if asked.command == "report":
            return write(Results(), asked.samples)
        if asked.nice:
            os.nice(asked.nice)
        return 0 if _train(asked) else 6
    except TrunklineError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _train(asked: argparse.Namespace) -> bool:
    """First the rates, then the seeds."""
    server = EmbeddedServer(FOLDER / "redis", durable=False)
    server.start()  # or taken over, where a study before this one was killed
    try:
        return _carried_out(asked, server.url)
    finally:
        server.stop()


def _carried_out(asked: argparse.Namespace, url: str) -> bool:
    results, deadline = Results(), drive.until(SystemClock(), asked.budget)
    # Runs and results of this study look to the drive as those of the other.
    work = drive.Drive(results, asked.workers, deadline, _told, FOLDER, (*WORKER, url))  # type: ignore[arg-type]
    if not work.carry_out(tuning()):  # type: ignore[arg-type]
        return False
    rates = chosen(results.scores)
    if rates is None:
        return False
    wanted = [run for run in main_part(rates) if run.seed < asked.seeds]
    return work.carry_out(wanted) and not work.failed  # type: ignore[arg-type]


def _told(run: object, result: object, why: str) -> None:
    said = f"{result.mean:.3f} in {result.seconds:.0f} s" if hasattr(result, "mean") else f"no result, {why}"  # type: ignore[union-attr]
    print(f"{run}: {said}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="carry out what has no result yet")
    run.add_argument("--budget", type=float, metavar="SECONDS", help="stop in time; what is missing is run another day")
    run.add_argument("--workers", type=int, default=2, help="processes, one thread each (default: 2)")
    run.add_argument("--seeds", type=int, default=5, help="so many seeds at most")
    run.add_argument("--nice", type=int, default=0, help="leave the machine to others, as `nice` does")
    report = commands.add_parser("report", help="write docs/learning.md and the picture from what there is")
    report.add_argument("--samples", type=int, default=2000, help="bootstrap samples (default: 2000)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
