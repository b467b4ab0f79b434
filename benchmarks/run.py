"""`python -m benchmarks.run`: measure, and write `benchmarks/RESULTS.md`. Wants a quiet machine; says so where it is not one."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import balance, blobs, codecs, exchange, fusing, machine, seeded, store, training
from benchmarks.figures import Note, Section, markdown
from benchmarks.streams import each, fairness, growth, latency, queue, trained
from trunkline.clock import SystemClock
from trunkline.errors import TrunklineError

PAGE = Path(__file__).with_name("RESULTS.md")

Part = Callable[[Path, bool, Note], Section]
"""One chapter: measured in a folder of its own, small or not."""

CLOCK = SystemClock()

PARTS: Mapping[str, Part] = {
    "exchange": lambda folder, tiny, note: exchange.measure(exchange.TINY if tiny else exchange.SIZES, folder, CLOCK, note),
    "training": lambda folder, tiny, note: training.measure(*((3, 1) if tiny else (12, 7)), folder, note),
    "fusing": lambda folder, tiny, note: fusing.measure(*((1_500_000, 1) if tiny else (22_700_000, 3)), folder, note),
    "blobs": lambda folder, tiny, note: blobs.measure(*((1_000_000, 2) if tiny else (22_000_000, 5)), folder, CLOCK, note),
    "seeded": lambda folder, tiny, note: seeded.measure(*((seeded.TINY, 2) if tiny else (seeded.FULL, 15)), note),
    "codecs": lambda folder, tiny, note: codecs.measure(*((codecs.TINY, 2) if tiny else (codecs.FULL, 7)), folder, note),
    "balance": lambda folder, tiny, note: balance.measure(*((codecs.TINY, 1) if tiny else (codecs.FULL, 5)), note),
    "store": lambda folder, tiny, note: store.measure(*((codecs.TINY, 2) if tiny else (codecs.FULL, 15)), folder, note),
    "queue": lambda folder, tiny, note: queue.measure(*((3_200, 1) if tiny else (32_000, 3)), folder, CLOCK, note),
    "latency": lambda folder, tiny, note: latency.measure(3 if tiny else 60, folder, CLOCK, note, tiny=tiny),
    "trained": lambda folder, tiny, note: trained.measure(*((2, 1) if tiny else (8, 5)), folder, CLOCK, note, tiny=tiny),
    "each": lambda folder, tiny, note: each.measure(*((160, 1) if tiny else (4_000, 8)), folder, CLOCK, note, tiny=tiny),
    "fairness": lambda folder, tiny, note: fairness.measure(2 if tiny else 60, folder, CLOCK, note, ("arrival",) if tiny else ()),
    "growth": lambda folder, tiny, note: growth.measure(40 if tiny else 10_000, folder, CLOCK, note),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for.

    :returns: 0 also where an aim was missed: the page says which.
    """
    asked = _parser().parse_args(arguments)
    began = machine.load()
    notes: list[str] = []
    if machine.busy():
        notes.append(
            "**The machine was busy with other programs** when this began: compare within a table, not with other machines."
        )
        _note(f"this machine is busy (load {began}); figures will be worse than on a quiet one")
    try:
        with tempfile.TemporaryDirectory(prefix="trunkline-bench-", dir=asked.folder) as folder:
            sections = [PARTS[name](_made(Path(folder) / name), asked.tiny, _note) for name in asked.only or PARTS]
    except TrunklineError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    about = machine.machine() | {
        "command": " ".join(
            ["python -m benchmarks.run", *(f"--only {name}" for name in asked.only or ()), *["--tiny"] * asked.tiny]
        ),
        "date": time.strftime("%Y-%m-%d %H:%M %z"),
        "load at the start": began,
        "load at the end": machine.load(),
    }
    page = markdown(sections, about, notes)
    if asked.json is not None:
        asked.json.write_text(
            json.dumps({"machine": about, "sections": [asdict(one) for one in sections]}, indent=1), encoding="utf-8"
        )
    if asked.tiny or asked.only:
        print(page)
        return 0
    PAGE.write_text(page, encoding="utf-8")
    _note(f"written: {PAGE.name}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(PARTS), help="one chapter; prints instead of writing the page")
    parser.add_argument("--tiny", action="store_true", help="try the script out: small sizes, few rounds; prints")
    parser.add_argument("--json", type=Path, help="write the figures as JSON to this file as well")
    parser.add_argument("--folder", type=Path, help="where the state of the measured programs lies; default: the system's own")
    return parser


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _note(line: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
