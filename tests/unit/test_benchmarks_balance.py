"""The measurement of gradient rules: it runs, and tells every rule."""

from typing import Any

import pytest

from benchmarks.balance import FULL, LIMIT, aims, measure
from benchmarks.codecs import shapes
from tasks import balance


def test_every_rule_is_measured() -> None:
    lines: list[Any] = []
    section = measure(shapes(40, 1, 16), 1, lines.append)
    assert [row[0] for row in section.rows] == ["(the mean)", *balance.RULES]
    assert all(len(row) == len(section.columns) for row in section.rows) and len(lines) == len(balance.RULES)


def test_the_set_is_as_large_as_the_page_says() -> None:
    assert sum(tensor.elements for tensor in FULL.values()) == pytest.approx(22.6e6, rel=0.01)


def test_the_slowest_rule_is_held_to_a_limit() -> None:
    assert [aim.met for aim in aims({"equal": 0.1, "nash": LIMIT * 0.9})] == [True]
    assert [aim.met for aim in aims({"equal": 0.1, "nash": LIMIT * 1.1})] == [False]
