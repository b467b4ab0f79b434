"""`python -m benchmarks.value`: tune, run and report the value study."""

import argparse
import os
import sys
from collections.abc import Iterable, Sequence

from benchmarks.value import defaults, drive, rates
from benchmarks.value.progress import Progress
from benchmarks.value.results import Results
from benchmarks.value.study import CELLS, OTHERS, SEEDS, VARIANTS, Cell, Run, make, others
from benchmarks.value.support import refusal
from trunkline.clock import SystemClock
from trunkline.errors import TrunklineError


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was asked for.

    :returns: 0 where all of it is done, 6 where something is left.
    """
    asked = _parser().parse_args(arguments)
    try:
        if asked.command == "report":
            from benchmarks.value.report import write

            return write(Results(), asked.samples)
        os.nice(19)  # a study of hours leaves the machine to others
        return _train(asked)
    except TrunklineError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _train(asked: argparse.Namespace) -> int:
    results, cells = Results(), CELLS if asked.cell is None else [CELLS[asked.cell]]
    deadline = drive.until(SystemClock(), asked.budget)
    with Progress() as progress:
        worker = drive.Drive(results, asked.workers, deadline, progress.told)
        if asked.command == "tune":
            done = all(_tune(worker, cell, results, progress) for cell in cells)
        else:
            runs = _defaults(results, progress) if asked.command == "defaults" else _study(results, cells, asked, progress)
            progress.begin(runs, results)
            done = worker.carry_out(runs)
    return 0 if done else 6


def _study(results: Results, cells: Sequence[Cell], asked: argparse.Namespace, progress: Progress) -> list[Run]:
    runs = _main(results, cells, progress) if asked.part != "others" else []
    runs += _others(results, progress) if asked.part != "main" else []
    return [run for run in runs if run.seed < asked.seeds]


def _tune(worker: drive.Drive, cell: Cell, results: Results, progress: Progress) -> bool:
    while runs := [run for run in rates.wanted(cell, results.score) if run.key not in worker.failed]:
        progress.begin(runs, results)
        if not worker.carry_out(runs):
            return False
    return not worker.failed


def _main(results: Results, cells: Sequence[Cell], progress: Progress) -> list[Run]:
    """The main part, seed by seed, so that a study that is stopped early has every cell with fewer seeds."""
    runs = []
    for seed in SEEDS:
        for cell in cells:
            found = rates.chosen(cell, results.score)
            if found is None:
                if seed == SEEDS[0]:
                    progress.say(f"left out, its rates are not tuned yet: {cell}")
                continue
            runs += [make(variant, cell, seed, found[variant]) for variant in VARIANTS]
    return runs


def _others(results: Results, progress: Progress) -> list[Run]:
    found = rates.chosen(OTHERS, results.score)
    if found is None:
        progress.say("left out, the rates are not tuned yet: other rules and codecs")
        return []
    return sorted(_supported(others(found["shared"]), progress), key=lambda run: run.seed)


def _defaults(results: Results, progress: Progress) -> list[Run]:
    """In the data-poor cells: the usual job, and one thing changed at a time."""
    runs: list[Run] = []
    for cell in CELLS:
        found = rates.chosen(cell, results.score) if cell.poor else None
        runs += defaults.wanted(cell, found["shared"]) if found is not None else []
    return _supported(runs, progress)


def _supported(runs: Iterable[Run], progress: Progress) -> list[Run]:
    """What this version can carry out; what it cannot is told once."""
    kept: list[Run] = []
    told: set[str] = set()
    for run in runs:
        why, name = refusal(run), f"{run.rule}, {run.codec}"
        if why is None:
            kept.append(run)
        elif name not in told:
            told.add(name)
            progress.say(f"left out, a job of this version refuses it: {name}: {why}")
    return kept


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.value", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    abouts = {
        "tune": "search for learning rates, on validation rows",
        "defaults": "try local steps and weightings, on validation rows",
        "run": "carry out what has no result yet",
    }
    for name, about in abouts.items():
        command = commands.add_parser(name, help=about)
        command.add_argument("--budget", type=float, metavar="SECONDS", help="stop in time; what is missing is run another day")
        command.add_argument("--workers", type=int, default=2, help="processes, one thread each (default: 2)")
        command.add_argument("--cell", type=int, choices=range(len(CELLS)), help="one cell only")
        if name == "run":
            command.add_argument(
                "--part", choices=("main", "others", "all"), default="all", help="main cells, other rules and codecs"
            )
            command.add_argument("--seeds", type=int, default=len(SEEDS), help="so many seeds at most")
    report = commands.add_parser("report", help="write docs/value.md and the picture from what there is")
    report.add_argument("--samples", type=int, default=2000, help="bootstrap samples (default: 2000)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
