"""`trunkline worker` and `trunkline-child worker`: which stream is meant, and what is said where there is nothing to work for."""

from collections.abc import Callable
from pathlib import Path

import pytest

import child.cli
import master.cli
from queues.stream.choose import choose
from queues.stream.home import StreamHome
from queues.stream.serve_worker import serve
from tests.support import small_stream
from trunkline.errors import NotFound, SettingsError, UsageError


def streams(folder: Path, *names: str) -> Path:
    for name in names:
        home = StreamHome(folder / "streams" / name)
        home.create(small_stream.spec(name=name))
    return folder / "streams"


def test_with_one_stream_its_name_may_be_left_out(tmp_path: Path) -> None:
    there = streams(tmp_path, "reviews")
    assert choose(there, None).folder == choose(there, "reviews").folder == there / "reviews"


def test_with_several_it_may_not(tmp_path: Path) -> None:
    there = streams(tmp_path, "reviews", "inbox")
    with pytest.raises(UsageError, match="found inbox, reviews"):
        choose(there, None)


def test_one_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="should be one of reviews, found 'inbox'"):
        choose(streams(tmp_path, "reviews"), "inbox")
    with pytest.raises(NotFound, match="should hold a stream"):
        choose(tmp_path / "nowhere", None)


def test_a_folder_that_is_half_made_is_none(tmp_path: Path) -> None:
    there = streams(tmp_path, "reviews", "inbox")
    (there / "inbox").rename(there / ".inbox.17.tmp")
    assert choose(there, None).folder == there / "reviews"


@pytest.mark.parametrize("option", [{"pool": "prefork"}, {"level": "loud"}])
def test_what_an_option_may_be_is_told(option: dict[str, str], tmp_path: Path) -> None:
    home = StreamHome(streams(tmp_path, "reviews") / "reviews")
    with pytest.raises(SettingsError, match=r"should be .*found '(prefork|loud)'"):
        serve(home, **option)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("main", "option"), [(master.cli.main, "--state"), (child.cli.main, "--home")], ids=["trunkline", "trunkline-child"]
)
def test_without_a_server_nothing_starts(
    main: Callable[[list[str]], int], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    streams(tmp_path, "reviews")
    assert main(["worker", option, str(tmp_path)]) == 4
    assert "should have a server that runs" in capsys.readouterr().err
    assert main(["worker", "other", option, str(tmp_path)]) == 5
    assert main(["worker", "--stream-folder", str(tmp_path / "none"), option, str(tmp_path)]) == 5
    assert not (tmp_path / "none").exists()
