"""The measurement of the store: it runs, tells each step of the way, and holds applying to its limit."""

from pathlib import Path

from benchmarks.codecs import shapes
from benchmarks.store import LIMIT, measure


def test_each_step_of_an_update_is_measured(tmp_path: Path) -> None:
    section = measure(shapes(4000, 1, 16), 2, tmp_path, lambda line: None)
    assert [row[0] for row in section.rows] == ["dense", "rows"]
    assert all(len(row) == len(section.columns) for row in section.rows)
    assert [(aim.least, aim.most) for aim in section.aims] == [(1e3 * LIMIT, True)]
