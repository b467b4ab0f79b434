"""The API of a stream on its socket, by the real process: every call, every error, and who may reach it."""

import hashlib
import http.client
import io
import json
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queues.redis import script
from queues.stream import asking, pushing, samples
from queues.stream.client import StreamClient
from queues.stream.edge import BODY_LIMIT
from queues.stream.join import join
from tests.support import small_stream
from tests.support.served import Served, served
from trunkline.clock import Deadline, SystemClock
from trunkline.errors import (
    Conflict,
    NotFound,
    QueueFull,
    QueuePaused,
    RefusedValue,
    SampleError,
    SettingsError,
    Unreachable,
    UsageError,
)
from trunkline.sets import SetFile
from trunkline.terminal import Terminal

pytestmark = pytest.mark.contract

ROW = {"text": "good food", "mood": "good", "price": 3.5}


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = small_stream.folder(tmp_path_factory.mktemp("api") / "reviews", feeds={"both": ["mood", "price"]})
    with served(home) as made:
        yield made


@pytest.fixture(autouse=True)
def _empty(stream: Served) -> Iterator[None]:
    for task in ("mood", "price"):
        stream.call("POST", f"queues/{task}/state", json.dumps({"state": "paused"}))  # no worker takes what is looked at
        stream.call("DELETE", f"queues/{task}/samples")
        stream.call("POST", f"queues/{task}/state", json.dumps({"state": "open"}))
    yield


def body(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def waiting(stream: Served) -> dict[str, int]:
    return {one["task"]: one["waiting"] for one in stream.call("GET", "queues")}


def test_a_push_and_a_look(stream: Served) -> None:
    assert stream.call("POST", "queues/both/samples", body(ROW)) == {"samples": 1, "waiting": {"mood": 1, "price": 1}}
    assert stream.call("GET", "queues/mood/samples", most=5)[0]["inputs"] == ["good food"]
    found = stream.call("GET", "queues/mood")
    assert (found["state"], found["waiting"], found["settings"]["batch_size"]) == ("open", 1, 4)
    assert found["oldest_seconds"] >= 0


def test_a_push_that_is_sent_again(stream: Served) -> None:
    for _ in range(2):
        stream.call("POST", "queues/mood/samples", body(ROW, ROW), producer="again", first=1)
    assert waiting(stream)["mood"] == 2


def test_its_status(stream: Served) -> None:
    found = stream.call("GET", "status")
    assert stream.process is not None
    assert (found["stream"], found["encoder"], found["pid"]) == ("reviews", "tiny", stream.process.pid)
    assert [one["task"] for one in found["queues"]] == ["mood", "price"]
    assert found["feeds"] == {"both": ["mood", "price"]}
    assert stream.call("GET", "scores") == []
    assert stream.call("GET", "workers") == []


def test_settings_and_states(stream: Served) -> None:
    found = stream.call("PATCH", "queues/mood", json.dumps({"settings": {"most": 9}}))
    assert found["settings"]["most"] == 9
    with pytest.raises(QueueFull, match="should have room for 10 more samples, found 0"):
        stream.call("POST", "queues/mood/samples", body(*[ROW] * 10))
    for state in ("paused", "draining", "stopped"):
        assert stream.call("POST", "queues/mood/state", json.dumps({"state": state}))["state"] == state
        with pytest.raises(QueuePaused, match="0 wait"):
            stream.call("POST", "queues/mood/samples", body(ROW))
    stream.call("PATCH", "queues/mood", json.dumps({"settings": {"most": 100_000}}))


def test_dead_batches(stream: Served) -> None:
    assert stream.call("GET", "queues/mood/dead") == []
    assert stream.call("POST", "queues/mood/dead/retry", json.dumps({"batches": ["x"]})) == {"task": "mood", "batches": 0}
    assert stream.call("POST", "queues/mood/dead/purge") == {"task": "mood", "samples": 0}


WRONG: list[tuple[str, str, bytes, type[Exception], str]] = [
    ("GET", "nothing", b"", NotFound, "should be a part of the API"),
    ("PUT", "queues/mood", b"", NotFound, "should be a part of the API"),
    ("GET", "queues/moot", b"", NotFound, "should be one of mood, price, found 'moot'"),
    ("POST", "queues/moot/samples", b"", NotFound, "should be one of mood, price, both, found 'moot'"),
    ("POST", "queues/mood/samples", b"nope", SampleError, "line 1: should be a JSON object"),
    (
        "POST",
        "queues/price/samples",
        b'{"text": "x", "price": NaN}',
        SampleError,
        "line 1, column 'price': should be a finite number",
    ),
    ("POST", "queues/mood/samples?first=x", b"", UsageError, "`first` should be a whole number, found 'x'"),
    ("POST", "queues/mood/samples?producer=%00", b"", UsageError, "`producer` should be"),
    ("POST", "queues/mood/samples?producer=a&first=0", body(ROW), SettingsError, "should be counted from 1, found 0"),
    ("GET", "queues/mood/samples?most=-1", b"", UsageError, "`most` should be a whole number"),
    ("POST", "queues/mood/state", b'{"state": "off"}', SettingsError, "`state` in the body is wrong"),
    ("POST", "queues/mood/state", b"[]", UsageError, "the body should be a JSON object, found list"),
    ("POST", "queues/mood/state", b"{", UsageError, "the body should be a JSON object"),
    ("PATCH", "queues/mood", b'{"settings": {"batch_size": 5000}}', SettingsError, "`batch_size` in the queue mood is wrong"),
    ("PATCH", "queues/mood", b'{"weight": 3}', SettingsError, "`weight` in the body is not a known key"),
]


@pytest.mark.parametrize(("method", "path", "sent", "kind", "said"), WRONG, ids=[f"{one[0]} {one[1]} {one[4]}" for one in WRONG])
def test_what_is_wrong_is_told(stream: Served, method: str, path: str, sent: bytes, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said) as found:
        stream.call(method, path, sent)
    assert type(found.value) is kind
    assert waiting(stream) == {"mood": 0, "price": 0}


def test_a_body_that_is_too_long_is_refused_before_it_is_read(stream: Served) -> None:
    with pytest.raises((RefusedValue, Unreachable)) as found:
        stream.call("POST", "queues/mood/samples", b" " * (BODY_LIMIT + (4 << 20)))
    assert isinstance(found.value, Unreachable) or f"at most {BODY_LIMIT} bytes" in str(found.value)
    assert stream.call("GET", "queues")


def test_what_is_no_http_harms_nobody(stream: Served) -> None:
    for sent in (
        b"\x00" * 4000,
        b"GET /v1/status\r\n\r\n",
        b"POST /v1/queues/mood/samples HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{",
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
            one.settimeout(10.0)
            one.connect(str(stream.home.socket))
            one.sendall(sent)
            one.shutdown(socket.SHUT_WR)
            while one.recv(4096):
                pass
    assert waiting(stream)["mood"] == 0


def test_only_this_user_reaches_the_socket(stream: Served) -> None:
    assert stat.S_IMODE(stream.home.socket.stat().st_mode) == 0o600
    told = json.loads((stream.home.folder / "server.json").read_bytes())
    assert stat.S_IMODE((stream.home.folder / "server.json").stat().st_mode) == 0o600
    assert told["pid"] == (stream.process.pid if stream.process else None)


def test_a_second_server_refuses(stream: Served) -> None:
    second = Served(stream.home)
    assert second.launch().wait(60) == 5
    assert "should be used by one server of a stream" in second.said()
    assert stream.call("GET", "status")["pid"] == (stream.process.pid if stream.process else None)


def test_where_nobody_serves_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"the server of stream 'x' should answer, found: No such file or directory.*server.log"):
        StreamClient(tmp_path / "none.sock", "x").call("GET", "/v1/status")
    nobody = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    nobody.bind(str(tmp_path / "dead.sock"))
    nobody.close()
    with pytest.raises(Unreachable, match="Connection refused"):
        StreamClient(tmp_path / "dead.sock", "x").call("GET", "/v1/status")


def test_an_answer_that_does_not_come_is_waited_for_so_long(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mute:
        mute.bind(str(tmp_path / "mute.sock"))
        mute.listen()
        with pytest.raises(Unreachable, match="should answer in time"):
            StreamClient(tmp_path / "mute.sock", "x", seconds=0.2).call("GET", "/v1/status")


# -- from elsewhere ----------------------------------------------------------------------------------------------------


def test_a_push_from_redis_cli(stream: Served) -> None:
    """A program in any language that packs as `tasks.packed` says; here one sample of ours, handed on as it is."""
    found = shutil.which("redis-cli")
    if found is None:
        pytest.skip("no redis-cli on this machine: apt-get install redis-tools")
    stream.call("POST", "queues/mood/samples", body(ROW))
    from queues.connection import connect
    from queues.redis import RedisQueues

    client = connect(json.loads((stream.home.folder / "server.json").read_bytes())["redis"])
    (sample,) = RedisQueues(client, "reviews").waiting("mood")
    client.close()
    base = [found, "-s", str(_socket_of(stream))]
    sha = subprocess.run(
        [*base, "-x", "script", "load"], input=script("push"), capture_output=True, text=True, timeout=20, check=True
    )
    command = [*base, "-x", "evalsha", sha.stdout.strip(), "1", "{trunkline:reviews}:meta", "*", "", "mood", "cli", "1"]
    for _ in range(2):
        done = subprocess.run(command, input=sample, capture_output=True, timeout=20, check=True)
    assert done.stdout.split() == [b"DUPLICATE", b"2"]
    first, second = stream.call("GET", "queues/mood/samples")
    assert first == second


def _socket_of(stream: Served) -> Path:
    from queues.embedded import EmbeddedServer

    return EmbeddedServer(stream.home.redis).socket


# -- as the command lines ask ------------------------------------------------------------------------------------------


def test_a_file_is_pushed_in_pieces(stream: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushing, "LINES", 3)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(body(*[ROW] * 4) + b"\n" + body(*[ROW] * 3))
    found = pushing.push(stream.call, "mood", str(path), producer=None, first=1, clock=SystemClock(), seconds=1.0)
    assert (found.data["samples"], found.data["waiting"], found.data["next"]) == (7, {"mood": 7}, 8)
    again = pushing.push(stream.call, "mood", str(path), producer=found.data["producer"], first=1, clock=SystemClock(), seconds=1.0)
    assert again.data["waiting"] == {"mood": 7}


def test_a_wrong_line_is_told_by_its_number_in_the_file_and_how_to_go_on(
    stream: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing, "LINES", 3)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(body(*[ROW] * 4) + b"\n" + b"nope\n")
    with pytest.raises(SampleError, match=r"line 6: should be.* 3 samples before line 4 were pushed.*--producer me") as found:
        pushing.push(stream.call, "mood", str(path), producer="me", first=1, clock=SystemClock(), seconds=1.0)
    assert "line 6" in found.value.message
    path.write_bytes(body(*[ROW] * 6))
    pushing.push(stream.call, "mood", str(path), producer="me", first=1, clock=SystemClock(), seconds=1.0)
    assert waiting(stream)["mood"] == 6


def test_a_python_program_pushes_and_goes_on_where_it_was(stream: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "ROWS", 2)
    queues = samples.SampleQueues(stream.home.folder, producer="shop")
    assert queues.push("both", [ROW] * 3) == {"mood": 3, "price": 3}
    assert queues.push("both", [ROW]) == {"mood": 4, "price": 4}
    again = samples.SampleQueues(stream.home.folder, producer="shop")  # the program started again, and knows nothing
    assert again.push("both", [ROW] * 5) == {"mood": 5, "price": 5}
    later = samples.SampleQueues(stream.home.folder, producer="shop")
    with pytest.raises(SampleError, match="line 3, column 'mood': should be one of bad, good, found 'god'"):
        later.push("mood", [ROW, ROW, ROW | {"mood": "god"}])
    assert later.stats("mood")["waiting"] == 7
    for name in ("moot", "moot/../x"):
        with pytest.raises(NotFound):
            later.push(name, [ROW])
    assert samples.SampleQueues(stream.home.folder).push("mood", [ROW]) == {"mood": 8}


def test_a_program_waits_for_a_server_that_is_away(tmp_path: Path) -> None:
    home = small_stream.folder(tmp_path / "reviews")
    with pytest.raises(Unreachable, match="the server of stream 'reviews' should answer"):
        samples.SampleQueues(home.folder, patience=0.1).push("mood", [ROW])


def test_what_flows_is_pushed_as_it_comes(stream: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    monkeypatch.setattr(pushing, "QUIET_SECONDS", 0.05)
    lines = pushing._lines("-")
    with open(read, "rb") as end, monkeypatch.context() as patched:
        patched.setattr("sys.stdin", end)
        os.write(write, b"one\ntw")
        assert next(lines) == b"one\n"
        assert next(lines) is None
        os.write(write, b"o\nthree")
        assert next(lines) == b"two\n"
        os.close(write)
        rest = [line for line in lines if line is not None]
        assert rest == [b"three\n"]


def test_a_table_of_cells_is_pushed_too(stream: Served, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('text,mood\n"two\nlines",good\nfood,bad\n', encoding="utf-8")
    found = pushing.push(stream.call, "mood", str(path), producer=None, first=1, clock=SystemClock(), seconds=1.0)
    assert found.data["samples"] == 2
    path.write_text('text,mood\n"two\nlines",good\nfood,bat\n', encoding="utf-8")
    with pytest.raises(SampleError, match="line 4, column 'mood'"):
        pushing.push(stream.call, "mood", str(path), producer=None, first=1, clock=SystemClock(), seconds=1.0)
    for wrong, said in (
        ("text,mood\na,good,x\n", "line 2: should have as many cells"),
        ('text,mood\n"a,good\n', "should be a row of cells"),
    ):
        path.write_text(wrong, encoding="utf-8")
        with pytest.raises(SampleError, match=said):
            pushing.push(stream.call, "mood", str(path), producer=None, first=1, clock=SystemClock(), seconds=1.0)


def test_a_queue_without_room_is_waited_for(stream: Served, tmp_path: Path) -> None:
    stream.call("PATCH", "queues/mood", json.dumps({"settings": {"most": 4}}))
    path = tmp_path / "rows.jsonl"
    path.write_bytes(body(*[ROW] * 5))
    with pytest.raises(QueueFull):
        pushing.push(stream.call, "mood", str(path), producer="late", first=1, clock=SystemClock(), seconds=0.5)
    asked: list[str] = []

    def ask(method: str, path: str, body: bytes | str | None = None, **query: Any) -> Any:
        asked.append(method)
        if len(asked) == 2:  # somebody makes room
            stream.call("PATCH", "queues/mood", json.dumps({"settings": {"most": 100_000}}))
        return stream.call(method, path, body, **query)

    found = pushing.push(ask, "mood", str(path), producer="late", first=1, clock=SystemClock(), seconds=20.0)
    assert found.data["waiting"] == {"mood": 5}
    assert len(asked) == 2


def test_no_file_is_told(stream: Served, tmp_path: Path) -> None:
    for name in ("none.jsonl", "none.csv"):
        with pytest.raises(UsageError, match="should be a file of samples"):
            pushing.push(stream.call, "mood", str(tmp_path / name), producer=None, first=1, clock=SystemClock(), seconds=1.0)


def test_connections_do_not_pile_up(stream: Served) -> None:
    assert stream.process is not None
    folder = Path(f"/proc/{stream.process.pid}/fd")
    if not folder.is_dir():
        pytest.skip("this system does not tell what a process has open")
    for _ in range(30):
        stream.call("GET", "queues")
    before = len(list(folder.iterdir()))
    for _ in range(100):
        stream.call("GET", "queues")
    assert len(list(folder.iterdir())) <= before + 5


def test_a_client_of_plain_http_reads_an_error_too(stream: Served) -> None:
    connection = http.client.HTTPConnection("localhost", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(str(stream.home.socket))
    connection.request("POST", "/v1/queues/moot/samples", b"")
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["error"]["code"]) == (404, "not_found")
    connection.close()
    assert os.path.exists(stream.home.socket)


# -- what was learned --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A stream that one worker, of one thread, has worked for."""
    home = small_stream.folder(tmp_path_factory.mktemp("taught") / "reviews", feeds={"both": ["mood", "price"]})
    with served(home) as made:
        made.call("POST", "queues/both/samples", body(*[ROW] * 8))
        worker = join(home, threads=1)
        worker.drain()
        worker.close()
        made.wait("all to be applied", lambda: made.call("GET", "status")["store"]["step"] == 6)
        yield made


def test_the_lineage_tells_what_made_each_step(taught: Served) -> None:
    found = taught.call("GET", "lineage")
    assert [one["step"] for one in found] == [6, 5, 4, 3, 2, 1]
    assert {one["task"]: one["samples"] for one in found} == {"mood": 4, "price": 2}
    assert all(one["base"] == one["step"] - 1 and one["staleness"] == 0 and one["attempt"] == 1 for one in found)
    assert taught.call("GET", "lineage", most=2) == found[:2]
    assert taught.call("GET", "lineage", step=3) == [found[3]]
    assert taught.call("GET", "lineage", batch=found[1]["batch"]) == [found[1]]
    assert taught.call("GET", "lineage", batch="none") == []
    lines = asking.lineage(taught.call, 2).lines
    assert "6" in lines[1]
    assert asking.lineage(taught.call, 2, step=99).lines == ["nothing was applied yet"]


def test_a_snapshot_is_the_encoder_s_set_as_it_is_now(taught: Served, tmp_path: Path) -> None:
    found = asking.snapshot(lambda target: taught.client.talk("GET", f"/v1/{target}"), tmp_path / "set")
    assert found.data["step"] == 6
    assert hashlib.sha256((tmp_path / "set").read_bytes()).hexdigest() == found.data["digest"]
    with SetFile(tmp_path / "set") as now, SetFile(taught.home.encoder / "shared.safetensors") as before:
        assert now.spec == before.spec
        assert any((now.read(name) != before.read(name)).any() for name in now.spec)
    with pytest.raises(Conflict, match="`--out` should be a new file"):
        asking.snapshot(lambda target: taught.client.talk("GET", f"/v1/{target}"), tmp_path / "set")
    assert list(taught.home.cache.glob("snapshot-*")) == []


@pytest.mark.slow
def test_a_replay_comes_to_the_same_bits(taught: Served) -> None:
    found = taught.client.call("POST", "/v1/replay", json.dumps({"threads": 1}), seconds=100.0)
    assert (found["start"], found["step"], found["batches"], found["same"]) == (0, 6, 6, True)
    assert found["digest"] == found["kept"]
    with pytest.raises(NotFound, match="`start` should be 0 or one of"):
        taught.client.call("POST", "/v1/replay", json.dumps({"start": 5}), seconds=100.0)
    assert list(taught.home.cache.glob("replay-*")) == []


def test_what_a_replay_came_to_is_shown() -> None:
    told = {"start": 0, "step": 6, "batches": 6, "digest": "aa", "kept": "aa", "same": True, "differs": None}
    assert asking.replay(lambda *_, **__: told, None, None).exit_code == 0
    differs = asking.replay(lambda *_, **__: told | {"same": False, "kept": "bb", "differs": 4}, None, None)
    assert differs.exit_code == 1
    assert "the losses differ from step 4 on" in str(differs.error)


def test_a_stream_is_watched(taught: Served) -> None:
    out = io.StringIO()
    clock = SystemClock()
    terminal = Terminal("jsonl", quiet=True, stdout=out)
    asking.watch(taught.call, 0.05, clock, Deadline(clock, 0.2, "the watch"), terminal)
    looks = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(looks) >= 2
    assert all(one["store"]["step"] == 6 for one in looks)
    shown = asking.panel(looks[-1])
    assert [line.split()[0] for line in shown[-2:]] == ["mood", "price"]
    assert any(line.split()[:2] == ["step", "6"] for line in shown)
    assert asking.status_lines(looks[-1])
