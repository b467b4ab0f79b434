"""The demo's data: what each of five sites holds, which is a share of the training rows."""

import csv
import io
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Site:
    """One child of the demo and its only task."""

    child: str
    task: str
    head: str
    file: str
    label: str

    def spec(self, data: Path, batch_size: int, max_length: int) -> dict[str, Any]:
        """The task as `tasks.specs.TaskSpec` reads it."""
        return {
            "name": self.task,
            "head": self.head,
            "data": str(data),
            "fields": ["text"],
            "label": self.label,
            "batch_size": batch_size,
            "max_length": max_length,
        }


SITES: Sequence[Site] = (
    Site("shop-amazon", "sentiment", "single", "reviews_amazon.csv", "label"),
    Site("shop-imdb", "sentiment", "single", "reviews_imdb.csv", "label"),
    Site("shop-yelp", "sentiment", "single", "reviews_yelp.csv", "label"),
    Site("tweets", "valence", "regression", "tweets_valence.csv", "score"),
    Site("mail", "spam", "single", "mail_spam.csv", "label"),
)


def write_site(site: Site, folder: Path, rows: float, held_out: float, seed: int) -> tuple[Path, int]:
    """Write what a site holds; return the file and its number of training rows."""
    text = files("tasks.data").joinpath(site.file).read_bytes().decode("utf-8")
    header, *found = csv.reader(io.StringIO(text, newline=""))
    split = header.index("split")
    kept: list[list[str]] = []
    for part, share in (("train", rows), ("validation", held_out), ("test", held_out)):
        of_part = [row for row in found if row[split] == part]
        if share < 1.0:
            random.Random(f"{seed}/{site.child}").shuffle(of_part)  # noqa: S311 - a choice of rows, no secret
        kept += of_part[: max(1, round(share * len(of_part)))]
    path = folder / f"{site.child}.csv"
    _write(path, header, kept)
    return path, sum(row[split] == "train" for row in kept)


def pool(paths: Sequence[Path], to: Path) -> Path:
    """All rows of several sites in one file."""
    header: list[str] = []
    rows: list[list[str]] = []
    for path in paths:
        with path.open(encoding="utf-8", newline="") as source:
            header, *found = csv.reader(source)
        rows += found
    _write(to, header, rows)
    return to


def _write(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(header)
        writer.writerows(rows)
