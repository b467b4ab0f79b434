"""Workers on another machine, as a user starts them: a real master, a Redis with an address, `trunkline worker --url`."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from master.demo.processes import ADMIN, Processes
from queues.connection import connect
from queues.embedded import program
from queues.store.reader import FileReader
from queues.store.store import Sent
from queues.stream.home import StreamHome
from queues.stream.model import Learner
from queues.stream.record import Record
from tests.support.cluster import ENVIRONMENT, Cluster
from tests.support.plain_optim import PlainStore, same
from tests.support.proxy import Cut, proxy
from trunkline.clock import SystemClock
from trunkline.errors import TrunklineError

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

DECLARATION = """
evaluate_steps = 0

[[tasks]]
name = "mood"
head = "single"
fields = ["text"]
label = "mood"
labels = ["bad", "good"]
batch_size = 4

[[tasks]]
name = "price"
head = "regression"
fields = ["text"]
label = "price"
batch_size = 2

[feeds]
both = ["mood", "price"]
"""


@contextmanager
def redis_with_an_address(folder: Path) -> Iterator[str]:
    """A server as people run their own: on a port, with a password."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder.mkdir()
    settings = ("--port", str(port), "--requirepass", "secret", "--appendonly", "yes", "--save", "", "--dir", str(folder))
    server = subprocess.Popen([program(), *settings, "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL)
    url = f"redis://:secret@127.0.0.1:{port}/0"
    try:
        wait("the server", lambda: connect(url).close() is None)
        yield url
    finally:
        server.terminate()
        server.wait(20)


def wait(what: str, until: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            if until():
                return
        except TrunklineError:
            pass
        assert time.monotonic() < end, f"{what} should have come by now"
        time.sleep(0.05)


@dataclass
class Rig:
    """A master with one stream."""

    cluster: Cluster
    redis: str
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.cluster.folder

    @property
    def home(self) -> StreamHome:
        return StreamHome(self.folder / "master" / "streams" / "reviews")

    def run(self, *words: str, sent: bytes | None = None, code: int = 0) -> Any:
        """`trunkline`, on the master's machine; the envelope's data, or its error."""
        command = self.cluster.processes.command(ADMIN, [*words, *self.cluster.state, "--output", "json", "--quiet"])
        done = subprocess.run(command, input=sent, capture_output=True, timeout=120, check=False, cwd=self.folder)
        told = json.loads(done.stdout)
        assert done.returncode == code == told["exit_code"], (done.stdout, done.stderr)
        return told["error"] if code else told["data"]

    def push(self, count: int, first: int = 1) -> None:
        rows = [
            {"text": f"good food {number}", "mood": ("bad", "good")[number % 2], "price": number % 7} for number in range(count)
        ]
        lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        self.run("queue", "push", "both", "-", "--stream", "reviews", "--producer", "me", "--first", str(first), sent=lines)

    def token(self) -> Path:
        path = self.folder / "worker.token"
        path.write_text(self.run("stream", "worker-token", "reviews")["token"])
        return path

    def worker(self, *words: str, port: int | None = None, token: Path | None = None) -> subprocess.Popen[bytes]:
        """`trunkline worker`, on what could be another machine: nothing of the master's folder but its authority is named."""
        number = len(self.workers)
        told = ("--url", f"https://127.0.0.1:{port or self.cluster.ports[0]}", "--token-file", str(token or self.token()))
        files = ("--ca", str(self.folder / "master" / "tls" / "ca.pem"), "--cache", str(self.folder / f"cache-{number}"))
        command = self.cluster.processes.command(ADMIN, ["worker", "reviews", *told, *files, "--threads", "1", *words])
        self.workers.append(self.cluster.processes.start(f"worker-{number}", command))
        return self.workers[-1]

    def said(self, number: int = 0) -> str:
        return (self.folder / f"worker-{number}.log").read_text(errors="replace")

    def applied(self) -> dict[str, int]:
        found: list[dict[str, Any]] = self.cluster.call("GET", "/v1/admin/streams/reviews/server/queues")
        assert all(one["pushed"] == sum(one[name] for name in PLACES) for one in found), found
        return {one["task"]: one["applied"] for one in found}

    def settle(self, mood: int, price: int) -> None:
        try:
            wait("what was pushed", lambda: self.applied() == {"mood": mood, "price": price})
        except AssertionError:
            print(*(self.said(number)[-3000:] for number in range(len(self.workers))), sep="\n----\n")
            raise

    def end(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
                assert worker.wait(60) == 0, self.said()


PLACES = ("applied", "waiting", "leased", "submitted", "dead", "purged")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with redis_with_an_address(tmp_path / "redis") as redis, Processes(tmp_path, SystemClock(), ENVIRONMENT) as processes:
        cluster = Cluster(tmp_path, processes)
        cluster.start_master()
        cluster.add_encoder()
        (tmp_path / "stream.toml").write_text(DECLARATION, encoding="utf-8")
        made = Rig(cluster, redis)
        made.run("stream", "create", "reviews", "--encoder", "tiny", "--file", str(tmp_path / "stream.toml"), "--redis", redis)
        yield made


def plain_loop(home: StreamHome) -> PlainStore:
    """All recorded batches, one after the other, with ordinary parameters and `torch.optim`."""
    learner = Learner(home.spec, home.encoder)
    parameters = learner.parameters()
    plain = PlainStore(home.spec, parameters)
    for entry in Record(home.applied).since(0):
        with torch.no_grad():
            for name, value in plain.values().items():
                parameters[name].copy_(value)
        found = learner.gradient(entry, entry.seed)  # type: ignore[arg-type]
        tensors = {f"shared/{name}": tensor for name, tensor in found.shared.items()}
        tensors |= {f"head/{entry.task}/{name}": tensor for name, tensor in found.head.items()}
        plain.apply((Sent(entry.batch, 1, entry.task, plain.step, found.samples, found.loss, tensors),))
    return plain


def test_a_worker_elsewhere_ends_where_a_plain_loop_ends(rig: Rig) -> None:
    """Given a stream with a Redis of its own, When one worker works through the master, Then the parameters are those of a loop."""
    rig.push(20)
    rig.worker()
    rig.settle(20, 20)
    rig.end()
    assert "secret" not in rig.said(), "the password of the Redis stays out of logs"
    torch.set_num_threads(1)
    plain = plain_loop(rig.home)
    assert plain.step == 15
    values = plain.values()
    into = {name: torch.empty_like(value) for name, value in values.items()}
    assert FileReader(rig.home.store).read(into) == 15
    assert same(into, values)


def test_connections_that_break_a_master_that_is_killed_and_a_worker_that_is(rig: Rig) -> None:
    """Whatever breaks in the middle of a transfer, each sample changes the parameters once."""
    rig.push(40)
    always = Cut(up=400_000, down=400_000)
    with proxy(rig.cluster.ports[0], always=always) as between:
        first = rig.worker(port=between.port)
        wait("the first steps", lambda: rig.applied()["mood"] >= 4)
        for _ in range(5):
            between.drop()
            time.sleep(0.1)
        rig.cluster.kill_master()
        rig.cluster.start_master()
        wait("more steps", lambda: sum(rig.applied().values()) >= 24)
        first.kill()
        first.wait(10)
        rig.worker("--gradients", "bfloat16", "--parameters", "bfloat16")
        rig.settle(40, 40)
    rig.workers.pop(0)
    rig.end()
    assert FileReader(rig.home.store).step() == 30


def test_who_may_not_work_is_told(rig: Rig) -> None:
    token = rig.token()
    wrong = rig.folder / "wrong.token"
    wrong.write_text("wrong")
    worker = rig.worker(token=wrong)
    assert worker.wait(60) == 4
    assert "should be one of a stream's workers" in rig.said(0)
    rig.run("stream", "create", "inside", "--encoder", "tiny", "--file", str(rig.folder / "stream.toml"))
    admin = rig.folder / "master" / "secrets" / "admin.token"
    command = ["worker", "inside", "--url", f"https://127.0.0.1:{rig.cluster.ports[0]}", "--token-file", str(admin)]
    command += ["--ca", str(rig.folder / "master" / "tls" / "ca.pem"), "--cache", str(rig.folder / "cache")]
    error = rig.run(*command, code=2)
    assert "should have a Redis with an address" in error["message"]
    assert "stream create --redis" in error["hint"]
    assert "should be one of reviews, found 'inside'" in rig.run(*command[:5], str(token), *command[6:], code=5)["message"]

    # A token that is revoked while its worker works: the next call is refused, and no batch is lost.
    worker = rig.worker(token=token)
    rig.push(4)
    rig.settle(4, 4)
    assert [one["label"] for one in rig.run("stream", "worker-token", "reviews", "--list")] == ["workers"]
    rig.run("stream", "worker-token", "reviews", "--revoke")
    assert rig.run("stream", "worker-token", "reviews", "--list") == []
    assert "found 'workers'" in rig.run("stream", "worker-token", "reviews", "--revoke", code=5)["message"]
    rig.push(4, 5)
    assert worker.wait(60) == 4
    assert "this worker ends: the token should be one of a stream's workers" in rig.said(1)
    assert rig.applied() == {"mood": 4, "price": 4}
    rig.worker()
    rig.settle(8, 8)
    rig.end()
