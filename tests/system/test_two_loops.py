"""Both loops as a user has them: a master with a stream and its worker, a child with a stream and its worker, and jobs between."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from master.demo.processes import ADMIN, CHILD, Processes
from queues.stream.client import StreamClient
from queues.stream.home import StreamHome
from tests.support.cluster import ENVIRONMENT, Cluster
from trunkline.clock import SystemClock
from trunkline.errors import Conflict, NotFound

pytestmark = [pytest.mark.system, pytest.mark.slow]

DECLARATION = """
evaluate_steps = 0

[[tasks]]
name = "mood"
head = "single"
fields = ["text"]
label = "mood"
labels = ["bad", "good"]
batch_size = 4
"""

ROWS = b"".join(json.dumps({"text": f"{word} food", "mood": word}).encode() + b"\n" for word in ("good", "bad") * 2)
"""One batch."""


def told(cluster: Cluster, entry: str, *words: str, sent: bytes | None = None) -> Any:
    """Run a command line; give its data."""
    place = cluster.state if entry == ADMIN else ["--home", str(cluster.folder / "amy")]
    command = cluster.processes.command(entry, [*words, *place, "--output", "json", "--quiet"])
    done = subprocess.run(command, input=sent, capture_output=True, timeout=180, check=False, cwd=cluster.folder)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return json.loads(done.stdout)["data"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master that learns from stream `reviews`, and child `amy` that is fed by stream `shop`; both with a worker."""
    folder = tmp_path_factory.mktemp("l")
    with Processes(folder, SystemClock(), ENVIRONMENT) as processes:
        made = Cluster(folder, processes)
        made.start_master()
        made.add_encoder()
        (folder / "stream.toml").write_text(DECLARATION, encoding="utf-8")
        file = ("--file", str(folder / "stream.toml"))
        told(made, ADMIN, "stream", "create", "reviews", "--encoder", "tiny", *file)
        processes.start("worker", processes.command(ADMIN, ["worker", "reviews", *made.state, "--threads", "1"]))

        home = ["--home", str(folder / "amy")]
        token = made.call("POST", "/v1/admin/nodes/invite", json.dumps({"name": "amy"}))["token"]
        processes.run("enrol", processes.command(CHILD, ["enrol", "--token", token, *home]))
        told(made, CHILD, "stream", "create", "shop", "--encoder", str(folder / "encoder-tiny"), *file)
        processes.start("shop", processes.command(CHILD, ["stream", "serve", "shop", *home]))
        made.wait("the child's stream", lambda: told(made, CHILD, "stream", "list")[0]["served"], 90.0)
        told(made, CHILD, "task", "add", "--stream", "shop", "--task", "mood")
        processes.start("shop-worker", processes.command(CHILD, ["worker", "shop", "--threads", "1", *home]))
        (folder / "amy" / "child.toml").write_text("threads = 1\naway = 1.0\nidle_poll = 0.5\n", encoding="utf-8")
        made.start_child("amy")
        yield made


def master_stream(cluster: Cluster) -> StreamClient:
    home = StreamHome(cluster.folder / "master" / "streams" / "reviews")
    return StreamClient(home.socket, "reviews")


def test_a_job_with_a_stream_and_a_child_that_is_fed_by_one(cluster: Cluster) -> None:
    told(cluster, ADMIN, "queue", "push", "mood", "-", sent=ROWS)
    told(cluster, CHILD, "queue", "push", "mood", "-", sent=ROWS * 3)
    assert told(cluster, CHILD, "queue", "stats")[0]["state"] == "filling", "the child's stream learns in rounds only"
    assert told(cluster, CHILD, "task", "check", "mood")[0]["rows"] == {"train": 12}
    cluster.wait("the master's batch", lambda: told(cluster, ADMIN, "queue", "stats")[0]["applied"] == 4, 120.0)

    job = cluster.start_job(rounds=2, stream="reviews", training={"steps": 2}, children={"update_seconds": 120.0})
    cluster.finish(job)
    versions = told(cluster, ADMIN, "encoder", "versions", "tiny")
    assert [one["kind"] for one in versions] == ["initial", "snapshot", "round", "round"]
    assert versions[1]["data"] == {"stream": "reviews", "step": 1, "applied": {"mood": 4}}
    rounds = [cluster.call("GET", f"/v1/admin/jobs/{job}/rounds/{number}") for number in (1, 2)]
    assert [found["updates"][0]["update"]["samples"] for found in rounds] == [{"mood": 8}, {"mood": 4}]
    assert told(cluster, CHILD, "queue", "stats")[0]["applied"] == 12
    lineage = told(cluster, ADMIN, "encoder", "lineage", "tiny")
    taken = [one["batch"] for one in lineage["streams"]["reviews"] if not one["task"]]
    assert taken == [f"{job}/2", f"{job}/1"]
    assert told(cluster, CHILD, "task", "predict", "mood", "the food was good")[0]["label"] in ("bad", "good")


def test_what_a_master_does_not_do(cluster: Cluster) -> None:
    sets = json.dumps({"name": "mine/1", "base": "/etc/passwd", "target": "/etc/passwd"})
    for what in ("merge", "begin", "end", "attach"):
        with pytest.raises(NotFound, match="should be a part of the API"):
            cluster.call("POST", f"/v1/admin/streams/reviews/server/rounds/{what}", sets)
    with pytest.raises(NotFound, match="`stream` should be one of reviews, found 'other'"):
        cluster.start_job(stream="other")
    with pytest.raises(Conflict, match="should be what a round came to, found version 1"):
        cluster.call("POST", "/v1/admin/streams/reviews/merge", json.dumps({"version": 1}))


def test_a_round_of_any_job_goes_into_the_stream_also_where_its_server_was_killed(cluster: Cluster) -> None:
    """The job knows of no stream; while it runs the stream's server is stopped by a signal, and then killed."""
    pid = int(master_stream(cluster).call("GET", "/v1/status")["pid"])
    os.kill(pid, signal.SIGSTOP)
    told(cluster, CHILD, "queue", "push", "mood", "-", sent=ROWS)
    job = cluster.start_job(rounds=1, training={"steps": 1})
    cluster.finish(job)
    os.kill(pid, signal.SIGKILL)
    client = master_stream(cluster)
    cluster.wait("the round to be taken", lambda: f"{job}/1" in client.call("GET", "/v1/rounds"), 120.0)
    version = told(cluster, ADMIN, "encoder", "show", "tiny")["current"]["number"]
    again = told(cluster, ADMIN, "stream", "merge", "reviews", str(version))
    assert (again["name"], again["new"]) == (f"{job}/1", False)
    published = told(cluster, ADMIN, "stream", "publish", "reviews")
    assert published["number"] == version, "the stream is where the round left it: nothing new"
    told(cluster, ADMIN, "queue", "push", "mood", "-", sent=ROWS)
    cluster.wait("the master's batch", lambda: told(cluster, ADMIN, "queue", "stats")[0]["applied"] == 8, 120.0)
    published = told(cluster, ADMIN, "stream", "publish", "reviews")
    assert (published["number"], published["kind"], published["parent_number"]) == (version + 1, "snapshot", version)


def test_a_child_s_stream_learns_at_all_times_again_when_its_task_is_removed(cluster: Cluster, tmp_path: Path) -> None:
    told(cluster, CHILD, "task", "remove", "mood")
    assert told(cluster, CHILD, "queue", "stats")[0]["state"] == "open"
    told(cluster, CHILD, "queue", "push", "mood", "-", sent=ROWS)
    cluster.wait("the batch", lambda: told(cluster, CHILD, "queue", "stats")[0]["waiting"] == 0, 120.0)
