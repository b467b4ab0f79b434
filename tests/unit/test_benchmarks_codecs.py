"""The measurement of codecs: it runs, tells every codec, and holds int8 to its aims."""

from pathlib import Path

import pytest

from benchmarks.codecs import FULL, WORDS, Speed, aims, measure, shapes
from trunkline.codecs import CODECS


def test_every_codec_is_measured(tmp_path: Path) -> None:
    section = measure(shapes(40, 1, 16), 1, tmp_path, lambda line: None)
    assert [row[0] for row in section.rows] == list(WORDS) == list(CODECS)
    assert {row[5] == "nothing" for row in section.rows if row[0] == "float32"} == {True}
    assert all(len(row) == len(section.columns) for row in section.rows)


def test_the_set_is_as_large_as_the_aims_say() -> None:
    assert sum(tensor.elements for tensor in FULL.values()) == pytest.approx(22.7e6, rel=0.01)


@pytest.mark.parametrize(("seconds", "share", "met"), [(0.09, 0.25, [True, True]), (0.11, 0.28, [False, False])])
def test_int8_is_held_to_a_gigabyte_by_second_and_to_27_percent(seconds: float, share: float, met: list[bool]) -> None:
    found = {"int8": Speed(share, seconds / 2, seconds / 2, None)}
    assert [aim.met for aim in aims(found, 100_000_000)] == met
