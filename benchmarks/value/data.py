"""Which rows each child gets: a share of the training rows, drawn by seed, and the same validation and test rows every time."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.value.rows import Rows, read_rows
from benchmarks.value.study import PLACES, SEVERAL, Place
from trunkline.files import write_atomically

ROOT = Path(__file__).parents[2]
VALIDATION = 150  # rows at most: scored often, while rates are searched for


@dataclass(frozen=True, slots=True)
class Draw:
    """The files of one draw."""

    children: Mapping[str, Path]  # by child
    merged: Mapping[str, Path]  # by task that several children have: all their rows


def draw(share: float, seed: int, folder: Path) -> Draw:
    """Write what each child holds.

    :param share: of the training rows; all of them are no draw, so the seed does not matter.
    """
    of = folder / (f"{share:g}-{seed}" if share < 1.0 else "all")
    of.mkdir(parents=True, exist_ok=True)
    taken = {place.child: _taken(place, share, seed) for place in PLACES}
    children = {place.child: _written(of / f"{place.child}{Path(place.file).suffix}", taken[place.child]) for place in PLACES}
    merged = {}
    for task in SEVERAL:
        mine = [place for place in PLACES if place.task == task]
        merged[task] = _written(of / f"all-{task}{Path(mine[0].file).suffix}", _joined([taken[place.child] for place in mine]))
    return Draw(children, merged)


def _taken(place: Place, share: float, seed: int) -> Rows:
    found = read_rows(ROOT / place.file)
    kept: list[str] = []
    for split in ("train", "validation", "test"):
        part = [line for line, of in zip(found.lines, found.splits, strict=True) if of == split]
        if split == "train" and share < 1.0:
            random.Random(f"{seed}/{place.child}").shuffle(part)
            part = part[: max(1, round(share * len(part)))]
        kept += part[:VALIDATION] if split == "validation" else part
    return Rows(found.header, kept, [])


def _joined(parts: Sequence[Rows]) -> Rows:
    return Rows(parts[0].header, [line for part in parts for line in part.lines], [])


def _written(path: Path, rows: Rows) -> Path:
    data = "".join([rows.header, *rows.lines]).encode()
    if not path.exists() or path.read_bytes() != data:
        write_atomically(path, data)
    return path


@cache
def truths(place: Place) -> Sequence[float]:
    """The targets of a regression's test rows, in the order of the file."""
    found = read_rows(ROOT / place.file)
    return tuple(found.value(line, place.label) for line, of in zip(found.lines, found.splits, strict=True) if of == "test")


@cache
def sizes(place: Place, share: float) -> tuple[int, int]:
    """Training rows that a child holds, and its test rows."""
    splits = read_rows(ROOT / place.file).splits
    return max(1, round(share * sum(split == "train" for split in splits))), sum(split == "test" for split in splits)
