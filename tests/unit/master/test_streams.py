"""The streams of a master: which there are, which of them should run, and what is said of those that do not."""

import random
from pathlib import Path

import pytest

from master.api.streams import _module
from master.cli.lineage import merged
from master.pause import FIRST_PAUSE, LONGEST_PAUSE, Pause
from master.streams import OFF, Streams
from queues.stream.create import create
from tests.support import small_stream
from trunkline.clock import ManualClock
from trunkline.errors import Conflict, NotFound, Unreachable, UsageError


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_stream.folder(tmp_path_factory.mktemp("made") / "reviews").encoder


@pytest.fixture
def streams(tmp_path: Path) -> Streams:
    return Streams(tmp_path / "streams", ManualClock(), random.Random(0))


def test_a_master_without_a_stream_has_no_folder_of_them(streams: Streams) -> None:
    streams.turn()
    assert streams.names() == []
    assert not streams.folder.exists()
    with pytest.raises(NotFound, match=r"there should be a stream, found none. Make one"):
        streams.find(None)
    with pytest.raises(NotFound, match="should be one of none yet, found 'x'"):
        streams.find("x")


def test_the_only_one_need_not_be_named(streams: Streams, encoder: Path) -> None:
    streams.create(small_stream.spec(), dict(_files(encoder)), rows={})
    assert streams.find(None) == "reviews"
    create(streams.folder / "other", small_stream.spec(name="other"), encoder)
    with pytest.raises(UsageError, match="`stream` should say which one of other, reviews, found nothing"):
        streams.find(None)
    with pytest.raises(Conflict, match="should be new, found stream 'reviews' already"):
        streams.create(small_stream.spec(), dict(_files(encoder)), rows={})


def test_what_is_said_of_one_that_does_not_answer(streams: Streams, encoder: Path) -> None:
    streams.create(small_stream.spec(), dict(_files(encoder)), rows={})
    assert streams.table("reviews")["state"] == "starting"
    with pytest.raises(Unreachable, match=r"found it starting"):
        streams.check_runs("reviews")
    streams.stop("reviews")
    assert (streams.folder / "reviews" / OFF).exists()
    with pytest.raises(Conflict, match=r"found it stopped. Start it: trunkline stream start reviews"):
        streams.check_runs("reviews")
    streams.start("reviews")
    assert streams.table("reviews")["state"] == "starting"
    (streams.folder / "reviews" / "stream.json").write_text("{", encoding="utf-8")
    assert "should be the declaration of a stream" in streams.table("reviews")["reason"]
    streams.remove("reviews")
    assert list(streams.folder.iterdir()) == []


@pytest.mark.slow
def test_a_process_that_ends_is_started_again_after_a_pause_that_grows(streams: Streams, encoder: Path) -> None:
    streams.create(small_stream.spec(), dict(_files(encoder)), rows={})
    (streams.folder / "reviews" / "stream.json").write_text("{", encoding="utf-8")  # it ends at once, and says why
    clock = streams.clock
    assert isinstance(clock, ManualClock)
    for turn in range(3):
        streams.turn()
        process = streams._running["reviews"].process
        assert process is not None
        process.wait(60)
        streams.turn()
        found = streams._running["reviews"]
        assert found.process is None
        assert found.reason is not None and "should be the declaration of a stream" in found.reason
        assert FIRST_PAUSE * 2**turn / 2 <= found.pause.until - clock.monotonic() <= FIRST_PAUSE * 2**turn
        assert streams.table("reviews")["state"] == "failed"
        with pytest.raises(Unreachable, match=r"found it failed: .*should be the declaration of a stream"):
            streams.check_runs("reviews")
        streams.turn()
        assert found.process is None
        clock.sleep(found.pause.until - clock.monotonic())
    streams.close()
    streams.turn()
    assert streams._running == {}


def test_a_pause_grows_to_a_limit() -> None:
    pause, rng = Pause(), random.Random(0)
    assert pause.over(0.0)
    for _ in range(20):
        pause.grow(10.0, rng)
    assert LONGEST_PAUSE / 2 <= pause.until - 10.0 <= LONGEST_PAUSE
    assert not pause.over(10.0)
    assert pause.over(pause.until)


def test_a_module_is_a_file_of_python_by_its_whole_path(tmp_path: Path) -> None:
    (tmp_path / "own.py").touch()
    assert _module(str(tmp_path / "own.py")) == tmp_path / "own.py"
    for wrong in ("own.py", str(tmp_path / "none.py"), str(tmp_path), "/etc/passwd"):
        with pytest.raises(UsageError, match="`modules` should be files of Python"):
            _module(wrong)


def test_versions_and_steps_stand_in_one_line_of_time() -> None:
    version = {
        "number": 2,
        "created": 20.0,
        "job": "j",
        "round": 3,
        "weights": {"b": 1, "a": 1},
        "kind": "round",
        "parent_number": 1,
    }
    first = {"number": 1, "created": 10.0, "job": None, "round": None, "weights": {}, "kind": "initial", "parent_number": None}
    step = {"step": 7, "at": 15.0, "task": "mood", "batch": "x", "worker": "w:1", "samples": 4, "base": 6}
    round_ = {"step": 8, "at": 25.0, "task": "", "batch": "j-3", "worker": "", "samples": 0, "base": 0}
    rows = merged([first, version], {"s": [round_, step]})
    assert [row["what"] for row in rows] == ["step 8", "version 2", "step 7", "version 1"]
    assert rows[0]["of"] == "stream s, round j-3"
    assert (rows[1]["of"], rows[1]["by"], rows[1]["base"]) == ("job j, round 3", "a, b", "version 1")
    assert rows[2]["of"] == "stream s, queue mood, batch x"
    assert rows[3]["by"] == "initial"


def _files(encoder: Path) -> list[tuple[str, Path]]:
    return [(path.name, path) for path in encoder.iterdir()]
