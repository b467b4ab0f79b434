"""A master's API in front of a real server of a stream: what goes through, what does not, and what is said of it."""

import http.client
import json
import shutil
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from master.streams import Streams
from tests.support import small_stream
from tests.support.api import ADMIN, Running, running_master
from trunkline.clock import Deadline, SystemClock
from trunkline.errors import Conflict, NotAuthorized, NotFound, QueueFull, QueuePaused, RefusedValue, SampleError, UsageError
from trunkline.https import Patience

pytestmark = pytest.mark.contract

ROW = {"text": "good food", "mood": "good", "price": 3.5}
ONCE = Patience(connect=5.0, answer=30.0, progress=0.1)
PUSH = "/v1/queues/mood/samples"
SERVER = "/v1/admin/streams/reviews/server"


@dataclass
class Master:
    """One that has a stream."""

    running: Running
    streams: Streams

    def call(self, method: str, path: str, body: Any = None, token: str | None = ADMIN, **query: Any) -> Any:
        sent = body if body is None or isinstance(body, str | bytes) else json.dumps(body)
        with self.running.https(token, ONCE) as https:
            return https.call(method, path, sent, query=query, retry=False)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    folder = tmp_path_factory.mktemp("m")
    clock = SystemClock()
    streams = Streams(folder / "streams", clock)
    home = small_stream.folder(folder / "made" / "reviews", feeds={"both": ["mood", "price"]})
    streams.folder.mkdir()
    shutil.move(home.folder, streams.folder / "reviews")
    with running_master(folder, streams=streams) as running:
        try:
            streams.turn()
            deadline = Deadline(clock, 90.0, "the stream's server")
            while streams.table("reviews")["state"] != "running" or not streams.client("reviews").path.exists():
                assert streams.table("reviews")["state"] != "failed", streams.table("reviews")["reason"]
                deadline.check()
                clock.sleep(0.05)
            yield Master(running, streams)
        finally:
            streams.close()


@pytest.fixture(autouse=True)
def _empty(master: Master) -> Iterator[None]:
    for task in ("mood", "price"):
        master.call("PATCH", f"{SERVER}/queues/{task}", {"settings": {"most": 100}})
        master.call("DELETE", f"{SERVER}/queues/{task}/samples")
        master.call("POST", f"{SERVER}/queues/{task}/state", {"state": "open"})
    yield


def test_lines_of_json_are_pushed(master: Master) -> None:
    body = json.dumps(ROW) + "\n" + json.dumps(ROW)
    assert master.call("POST", PUSH, body) == {"samples": 2, "waiting": {"mood": 2}}
    told = master.call("POST", "/v1/queues/both/samples", body, stream="reviews")
    assert told["waiting"] == {"mood": 4, "price": 2}
    for _ in range(2):
        assert master.call("POST", PUSH, body, producer="ä/&?=", first=1)["waiting"] == {"mood": 6}
    assert master.call("GET", f"{SERVER}/queues/mood/samples", most=1)[0]["label"] == "good"


def test_errors_come_through_as_they_are(master: Master) -> None:
    with pytest.raises(SampleError, match="line 1, column 'mood': should be one of bad, good"):
        master.call("POST", PUSH, ROW | {"mood": "god"})
    master.call("PATCH", f"{SERVER}/queues/mood", {"settings": {"most": 4}})
    with pytest.raises(QueueFull, match="should have room for 5 more samples, found 0 in it"):
        master.call("POST", PUSH, "\n".join([json.dumps(ROW)] * 5))
    master.call("POST", f"{SERVER}/queues/mood/state", {"state": "paused"})
    with pytest.raises(QueuePaused, match="0 wait"):
        master.call("POST", PUSH, ROW)
    with pytest.raises(Conflict, match="should go on with sample 1, found 7"):
        master.call("POST", "/v1/queues/price/samples", ROW, producer="new", first=7)
    with pytest.raises(UsageError, match="`first` should be a whole number"):
        master.call("POST", PUSH, ROW, first="x")
    for path in (f"{SERVER}/nothing", f"{SERVER}/queues/../status", "/v1/admin/streams/none", "/v1/queues/moot/samples"):
        with pytest.raises(NotFound):
            master.call("POST" if "samples" in path else "GET", path, None)
    with pytest.raises(NotFound, match="should be one of reviews, found 'none'"):
        master.call("POST", PUSH, ROW, stream="none")


@pytest.mark.parametrize(("code", "error"), [(429, "busy"), (409, "paused"), (422, "sample")])
def test_the_status_is_for_programs_that_are_not_ours(master: Master, code: int, error: str) -> None:
    sent = json.dumps(ROW)
    if error == "busy":
        master.call("PATCH", f"{SERVER}/queues/mood", {"settings": {"most": 4}})
        sent = "\n".join([sent] * 5)
    elif error == "paused":
        master.call("POST", f"{SERVER}/queues/mood/state", {"state": "paused"})
    else:
        sent = "{}"
    context = ssl.create_default_context(cadata=master.running.parts.ca)
    connection = http.client.HTTPSConnection("127.0.0.1", master.running.port, timeout=20, context=context)
    connection.request("POST", PUSH, sent, {"Authorization": f"Bearer {ADMIN}"})
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["error"]["code"]) == (code, error)
    connection.close()


def test_only_the_admin_comes_through(master: Master) -> None:
    child = master.running.enrol("ada").token
    reads, writes = (f"{SERVER}/queues", "/v1/admin/streams"), (PUSH, "/v1/admin/streams")
    for token in (None, "another", child):
        for method, path in [*(("GET", path) for path in reads), *(("POST", path) for path in writes)]:
            with pytest.raises(NotAuthorized):
                master.call(method, path, "{}" if method == "POST" else None, token=token)


def test_rounds_are_begun_by_no_caller(master: Master) -> None:
    """That part of the API names files of this machine."""
    with pytest.raises(NotFound, match="should be a part of the API of a stream"):
        master.call("POST", f"{SERVER}/rounds/merge", {"name": "x", "base": "/a", "target": "/b"})


def test_a_body_that_is_too_long_is_refused(master: Master) -> None:
    with pytest.raises((RefusedValue, Exception), match=r"at most|answer|pipe|reset"):
        master.call("POST", PUSH, b" " * (17 << 20))
    assert master.call("GET", f"{SERVER}/queues/mood")["waiting"] == 0


def test_a_file_comes_through_whole(master: Master, tmp_path: Path) -> None:
    from queues.stream import asking

    with master.running.https(ADMIN, ONCE) as https:
        found = asking.snapshot(lambda target: https.talk("GET", f"{SERVER}/{target}"), tmp_path / "set")
    assert found.data["size"] == (tmp_path / "set").stat().st_size


def test_what_is_known_of_a_stream(master: Master) -> None:
    (one,) = master.call("GET", "/v1/admin/streams")
    assert (one["name"], one["state"], one["server"]["stream"]) == ("reviews", "running", "reviews")
    whole = master.call("GET", "/v1/admin/streams/reviews")
    assert whole["spec"]["tasks"][0]["name"] == "mood"
    assert "redis" not in whole["spec"]


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"spec": {}}, UsageError, "`name` in the stream should be set"),
        ({"spec": {"name": "x"}}, UsageError, "`encoder` in the stream should be set"),
        ({"modules": ["own.py"], "spec": None}, UsageError, "`modules` should be files of Python on the master's machine"),
        ({"version": 7, "spec": None}, NotFound, "7"),
        ({"more": 1, "spec": None}, UsageError, "`more` in the body is not a known key"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(master: Master, change: dict[str, Any], kind: type[Exception], said: str) -> None:
    if not any(one.name == "tiny" for one in master.running.parts.ledger.encoders()):
        master.running.encoder("tiny")
    spec = small_stream.spec(name="another").model_dump(mode="json")
    body = {"spec": spec} | change | ({"spec": spec} if change.get("spec", "") is None else {})
    with pytest.raises(kind, match=said):
        master.call("POST", "/v1/admin/streams", body)
    assert master.streams.names() == ["reviews"]
