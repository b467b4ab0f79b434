"""Counters and masks: a declared policy, and the dtype and shape they had."""

import numpy as np
import pytest

from master.rules import Buffers
from tests.support.rules import contribution, fuse

BASE = {"n": np.array(5, np.int64), "m": np.array([True, False, True]), "small": np.array([1, 2], np.int8)}
UPDATES = [
    contribution("a", {"n": np.array(7, np.int64), "m": np.array([True, False, True]), "small": np.array([3, -4], np.int8)}, 3),
    contribution("b", {"n": np.array(10, np.int64), "m": np.array([False, True, True]), "small": np.array([5, 6], np.int8)}, 4),
    contribution("z", {"n": np.array(10**9, np.int64), "m": np.array([False] * 3), "small": np.array([99, 99], np.int8)}, 0),
]


@pytest.mark.parametrize("rule", ["mean", "median", "adam"])
@pytest.mark.parametrize(
    ("way", "number", "small"), [("mean", 9, [4, 2]), ("max", 10, [5, 6]), ("min", 7, [3, -4]), ("keep", 5, [1, 2])]
)
def test_whole_numbers(rule: str, way: str, number: int, small: list[int]) -> None:
    fused = fuse(rule, BASE, UPDATES, buffers=Buffers.model_validate({"integers": way}))
    assert fused["n"].dtype == np.int64
    assert fused["n"].shape == ()
    assert int(fused["n"]) == number  # the mean is 8.714, rounded; nobody without samples counts
    assert fused["small"].dtype == np.int8
    assert fused["small"].tolist() == small


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 2**53 + 1, 0])
def test_a_number_that_all_agree_on_stays_however_large(number: int) -> None:
    """Float64 does not hold it: the largest came back as the smallest."""
    updates = [contribution(name, {"n": np.array(number, np.int64)}, 1 + place) for place, name in enumerate("abc")]
    assert int(fuse("mean", {"n": np.array(0, np.int64)}, updates)["n"]) == number


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int16, np.int8, np.uint8])
def test_a_mean_lies_between_what_was_sent(dtype: type[np.signedinteger]) -> None:
    ends = [np.iinfo(dtype).min, np.iinfo(dtype).max]
    for first, second in ((ends[1], ends[1] - 1), (ends[0], ends[0] + 1), tuple(ends)):
        updates = [contribution("a", {"n": np.array(first, dtype)}, 7), contribution("b", {"n": np.array(second, dtype)}, 3)]
        found = fuse("mean", {"n": np.array(0, dtype)}, updates)["n"]
        assert found.dtype == dtype
        assert min(first, second) <= int(found) <= max(first, second)


@pytest.mark.parametrize(
    ("way", "mask"),
    [
        ("majority", [False, True, True]),
        ("any", [True, True, True]),
        ("all", [False, False, True]),
        ("keep", [True, False, True]),
    ],
)
def test_masks(way: str, mask: list[bool]) -> None:
    fused = fuse("mean", BASE, UPDATES, buffers=Buffers.model_validate({"booleans": way}))
    assert fused["m"].dtype == np.bool_
    assert fused["m"].tolist() == mask
