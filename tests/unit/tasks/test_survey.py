"""A survey counts and names, and reads a file once for each content."""

from pathlib import Path

import pytest

from tasks.survey import survey
from tests.unit.tasks.conftest import Write
from tests.unit.tasks.test_samples import HEADER, ROWS, single


def test_the_survey_counts_and_names_and_reads_a_file_once(
    tmp_path: Path, write_csv: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv("a.csv", [HEADER, *ROWS])
    cache = tmp_path / "cache"
    assert survey(single(), tmp_path, cache).counts == {"train": 2, "validation": 1, "test": 1}
    assert survey(single(), tmp_path, cache).labels == ("no", "yes")
    with monkeypatch.context() as patch:
        patch.setattr("tasks.survey.rows", lambda *_: pytest.fail("read again"))
        assert survey(single(), tmp_path, cache).counts["train"] == 2
        assert survey(single(batch_size=7), tmp_path, cache).counts["train"] == 2  # nothing that decides how it is read
    write_csv("a.csv", [HEADER, *ROWS, ("more", "maybe", "train")])
    assert survey(single(), tmp_path, cache).counts["train"] == 3
    assert survey(single(), tmp_path, cache).labels == ("maybe", "no", "yes")
    assert survey(single(labels=("yes", "no", "maybe")), tmp_path, cache).labels == ("yes", "no", "maybe")
    assert survey(single(rows=0.34), tmp_path, cache).counts["train"] == 1


def test_a_readers_code_is_part_of_what_decides(tmp_path: Path, write_csv: Write) -> None:
    write_csv("a.csv", [HEADER, *ROWS])
    (tmp_path / "modules").mkdir()
    for count in (3, 5):
        row = "{'text': 'a', 'label': str(n), 'split': 'train'}"
        code = f"def read(path, spec):\n    for n in range({count}):\n        yield {row}\n"
        (tmp_path / "modules" / "own.py").write_text(code)
        found = survey(single(reader="own.py:read"), tmp_path, tmp_path / "cache", [tmp_path / "modules"]).counts
        assert found["train"] == count


def test_a_damaged_survey_is_made_again(tmp_path: Path, write_csv: Write) -> None:
    write_csv("a.csv", [HEADER, *ROWS])
    wanted = survey(single(), tmp_path, tmp_path)
    for damage in (b"", b"{", b"[]", b'{"key": 1}'):
        (tmp_path / "survey-t.json").write_bytes(damage)
        assert survey(single(), tmp_path, tmp_path) == wanted


def test_a_task_without_training_samples_counts_zero(tmp_path: Path, write_csv: Write) -> None:
    write_csv("a.csv", [HEADER, ("a", "x", "test"), ("b", "y", "test")])
    assert survey(single(), tmp_path, tmp_path / "cache").counts == {"train": 0, "validation": 0, "test": 2}
