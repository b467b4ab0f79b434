"""Rows of a CSV or JSON Lines file, each kept as the text it is, with the split it belongs to."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Rows:
    """A file in pieces."""

    header: str  # first line of a CSV; empty for JSON Lines
    lines: Sequence[str]  # one a row, with its end
    splits: Sequence[str]  # train, validation or test, one a row

    def value(self, line: str, column: str) -> float:
        """A number out of a row."""
        if not self.header:
            return float(json.loads(line)[column])
        names = next(csv.reader([self.header]))
        return float(next(csv.reader(io.StringIO(line, newline="")))[names.index(column)])


def read_rows(path: Path) -> Rows:
    """The rows of a file that has a column or field `split`."""
    text = path.read_bytes().decode("utf-8")
    if path.suffix == ".jsonl":
        lines = text.splitlines(keepends=True)
        return Rows("", lines, [json.loads(line)["split"] for line in lines])
    header, *found = csv.reader(io.StringIO(text, newline=""))
    split = header.index("split")
    return Rows(_line(header), [_line(row) for row in found], [row[split] for row in found])


def _line(cells: Sequence[str]) -> str:
    target = io.StringIO(newline="")
    csv.writer(target, lineterminator="\n").writerow(cells)
    return target.getvalue()
