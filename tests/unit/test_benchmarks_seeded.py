"""The measurement of seeded tensors measures what it says."""

import numpy as np

from benchmarks import seeded


def test_every_line_is_measured_in_each_turn_and_every_aim_is_told() -> None:
    shape = (256, 512)
    section = seeded.measure(shape, 1, lambda line: None)
    assert [row[0] for row in section.rows] == list(seeded.lines(shape))
    assert len(section.aims) == 5 and all(aim.found > 0 for aim in section.aims)


def test_the_lines_make_what_they_are_named_after() -> None:
    lines = seeded.lines((256, 512))
    for name, line in lines.items():
        line.work()
        assert line.elements == 256 * 512 // (8 if "1/8" in name else 1)


def test_a_ratio_is_of_elements_a_second() -> None:
    seconds = {
        "portable, normal": [8.0, 80.0, 8.0],
        "portable, 1/8 of the rows": [1.0, 10.0, 9.0],
        "portable, 1/8 of the columns": [2.0] * 3,
    }
    ratios = dict.fromkeys(("portable, normal", "fast, normal", "fast, normal, 2 threads"), 0.5)
    assert [aim.met for aim in seeded.aims(ratios, seconds)] == [True, False, False, True, False]
    assert np.isclose(seeded.aims(ratios, seconds)[3].found, 8.0)
