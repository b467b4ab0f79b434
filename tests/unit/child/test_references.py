"""What was scored alone is kept by task, and told only beside scores that it can be compared with."""

from pathlib import Path

import pytest

from child.home import ChildHome
from child.references import References
from trunkline.messages import Score
from trunkline.values import Split


def score(task: str, split: Split = "test", value: float = 0.5, metric: str = "accuracy", samples: int = 9) -> Score:
    return Score(task=task, split=split, metric=metric, value=value, samples=samples)


@pytest.fixture
def kept(tmp_path: Path) -> References:
    return References(ChildHome(tmp_path), "text")


def test_what_is_kept_is_told_again(kept: References, tmp_path: Path) -> None:
    scores = [score("a"), score("a", "validation"), score("b", value=0.1)]
    kept.keep(scores, {"a": 70, "b": 30}, 100)
    again = References(ChildHome(tmp_path), "text")
    assert again.beside([score("a", value=0.9), score("b")], {"a": 70, "b": 30}) == (scores[0], scores[2])
    assert References(ChildHome(tmp_path), "other").beside([score("a")], {"a": 70}) == ()


def test_a_new_run_replaces_its_own_tasks_only(kept: References) -> None:
    kept.keep([score("a", value=0.1), score("a", "validation"), score("b", value=0.2)], {"a": 70, "b": 30}, 100)
    kept.keep([score("a", value=0.3)], {"a": 80}, 50)
    asked = [score("a"), score("a", "validation"), score("b")]
    assert [one.value for one in kept.beside(asked, {"a": 80, "b": 30})] == [0.3, 0.2]


@pytest.mark.parametrize(
    "asked", [score("b"), score("a", "validation"), score("a", metric="f1"), score("a", samples=10)], ids=lambda one: repr(one)[:60]
)
def test_what_cannot_be_compared_is_not_told(kept: References, asked: Score) -> None:
    kept.keep([score("a")], {"a": 70}, 100)
    assert kept.beside([asked], {"a": 70, "b": 70}) == ()


def test_a_reference_of_other_rows_is_not_told(kept: References) -> None:
    kept.keep([score("a")], {"a": 70}, 100)
    assert kept.beside([score("a")], {"a": 71}) == () == kept.beside([score("a")], {})
    assert kept.beside([], {"a": 70}) == ()


@pytest.mark.parametrize("spoilt", ["", "[]", '{"a": 3}', '{"a": {"rows": 70, "scores": [{"task": "a"}]}}', "\udcff"])
def test_a_spoilt_file_counts_as_none_and_is_made_anew(
    kept: References, tmp_path: Path, spoilt: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "alone" / "text.json"
    path.parent.mkdir()
    path.write_bytes(spoilt.encode("utf-8", "surrogateescape"))
    assert kept.beside([score("a")], {"a": 70}) == ()
    assert spoilt == "[]" or str(path) in caplog.text
    kept.keep([score("a")], {"a": 70}, 100)
    assert kept.beside([score("a")], {"a": 70}) == (score("a"),)
