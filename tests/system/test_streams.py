"""Streams as a user has them: a real master or child, real servers of streams and of queues; killed, and started again."""

import json
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from master.demo.processes import ADMIN, CHILD, Processes
from queues.connection import connect
from queues.embedded import EmbeddedServer
from queues.redis import RedisQueues, script
from queues.stream.create import create
from queues.stream.home import StreamHome
from queues.stream.join import join
from queues.stream.spec import StreamSpec
from tasks import encoders
from tasks.packed import Packer
from tasks.specs import EncoderSpec, Module
from tests.support import small_stream
from tests.support.cluster import Cluster
from tests.support.disk import disk
from tests.support.served import ROOT, Served, served
from trunkline.clock import SystemClock
from trunkline.errors import Conflict, ConnectionFailed, QueueFull, QueuePaused, SampleError, StorageFailed, Unreachable

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(400)]

ROW = {"text": "good food", "mood": "good", "price": 3.5}


def body(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


# -- one server --------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> StreamHome:
    return small_stream.folder(tmp_path / "reviews", feeds={"both": ["mood", "price"]})


def conserved(stream: Served, task: str) -> bool:
    found = stream.counts(task)
    return found["pushed"] == sum(found.values()) - found["pushed"]


def test_what_was_pushed_is_there_after_a_clean_end_and_after_a_kill(home: StreamHome) -> None:
    with served(home) as stream:
        for task in ("mood", "price"):
            stream.call("POST", f"queues/{task}/samples", body(ROW, ROW), producer="me", first=1)
        stream.call("PATCH", "queues/mood", json.dumps({"settings": {"weight": 3.0}}))
        stream.call("POST", "queues/price/state", json.dumps({"state": "paused"}))
        assert stream.stop() == 0
        assert not home.socket.exists()
        assert home.server() is None
        with pytest.raises(Unreachable):
            stream.call("GET", "status")
        stream.start()
        stream.kill()
        stream.start()
        assert stream.call("GET", "status")["incarnation"] == 3
        stream.call("POST", "queues/mood/samples", body(ROW, ROW), producer="me", first=1)  # its answer had been lost, say
        mood, price = stream.call("GET", "queues")
        assert (mood["waiting"], price["waiting"]) == (2, 2)
        assert mood["settings"]["weight"] == 3.0
        assert price["state"] == "paused"
        with pytest.raises(QueuePaused):
            stream.call("POST", "queues/price/samples", body(ROW))


def test_a_server_of_queues_that_was_killed_is_started_again_with_all_it_had(home: StreamHome) -> None:
    with served(home) as stream:
        stream.call("POST", "queues/both/samples", body(ROW, ROW))
        pid = int((home.redis / "redis.pid").read_text())
        os.kill(pid, signal.SIGKILL)
        stream.wait("the queues to come back", lambda: stream.call("GET", "queues/mood")["waiting"] == 2, 60.0)
        assert int((home.redis / "redis.pid").read_text()) != pid
        assert stream.call("POST", "queues/both/samples", body(ROW))["waiting"] == {"mood": 3, "price": 3}
        assert stream.process is not None
        assert stream.process.poll() is None


def test_a_server_of_queues_that_lost_its_data_stops_the_stream_until_that_is_accepted(home: StreamHome) -> None:
    with served(home) as stream:
        stream.call("POST", "queues/mood/samples", body(*[ROW] * 5))
        worker = join(home, threads=1)
        worker.drain()
        worker.close()
        stream.wait("a batch to be applied", lambda: stream.call("GET", "status")["store"]["step"] == 1)
        stream.stop()
        shutil.rmtree(home.redis / "appendonlydir")
        assert stream.launch().wait(90) == 5
        for said in (stream.said(), (home.logs / "server.log").read_text()):
            assert "should know stream 'reviews', found that it does not: it lost its data, or is another" in said
            assert "--accept-loss" in said

        # As a master starts it, with what its admin said; and it ends with its master.
        process = stream.launch({"folder": str(home.folder), "accept": True})
        stream.wait("the server to answer", lambda: stream.call("GET", "status")["store"]["step"] == 1)
        found = stream.call("GET", "queues/mood")
        assert (found["waiting"], found["pushed"]) == (0, found["applied"])  # the fifth is lost, and that was accepted
        assert stream.call("POST", "queues/mood/samples", body(ROW))["waiting"] == {"mood": 1}
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def test_two_stores_on_one_redis_are_told_apart(tmp_path: Path) -> None:
    redis = EmbeddedServer(tmp_path / "redis", durable=False)
    redis.start()
    try:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        homes = [small_stream.folder(tmp_path / name / "reviews") for name in ("one", "two")]
        for home in homes:
            home.create(home.spec, redis.url)
        with served(homes[0]) as first:
            second = Served(homes[1])
            assert second.launch().wait(90) == 5
            assert "should be this store's, found one of another store on the same server" in second.said()
            assert first.call("GET", "status")["redis"] == "named"
    finally:
        redis.stop()


@pytest.mark.parametrize("setting", ["maxmemory-policy", "appendonly"])
def test_a_redis_that_evicts_or_forgets_is_refused(tmp_path: Path, setting: str) -> None:
    redis = EmbeddedServer(tmp_path / "redis", durable=False)
    redis.start()
    try:
        client = connect(redis.url)
        values = {"maxmemory-policy": {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "appendonly": {"appendonly": "no"}}
        for name, value in values[setting].items():
            client.config_set(name, value)
        client.close()
        home = small_stream.folder(tmp_path / "reviews")
        home.create(home.spec, redis.url)
        stream = Served(home)
        assert stream.launch().wait(90) == 2
        assert setting in stream.said()
    finally:
        redis.stop()


def test_a_full_disk_stops_nothing_for_good(tmp_path: Path) -> None:
    """A server of queues that has each command on the disk ends where the disk refuses one; it comes back with all it took."""
    with disk(tmp_path / "small", "96m") as made:
        if made is None:
            pytest.skip("no disk of its own could be mounted for this test")
        home = small_stream.folder(tmp_path / "small" / "reviews", store={"kind": "memory"})
        with served(home) as stream:
            stream.call("POST", "queues/mood/state", json.dumps({"state": "paused"}))
            stream.call("POST", "queues/mood/state", json.dumps({"state": "open"}))
            stream.call("POST", "queues/mood/samples", body(ROW), producer="me", first=1)
            made.fill()
            with pytest.raises((ConnectionFailed, StorageFailed)):
                for number in range(2, 2000):
                    stream.call("POST", "queues/mood/samples", body(*[ROW] * 3), producer="me", first=number)
                    stream.call("PATCH", "queues/mood", json.dumps({"settings": {"weight": 1.0 + number / 1000}}))
            made.empty()
            stream.wait("the queues to come back", lambda: stream.call("GET", "queues/mood")["pushed"] >= 1, 60.0)
            last = stream.call("GET", "queues/mood")["pushed"]

            def pushed() -> bool:
                return stream.call("POST", "queues/mood/samples", body(ROW), producer="me", first=last + 1)["samples"] == 1

            # The queues take numbered samples again once the stream's server has told them what it applied.
            stream.wait("a push to be taken", pushed, 60.0)
            assert stream.call("GET", "queues/mood")["pushed"] == last + 1
            assert conserved(stream, "mood")
            assert stream.process is not None
            assert stream.process.poll() is None


def test_a_store_of_another_stream_is_refused(tmp_path: Path) -> None:
    homes = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        homes.append(small_stream.folder(tmp_path / name / "reviews"))
    with served(homes[0]) as first:
        first.stop()
    shutil.copytree(homes[0].store, homes[1].store, dirs_exist_ok=True)
    second = Served(homes[1])
    try:
        assert second.launch().wait(90) == 5
        assert "of the store" in second.said()
    finally:
        second.end()


def test_a_folder_without_a_stream_is_told(tmp_path: Path) -> None:
    stream = Served(StreamHome(tmp_path / "nothing"))
    assert stream.launch().wait(60) == 5
    assert "should be the folder of a stream, found no stream.json" in stream.said()
    assert not (tmp_path / "nothing").exists()


def test_a_stream_in_one_process_learns_from_what_is_pushed(tmp_path: Path) -> None:
    """The store in memory: its worker is a thread of the server."""
    home = small_stream.folder(tmp_path / "reviews", store={"kind": "memory"}, feeds={"both": ["mood", "price"]})
    with served(home) as stream:
        stream.call("POST", "queues/both/samples", body(*[ROW] * 8))
        client = connect(json.loads((home.folder / "server.json").read_bytes())["redis"])
        queues = RedisQueues(client, "reviews")  # past the desk, as any client of Redis may
        good, (target,) = stream_packer(home, "mood").pack([ROW])[0], stream_packer(home, "price").pack([ROW])
        bad = {
            "should begin with": b"not a sample of ours",
            "should have token ids below": good[:8] + b"\xff\xff" + good[10:],
            "should have a label within the set": good[:-4] + b"\x07\0\0\0",
            "should be whole": good[:-5],
        }
        for sample in bad.values():
            queues.push("mood", [good, sample, good, good])
        queues.push("price", [target[:-8] + struct.pack("<d", float("nan")), target])
        client.close()
        stream.call("POST", "queues/both/samples", body(*[ROW] * 4))
        stream.wait("the batches to be applied", lambda: stream.counts("mood")["applied"] == 12 and conserved(stream, "mood"))
        stream.wait("the others too", lambda: stream.counts("price")["applied"] == 12)
        found = stream.counts("mood")
        assert (found["dead"], found["waiting"], found["pushed"]) == (16, 0, 28)
        dead = stream.call("GET", "queues/mood/dead")
        assert len(dead) == len(bad)
        for one, said in zip(dead, bad, strict=True):
            assert f"sample 1 of the batch: a packed sample of task 'mood' {said}" in one["reason"]
            assert "problem" in one["samples"][1]
        (nan,) = stream.call("GET", "queues/price/dead")
        assert "should have a label within the set, found [nan]" in nan["reason"]
        status = stream.call("GET", "status")["store"]
        assert (status["step"], status["tasks"]["mood"]["batches"]) == (9, 3)


def stream_packer(home: StreamHome, task: str) -> Packer:
    return small_stream.learner(home).packers[task]


def test_an_encoder_of_one_s_own_learns_from_vectors(tmp_path: Path) -> None:
    module = ROOT / "examples" / "vector_encoder" / "encoder.py"
    source = Module(path=f"{module}:Perceptron", options={"width": 4, "hidden": 8})
    encoders.create(EncoderSpec(name="sensor", type="sensor", source=source, shape=(4,)), tmp_path / "encoder", [])
    common = {"encoder": "sensor", "batch_size": 2}
    tasks = [
        {"name": "alarm", "head": "single", "fields": ["x"], "label": "y", "labels": ["no", "yes"], **common},
        {"name": "heat", "head": "regression", "fields": ["a", "b", "c", "d"], "label": "t", **common},
    ]
    spec = StreamSpec.model_validate({"name": "sensors", "encoder": "sensor", "tasks": tasks, "store": {"kind": "memory"}})
    home = create(tmp_path / "sensors", spec, tmp_path / "encoder", modules=[module])
    with served(home) as stream:
        stream.call("POST", "queues/alarm/samples", body(*[{"x": [0.5, 1, -1, 2], "y": "yes"}] * 4))
        stream.call("POST", "queues/heat/samples", body(*[{"a": 1, "b": 2, "c": 3, "d": "4.5", "t": 20}] * 2))
        wrong = {
            "found 3": {"x": [1, 2, 3], "y": "yes"},
            "should be finite numbers, found NaN or infinity": {"x": [1, 2, 3, float("nan")], "y": "yes"},
            "should be numbers": {"x": ["a", 2, 3, 4], "y": "yes"},
            "column 'x': should have a value": {"y": "yes"},
        }
        for said, row in wrong.items():
            with pytest.raises(SampleError, match=said):
                stream.call("POST", "queues/alarm/samples", body(row))
        stream.wait("all to be applied", lambda: [one["applied"] for one in stream.call("GET", "queues")] == [4, 2])
        stream.call("POST", "queues/heat/samples", body({"a": 1, "b": 2, "c": 3, "d": 4, "t": 20}))
        assert stream.call("GET", "queues/heat/samples")[0]["inputs"] == [[1.0, 2.0, 3.0, 4.0]]


def test_a_head_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    task = {**small_stream.TASKS[0], "custom_head": "own.py:Head"}
    home = small_stream.folder(tmp_path / "reviews", tasks=[task])
    stream = Served(home)
    try:
        assert stream.launch().wait(90) == 2
        assert "own.py" in stream.said()
    finally:
        stream.end()


# -- at a master -------------------------------------------------------------------------------------------------------

DECLARATION = """
[[tasks]]
name = "mood"
head = "single"
fields = ["text"]
label = "mood"
labels = ["bad", "good"]
batch_size = 4
heldout = "held.csv"

[[tasks]]
name = "price"
head = "regression"
fields = ["text"]
label = "price"
batch_size = 2

[feeds]
both = ["mood", "price"]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("m")
    with Processes(folder, SystemClock(), {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}) as processes:
        made = Cluster(folder, processes)
        made.start_master()
        made.add_encoder()
        (folder / "held.csv").write_text('text,mood\ngood food,good\n"two\nlines",bad\n', encoding="utf-8")
        (folder / "stream.toml").write_text(DECLARATION, encoding="utf-8")
        yield made


def admin(cluster: Cluster, *words: str, sent: bytes | None = None, code: int = 0) -> Any:
    """Run `trunkline`; give the envelope's data, or its error."""
    command = cluster.processes.command(ADMIN, [*words, *cluster.state, "--output", "json", "--quiet"])
    done = subprocess.run(command, input=sent, capture_output=True, timeout=120, check=False, cwd=cluster.folder)
    told = json.loads(done.stdout)
    assert done.returncode == code == told["exit_code"], (done.stdout, done.stderr)
    return told["error"] if code else told["data"]


def test_a_master_without_a_stream_says_so(cluster: Cluster) -> None:
    assert admin(cluster, "stream", "list") == []
    assert "there should be a stream, found none" in admin(cluster, "queue", "stats", code=5)["message"]
    with pytest.raises(Exception, match="there should be a stream"):
        cluster.call("POST", "/v1/queues/mood/samples", "{}")


def test_a_declaration_that_is_wrong_is_told_and_nothing_is_made(cluster: Cluster) -> None:
    wrong = {
        "no-labels": (DECLARATION.replace('labels = ["bad", "good"]', ""), 2, "`labels` should name all labels"),
        "batch": (DECLARATION.replace("batch_size = 4", "batch_size = 5000"), 2, "batch_size"),
        "unknown-key": (DECLARATION + "\n[learning]\nrate = 3\n", 2, "`learning.rate` in"),
        "held-out-label": (DECLARATION.replace('"bad", "good"', '"bad", "fine"'), 2, "`held.csv`, line 2, column 'mood'"),
        "held-out-missing": (DECLARATION.replace("held.csv", "gone.csv"), 2, "gone.csv` should be a file of samples, found none"),
        "type": (DECLARATION.replace('head = "regression"', 'head = "regression"\nencoder = "image"'), 2, "of the encoder's type"),
    }
    for name, (text, code, said) in wrong.items():
        (cluster.folder / f"{name}.toml").write_text(text, encoding="utf-8")
        command = ("stream", "create", "wrong", "--encoder", "tiny", "--file", str(cluster.folder / f"{name}.toml"))
        assert said in admin(cluster, *command, code=code)["message"], name
    missing = ("stream", "create", "wrong", "--encoder", "none", "--file", str(cluster.folder / "stream.toml"))
    assert "none" in admin(cluster, *missing, code=5)["message"]
    assert admin(cluster, "stream", "list") == []
    assert [path.name for path in (cluster.folder / "master" / "streams").glob("*")] == []


def test_a_stream_from_its_declaration_to_its_end(cluster: Cluster) -> None:
    made = admin(cluster, "stream", "create", "reviews", "--encoder", "tiny", "--file", str(cluster.folder / "stream.toml"))
    assert (made["state"], made["tasks"]) == ("running", ["mood", "price"])
    home = StreamHome(cluster.folder / "master" / "streams" / "reviews")
    held = (home.heldout / "mood.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"] for line in held] == ["good food", "two\nlines"]
    again = ("stream", "create", "reviews", "--encoder", "tiny", "--file", str(cluster.folder / "stream.toml"))
    assert "should be new" in admin(cluster, *again, code=5)["message"]

    # From a file, from standard input, over HTTP, and by a program that speaks to Redis itself.
    (cluster.folder / "rows.jsonl").write_bytes(body(ROW, ROW))
    assert admin(cluster, "queue", "push", "both", str(cluster.folder / "rows.jsonl"))["waiting"] == {"mood": 2, "price": 2}
    pushed = admin(cluster, "queue", "push", "mood", "-", sent=body(ROW), code=0)
    assert pushed["waiting"] == {"mood": 3}
    query = {"producer": "phone", "first": 1}
    for _ in range(2):
        told = cluster.call("POST", "/v1/queues/mood/samples", body(ROW).decode(), query=query | {"stream": "reviews"})
        assert told == {"samples": 1, "waiting": {"mood": 4}}
    _redis_cli(home)
    found = {one["task"]: one for one in admin(cluster, "queue", "stats")}
    assert (found["mood"]["waiting"], found["price"]["waiting"]) == (5, 2)
    assert [one["label"] for one in admin(cluster, "queue", "peek", "mood")] == ["good"] * 5

    # Full, paused, wrong.
    admin(cluster, "queue", "set", "mood", "--most", "5")
    rows = str(cluster.folder / "rows.jsonl")
    assert "found 5 in it" in admin(cluster, "queue", "push", "mood", rows, "--timeout", "1", code=5)["message"]
    with pytest.raises(QueueFull, match="found 5 in it"):
        cluster.call("POST", "/v1/queues/mood/samples", body(ROW).decode())
    admin(cluster, "queue", "pause", "price")
    assert "2 wait" in admin(cluster, "queue", "push", "price", rows, "--timeout", "1", code=5)["message"]
    (cluster.folder / "bad.jsonl").write_bytes(body(ROW, ROW | {"mood": "god"}))
    error = admin(cluster, "queue", "push", "mood", str(cluster.folder / "bad.jsonl"), code=2)
    assert "line 2, column 'mood': should be one of bad, good, found 'god'" in error["message"]
    assert "mood, price, both" in admin(cluster, "queue", "push", "moot", rows, code=5)["message"]
    assert admin(cluster, "queue", "dead", "list", "mood") == []
    watched = admin(cluster, "queue", "watch", "--timeout", "1")
    assert (watched["stream"], watched["store"]["step"]) == ("reviews", 0)

    # Killed: its server, then the master.
    process = int((json.loads((home.folder / "server.json").read_bytes()))["pid"])
    os.kill(process, signal.SIGKILL)
    cluster.wait("the server to be started again", lambda: _pid(cluster) not in (None, process), 90.0)
    assert {one["task"]: one["waiting"] for one in admin(cluster, "queue", "stats")} == {"mood": 5, "price": 2}
    process = _pid(cluster)
    cluster.kill_master()
    cluster.wait("the server to end with its master", lambda: not _alive(process), 60.0)
    cluster.start_master()
    cluster.wait("the server to be started by the next master", lambda: _pid(cluster) not in (None, process), 90.0)
    assert admin(cluster, "stream", "show", "reviews")["server"]["queues"][0]["waiting"] == 5

    # Told to end, the master has its streams end cleanly.
    assert cluster.daemon is not None
    cluster.daemon.send_signal(signal.SIGTERM)
    assert cluster.daemon.wait(60) == 0
    assert home.server() is None
    assert not home.socket.exists()
    cluster.start_master()
    cluster.wait("the server to be started", lambda: _pid(cluster) is not None, 90.0)

    # Stopped, started, removed.
    assert admin(cluster, "stream", "stop", "reviews")["state"] == "stopped"
    assert "found it stopped" in admin(cluster, "queue", "stats", code=5)["message"]
    with pytest.raises(Conflict, match="found it stopped"):
        cluster.call("POST", "/v1/queues/mood/samples", body(ROW).decode())
    assert admin(cluster, "stream", "start", "reviews")["state"] == "running"
    admin(cluster, "stream", "remove", "reviews", "--yes")
    assert admin(cluster, "stream", "list") == []
    assert not home.folder.exists()
    assert not _alive(int((home.redis / "redis.pid").read_text()) if (home.redis / "redis.pid").exists() else 0)


def test_what_is_pushed_is_learned_and_accounted_for(cluster: Cluster) -> None:
    (cluster.folder / "learn.toml").write_text("evaluate_steps = 2\n" + DECLARATION, encoding="utf-8")
    admin(cluster, "stream", "create", "learns", "--encoder", "tiny", "--file", str(cluster.folder / "learn.toml"))
    worker = ["worker", "learns", "--threads", "1", *cluster.state]
    working = cluster.processes.start("worker", cluster.processes.command(ADMIN, worker))

    # What stays open is not waited for to its end.
    pushing = cluster.processes.command(ADMIN, ["queue", "push", "both", "-", "--stream", "learns", *cluster.state])
    with subprocess.Popen(pushing, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cluster.folder) as process:
        assert process.stdin is not None
        process.stdin.write(body(*[ROW] * 8))
        process.stdin.flush()

        def applied() -> bool:
            found = cluster.call("GET", "/v1/admin/streams/learns")["server"]
            return [one["applied"] for one in found["queues"]] == [8, 8]

        cluster.wait("all that was pushed to be applied", applied, 120.0)
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(60) == 0

    bad = RedisQueues(connect(json.loads((cluster.folder / "master/streams/learns/server.json").read_bytes())["redis"]), "learns")
    bad.push("mood", [b"not a sample of ours"] * 4)
    bad._client.close()
    cluster.wait("the bad batch to be put aside", lambda: len(admin(cluster, "queue", "dead", "list", "mood")) == 1, 60.0)
    (dead,) = admin(cluster, "queue", "dead", "list", "mood", "--stream", "learns")
    assert "should begin with" in dead["reason"]
    assert admin(cluster, "queue", "dead", "retry", "mood", dead["batch"])["batches"] == 1
    cluster.wait("it to be put aside again", lambda: len(admin(cluster, "queue", "dead", "list", "mood")) == 1, 60.0)
    assert admin(cluster, "queue", "dead", "purge", "mood", "--yes")["samples"] == 4

    found = admin(cluster, "encoder", "lineage", "tiny")
    assert [one["number"] for one in found["versions"]] == [1]
    assert sorted(one["task"] for one in found["streams"]["learns"]) == ["mood"] * 2 + ["price"] * 4
    assert [one["step"] for one in admin(cluster, "stream", "lineage", "learns", "--most", "2")] == [6, 5]
    watched = admin(cluster, "queue", "watch", "--timeout", "1")
    assert {one["task"] for one in watched["scores"]} == {"mood"}
    assert admin(cluster, "stream", "snapshot", "learns", "--out", "now.safetensors")["step"] == 6
    assert admin(cluster, "stream", "replay", "learns", "--threads", "1")["same"] is True
    working.send_signal(signal.SIGTERM)
    assert working.wait(60) == 0
    admin(cluster, "stream", "remove", "learns", "--yes")


def test_a_stranger_pushes_nothing(cluster: Cluster) -> None:
    from trunkline.https import Https

    with cluster.admin() as known:
        ca = (cluster.folder / "master" / "tls" / "ca.pem").read_text(encoding="ascii")
        for token in (None, "another"):
            import random

            with Https(known.url, ca, token, SystemClock(), random.Random(0)) as https:
                for path in ("/v1/queues/mood/samples", "/v1/admin/streams"):
                    with pytest.raises(Exception, match="token"):
                        https.call("POST", path, "{}", retry=False)


def _pid(cluster: Cluster) -> int | None:
    found = cluster.call("GET", "/v1/admin/streams/reviews")
    return found["pid"] if found["state"] == "running" and found["server"] is not None else None


def _alive(pid: int | None) -> bool:
    return bool(pid) and Path(f"/proc/{pid}").exists()


def _redis_cli(home: StreamHome) -> None:
    """A sample as it lies in the queue, pushed by `redis-cli`."""
    found = shutil.which("redis-cli")
    server = EmbeddedServer(home.redis)
    client = connect(server.url)
    queues = RedisQueues(client, "reviews")
    sample = queues.peek("mood", 1)[0]
    if found is None:
        queues.push("mood", [sample])
    else:
        base = [found, "-s", str(server.socket), "-x"]
        sha = subprocess.run([*base, "script", "load"], input=script("push").encode(), capture_output=True, timeout=20, check=True)
        command = [*base, "evalsha", sha.stdout.strip(), "1", "{trunkline:reviews}:meta", "*", "", "mood", "", "0"]
        done = subprocess.run(command, input=sample, capture_output=True, timeout=20, check=True)
        assert done.stdout.split() == [b"OK", b"5"]
    client.close()


# -- at a child --------------------------------------------------------------------------------------------------------


def test_a_stream_of_a_child(cluster: Cluster) -> None:
    folder, processes = cluster.folder, cluster.processes
    common = ["--home", str(folder / "site"), "--output", "json", "--quiet"]

    def child(*words: str, sent: bytes | None = None, code: int = 0) -> Any:
        command = processes.command(CHILD, [*words, *common])
        done = subprocess.run(command, input=sent, capture_output=True, timeout=120, check=False, cwd=folder)
        assert done.returncode == code, (done.stdout, done.stderr)
        told = json.loads(done.stdout)
        return told["error"] if code else told["data"]

    made = child("stream", "create", "notes", "--file", str(folder / "stream.toml"), "--encoder", str(folder / "encoder-tiny"))
    assert made["tasks"] == ["mood", "price"]
    assert [one["served"] for one in child("stream", "list")] == [False]
    assert "should answer" in child("queue", "stats", code=4)["message"]
    serving = processes.start("notes", processes.command(CHILD, ["stream", "serve", "--home", str(folder / "site")]))
    cluster.wait("the stream to be served", lambda: child("stream", "list")[0]["served"], 90.0)
    assert child("queue", "push", "both", "-", sent=body(ROW, ROW))["waiting"] == {"mood": 2, "price": 2}
    assert [one["waiting"] for one in child("queue", "stats", "mood")] == [2]
    assert child("queue", "peek", "price", "--most", "1")[0]["label"] == 3.5
    assert child("queue", "drain", "mood")["state"] == "draining"
    assert child("queue", "resume", "mood")["state"] == "open"
    assert child("queue", "set", "mood", "--weight", "2")["settings"]["weight"] == 2.0
    assert "should be used by one server" in child("stream", "remove", "notes", "--yes", code=5)["message"]
    serving.send_signal(signal.SIGTERM)
    assert serving.wait(30) == 0
    child("stream", "remove", "notes", "--yes")
    assert child("stream", "list") == []
