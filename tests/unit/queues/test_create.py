"""The folder of a new stream: whole or not at all, of files that were read and checked."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from queues.stream.create import create, declared, heldout
from queues.stream.home import PATH_LIMIT, StreamHome
from queues.stream.spec import StreamSpec
from tests.support import small_stream
from trunkline.errors import AlreadyRunning, Conflict, DamagedFile, NotFound, SampleError, SettingsError, SpecError


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_stream.folder(tmp_path_factory.mktemp("made") / "reviews").encoder


def with_heldout(file: str, **change: Any) -> StreamSpec:
    return small_stream.spec(tasks=[{**small_stream.TASKS[0], "heldout": file, **change}, small_stream.TASKS[1]])


def test_a_stream_has_all_it_needs_in_one_folder(tmp_path: Path, encoder: Path) -> None:
    (tmp_path / "held.csv").write_text("id,mood,text\n7,good,food\n8,bad,slow\n", encoding="utf-8")
    (tmp_path / "own.py").write_text("x = 1\n", encoding="utf-8")
    spec = with_heldout("held.csv")
    rows = heldout(spec, tmp_path)
    made = create(tmp_path / "s", spec, encoder, rows=rows, modules=[tmp_path / "own.py"], redis="redis://a", broker="redis://b")
    assert made.spec.tasks[0].heldout == "heldout/mood.jsonl"
    assert made.spec.tasks[1].heldout is None
    lines = (made.heldout / "mood.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [{"text": "food", "mood": "good"}, {"text": "slow", "mood": "bad"}]
    assert sorted(path.name for path in made.encoder.iterdir()) == sorted(path.name for path in encoder.iterdir())
    assert (made.modules / "own.py").exists()
    assert (made.redis_url, made.broker_url) == ("redis://a", "redis://b")
    assert len(made.epoch) == 16
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((made.folder / "stream.json").stat().st_mode) == 0o600
    assert not made.begun


def test_two_streams_have_different_epochs(tmp_path: Path, encoder: Path) -> None:
    assert create(tmp_path / "a", small_stream.spec(), encoder).epoch != create(tmp_path / "b", small_stream.spec(), encoder).epoch


def test_what_is_in_use_is_left_alone_and_what_fails_leaves_nothing(tmp_path: Path, encoder: Path) -> None:
    create(tmp_path / "s", small_stream.spec(), encoder)
    with pytest.raises(Conflict, match="should be a new folder"):
        create(tmp_path / "s", small_stream.spec(), encoder)
    with pytest.raises(SpecError, match=r"should be of the encoder's type 'text', found 'image'"):
        create(tmp_path / "t", with_heldout("x", encoder="image"), encoder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecError, match="should be the folder of an encoder"):
        create(tmp_path / "t", small_stream.spec(), tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "s"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("text,mood\nfood,god\n", "line 2, column 'mood': should be one of bad, good, found 'god'"),
        ("text\nfood\n", "line 2, column 'mood': should have a label, found none"),
        ("", "should hold samples, found an empty file"),
    ],
)
def test_a_held_out_row_that_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "held.csv").write_text(text, encoding="utf-8")
    with pytest.raises(SampleError, match=said):
        heldout(with_heldout("held.csv"), tmp_path)


def test_a_held_out_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=r"gone.csv` should be a file of samples, found none"):
        heldout(with_heldout("gone.csv"), tmp_path)


def test_flags_count_more_than_the_declaration(tmp_path: Path) -> None:
    text = 'name = "a"\nencoder = "b"\n[[tasks]]\nname = "t"\nhead = "regression"\nfields = ["x"]\nlabel = "y"\n'
    (tmp_path / "stream.toml").write_text(text, encoding="utf-8")
    assert declared(tmp_path / "stream.toml", {"name": "c", "encoder": None}).name == "c"
    assert declared(tmp_path / "stream.toml", {}).encoder == "b"
    (tmp_path / "stream.toml").write_text(text + "batch = 3\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"`tasks.0.batch` in `.*stream.toml` is not a known key; did you mean `batch_size`"):
        declared(tmp_path / "stream.toml", {})


# -- the folder --------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_no_stream_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"should be the folder of a stream, found no stream.json"):
        _ = StreamHome(tmp_path).spec
    (tmp_path / "stream.json").write_text("{", encoding="utf-8")
    with pytest.raises(DamagedFile, match="should be the declaration of a stream"):
        _ = StreamHome(tmp_path).spec


def test_servers_are_counted_and_only_one_holds_the_folder(tmp_path: Path, encoder: Path) -> None:
    home = create(tmp_path / "s", small_stream.spec(), encoder)
    lock = home.lock()
    with pytest.raises(AlreadyRunning, match="should be used by one server of a stream"):
        home.lock()
    assert [home.next_incarnation() for _ in range(3)] == [1, 2, 3]
    (home.folder / "incarnation").write_text("what", encoding="utf-8")
    assert home.next_incarnation() == 1
    home.write_server({"pid": 7})
    assert home.server() == {"pid": 7}
    home.forget_server()
    assert home.server() is None
    home.note_begun()
    assert home.begun
    lock.release()


def test_a_socket_s_path_is_short_however_long_the_folder_s_is(tmp_path: Path) -> None:
    short = StreamHome(Path("/tmp/s"))
    assert short.socket == short.folder / "server.sock"
    deep = StreamHome(tmp_path / ("x" * 120))
    assert len(str(deep.socket)) <= PATH_LIMIT
    assert deep.socket != StreamHome(tmp_path / ("y" * 120)).socket
    assert deep.socket == StreamHome(tmp_path / ("x" * 120)).socket
