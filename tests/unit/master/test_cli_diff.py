"""How far two parameter sets are apart."""

from pathlib import Path

import numpy as np
import pytest

from master.cli.diff import compare
from trunkline.sets import write_set
from trunkline.tensors import SLICE_ELEMENTS


def test_each_tensor_against_numpy(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    wide = SLICE_ELEMENTS // 2
    old: dict[str, np.ndarray] = {
        "big": rng.standard_normal((3, wide), dtype=np.float32),
        "same": np.ones(4, np.float32),
        "zero": np.zeros((), np.float32),
        "count": np.arange(3),
    }
    changed = {"big": old["big"].copy(), "zero": np.full((), 2.0, np.float32), "count": np.array([0, 1, 9])}
    new = {**old, **changed}
    new["big"][2, 7] += 0.5
    write_set(tmp_path / "old", old)
    write_set(tmp_path / "new", new)
    rows = {row["name"]: row for row in compare(tmp_path / "old", tmp_path / "new")}
    assert rows["same"] == {"name": "same", "shape": [4], "changed": 0, "largest": 0.0, "rms": 0.0, "relative": 0.0}
    difference = new["big"].astype(np.float64) - old["big"]
    assert rows["big"]["changed"] == 1 and rows["big"]["largest"] == pytest.approx(np.abs(difference).max())
    assert rows["big"]["rms"] == pytest.approx(np.sqrt((difference**2).mean()))
    assert rows["big"]["relative"] == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(old["big"].astype(np.float64)))
    assert (rows["count"]["changed"], rows["count"]["largest"]) == (1, 7.0)
    assert rows["zero"]["relative"] is None, "from nothing there is no share"
    order = [row["name"] for row in compare(tmp_path / "old", tmp_path / "new")]
    assert order == ["zero", "count", "big", "same"], "what moved most comes first"


def test_tensors_that_only_one_side_has_and_numbers_that_are_none(tmp_path: Path) -> None:
    write_set(
        tmp_path / "old", {"a": np.zeros(2, np.float32), "b": np.array([1.0, np.nan], np.float32), "c": np.zeros(2, np.float32)}
    )
    write_set(tmp_path / "new", {"b": np.array([1.0, 2.0], np.float32), "c": np.zeros(3, np.float32), "d": np.zeros(1, np.float32)})
    rows = {row["name"]: row for row in compare(tmp_path / "old", tmp_path / "new")}
    assert rows["a"]["shape"] == [[2], None] and rows["d"]["shape"] == [None, [1]] and rows["c"]["shape"] == [[2], [3]]
    assert rows["b"]["rms"] is None and rows["a"]["changed"] is None
