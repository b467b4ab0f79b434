"""A new folder appears whole or not at all."""

from pathlib import Path

import pytest

from trunkline.errors import Conflict, StorageFailed
from trunkline.folders import check_new, new_folder


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    place = tmp_path / "made"
    with pytest.raises(ZeroDivisionError), new_folder(place) as beside:
        (beside / "half").touch()
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with new_folder(place) as beside:
        (beside / "whole").touch()
        assert not place.exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "whole"]


def test_only_a_new_or_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty") as beside:
        (beside / "file").touch()
    for used in (tmp_path / "empty", tmp_path / "empty" / "file"):
        with pytest.raises(Conflict, match=f"`{used}` should be a new folder, found {used} in use"), new_folder(used):
            pass
    with pytest.raises(Conflict, match="`--out` should be a new folder"):
        check_new(tmp_path, "--out")
    with pytest.raises(StorageFailed), new_folder(tmp_path / "empty" / "file" / "below"):
        pass
