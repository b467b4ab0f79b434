"""Chaos from the command line: `python -m tests.chaos --seconds 600 --seed 7`. The exit code is 1 where something was wrong."""

import argparse
import random
import signal
import sys
from pathlib import Path

from tests.chaos.runner import Plan, run, show
from tests.chaos.schedule import KINDS


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Kill everything at random, and look what became of it."
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="of chaos; the account comes after it")
    parser.add_argument("--seed", type=int, default=None, help="of the schedule; without, one is drawn and printed")
    parser.add_argument("--runs", type=int, default=1, help="one after the other, each with the next seed")
    parser.add_argument("--mode", choices=("each", "together"), default="each", help="whether tasks go together")
    parser.add_argument("--without", default="", help=f"kinds that do not come, of {', '.join(KINDS)}")
    parser.add_argument("--only", default="", help="kinds that come")
    parser.add_argument("--keep", type=Path, default=None, help="where the folders of each run are copied to")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 20) if given.seed is None else given.seed
    wanted = given.only.split(",") if given.only else [kind for kind in KINDS if kind not in given.without.split(",")]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends, and what was mounted is let go
    failed = 0
    for number in range(given.runs):
        print(f"seed {seed + number}", flush=True)
        report = run(Plan(seed + number, given.seconds, given.mode, tuple(wanted), keep=given.keep))
        show(report)
        failed += bool(report.wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
