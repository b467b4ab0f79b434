"""Tasks that come through a stream, at the command line, with no server: declared, counted, removed."""

from pathlib import Path

import pytest

from child.home import ChildHome
from tests.support import small_stream
from tests.unit.child.test_cli import REVIEWS, add, done, failed

Capture = pytest.CaptureFixture[str]

SHOP = ["task", "add", "--stream", "shop", "--task"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A child with a stream of tasks `mood` and `price`, that nobody serves."""
    monkeypatch.setenv("TRUNKLINE_CHILD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    made = ChildHome(tmp_path / "home")
    made.streams.mkdir()
    small_stream.folder(made.streams / "shop")
    (tmp_path / "reviews.csv").write_text(REVIEWS)
    return made.folder


def test_a_task_is_taken_from_the_declaration_of_its_stream(home: Path, capsys: Capture) -> None:
    found = done(capsys, *SHOP, "mood")
    assert found == {"task": "mood", "encoder": "text", "head": "single", "metric": "accuracy", "stream": "shop"}
    shown = done(capsys, "task", "show", "mood")
    assert (shown["data"], shown["labels"], shown["batch_size"]) == ("stream:shop", ["bad", "good"], 4)
    rounds = home / "streams" / "shop" / "rounds"
    assert (rounds / "attached").exists(), "the stream learns in rounds only, from its next start on"
    done(capsys, *SHOP, "price")
    done(capsys, "task", "remove", "mood")
    assert (rounds / "attached").exists()
    done(capsys, "task", "remove", "price")
    assert not (rounds / "attached").exists()


def test_what_is_wrong_is_said(home: Path, capsys: Capture) -> None:
    assert "should come from FILE or by `--stream`, found both or neither" in failed(capsys, "task", "add", "--task", "mood")[2]
    assert "found both" in failed(capsys, *SHOP, "mood", "reviews.csv")[2]
    assert "`stream` should be one of shop, found 'shed'" in failed(capsys, "task", "add", "--stream", "shed", "--task", "mood")[2]
    assert "`--task` should be one of mood, price, found 'taste'" in failed(capsys, *SHOP, "taste")[2]
    assert failed(capsys, "task", "add", "--stream", "../shop", "--task", "mood")[0] == 5
    done(capsys, *add("reviews.csv"))
    assert "all come from files, or all through one stream, found files, stream shop" in failed(capsys, *SHOP, "mood")[2]
    done(capsys, "task", "remove", "sentiment")
    done(capsys, *SHOP, "mood")
    assert "the queue of task 'mood' should be told of by its stream" in failed(capsys, "task", "check", "mood")[2]
    assert "should feed no task to be removed, found mood" in failed(capsys, "stream", "remove", "shop", "--yes")[2]
    encoder = str(home / "streams" / "shop" / "encoder")
    assert "found mood in queues" in failed(capsys, "alone", "--encoder", encoder, "--steps", "1")[2]
    (row,) = done(capsys, "status")["tasks"]
    assert row["task"] == "mood"
    assert "should be told of by its stream" in row["problem"]
