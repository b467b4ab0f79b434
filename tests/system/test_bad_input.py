"""What goes wrong around real processes: each ends with its exit code and one clear error, nothing is lost, and it goes on once
the cause is mended."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from child.home import ChildHome
from child.state import PrivateStore
from master import jobrun
from master.demo.processes import ADMIN, CHILD, Processes, free_ports
from master.home import MasterHome
from master.jobs import JobSpec
from master.link import Link, Outgoing, Reply
from master.local import LocalLink
from master.tokens import Gate, new_secret
from tests.support.cluster import ENVIRONMENT, Cluster
from tests.support.disk import Disk, disk
from tests.support.world import World, make_world, sentiment, write_reviews
from trunkline.clock import Deadline, SystemClock
from trunkline.errors import StorageFailed

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(600)]

torch.set_num_threads(1)

JOB: dict[str, Any] = {"rounds": 4, "training": {"steps": 6, "learning_rate": 1e-3, "head_learning_rate": 1e-2}}


@dataclass(frozen=True)
class Ended:
    """A program that ran to its end."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one error it told, without its log before."""
        assert self.out == ""
        assert "Traceback" not in self.err
        (told,) = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert self.err.rstrip().endswith(told), "it is the last thing that is said"
        return told


def ended(*commands: Sequence[str], folder: Path | None = None, **environment: str) -> list[Ended]:
    """Run programs at once, each to its end."""
    processes = [
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, **ENVIRONMENT, **environment},
        )
        for command in commands
    ]
    try:
        return [Ended(process.returncode, out, err) for process in processes for out, err in [process.communicate(timeout=180)]]
    finally:
        for process in processes:
            process.kill()


def ours(entry: str, *words: str) -> list[str]:
    code = f"import sys; from trunkline.start import {entry}; sys.exit({entry}())"
    return [sys.executable, "-P", "-c", code, *words]


# -- before anything starts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [(ADMIN, "serve", "--state", "state"), (CHILD, "run", "--home", "home")])
def test_a_user_s_own_tasks_py_is_named_and_not_run(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "tasks.py").write_text("raise SystemExit('it was run')", encoding="utf-8")
    entry, *rest = words
    (done,) = ended(ours(entry, *rest), folder=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.code == 2
    assert f"found {tmp_path / 'tasks.py'} instead. Rename that one" in done.error
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.py"], "nothing was begun"


@pytest.mark.parametrize("script", ["trunkline", "trunkline-child"])
def test_a_user_s_own_tasks_py_in_the_working_folder_does_no_harm_to_the_programs(tmp_path: Path, script: str) -> None:
    (tmp_path / "tasks.py").write_text("raise SystemExit('it was run')", encoding="utf-8")
    program = Path(sys.executable).parent / script
    if not program.exists():
        pytest.skip(f"{program} should be installed beside this Python")
    (done,) = ended([str(program), "version"], folder=tmp_path)
    assert (done.code, done.err) == (0, "")


def test_encoders_that_cannot_be_had(tmp_path: Path) -> None:
    """A name of the hub while offline, and while the hub cannot be reached; a folder with no weights in it."""
    empty = tmp_path / "no-weights"
    empty.mkdir()
    (empty / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    create = ["encoder", "create", "text", "--keep", str(tmp_path / "kept"), "--no-send", "--from"]
    offline, weightless = ended(ours(ADMIN, *create, "someone/some-encoder"), ours(ADMIN, *create, str(empty)))
    away: dict[str, Any] = {"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    (unreached,) = ended(ours(ADMIN, *create, "someone/some-encoder"), **away)
    for done, said in ((offline, "someone/some-encoder"), (unreached, "someone/some-encoder"), (weightless, str(empty))):
        assert done.code == 2, done.err
        assert said in done.error
    assert "weights" in weightless.error or "model.safetensors" in weightless.error
    assert not (tmp_path / "kept").exists(), "nothing half made is left"


# -- beside a cluster that runs ----------------------------------------------------------------------------------------


@dataclass
class Running:
    """A master and its child, each on a small disk of its own where this user may mount one."""

    made: Cluster
    disks: tuple[Disk | None, Disk | None]
    world: World

    def mounted(self) -> tuple[Disk, Disk]:
        """The disks of the master and of the child."""
        master, amy = self.disks
        if master is None or amy is None:
            pytest.skip("a disk of its own should be mounted, which this user may not")
        return master, amy

    def heads(self) -> Mapping[str, object]:
        return PrivateStore(ChildHome(self.made.folder / "amy").private / "tiny").load().tensors

    def log(self, name: str) -> str:
        return (self.made.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("bad")
    with ExitStack() as stack:
        disks = (stack.enter_context(disk(folder / "master", "64m")), stack.enter_context(disk(folder / "amy", "64m")))
        made = Cluster(folder, stack.enter_context(Processes(folder, SystemClock(), ENVIRONMENT)))
        made.start_master()
        for name in ("tiny", "other"):
            made.add_encoder(name)
        made.add_child("amy", write_reviews(folder / "amy.csv", 60, 0))
        made.wait("the child to greet", lambda: all(node["boot"] for node in made.call("GET", "/v1/admin/nodes")), 120.0)
        (here := folder / "here").mkdir()
        world = make_world(here)
        world.add_child("amy", sentiment(write_reviews(here / "amy.csv", 60, 0)))
        yield Running(made, disks, world)


@pytest.fixture(scope="module")
def calm(running: Running) -> str:
    """What the job comes to where nobody disturbs it."""
    running.world.run(**JOB)
    return running.world.digest()


def test_ports_and_folders_in_use(running: Running, tmp_path: Path) -> None:
    """Given a master and a child that run, When others want their ports or folders, Then those end, and these go on."""
    made = running.made
    api, link = made.ports
    free = free_ports(3)
    serve = ["serve", "--state"]
    child = made.children["amy"]
    same_api, same_link, same_state, same_home = ended(
        ours(ADMIN, *serve, str(tmp_path / "a"), "--port", str(api), "--superlink-port", str(free[0])),
        ours(ADMIN, *serve, str(tmp_path / "b"), "--port", str(free[1]), "--superlink-port", str(link)),
        ours(ADMIN, *serve, made.state[1], "--port", str(free[1]), "--superlink-port", str(free[2])),
        ours(CHILD, "run", "--home", str(made.folder / "amy")),
    )
    assert [done.code for done in (same_api, same_link, same_state, same_home)] == [5, 5, 5, 5]
    assert f"port {api} of 127.0.0.1 should be free" in same_api.error
    assert f"port {link} on 127.0.0.1 should be free" in same_link.error
    assert made.daemon is not None
    assert f"should be used by one master, found process {made.daemon.pid} already on it." in same_state.error
    assert f"should be used by one child, found process {child.pid} already on it." in same_home.error
    assert made.call("GET", "/readyz")["status"] == "ok"
    assert child.poll() is None
    assert nobody_answers(free), "no SuperLink was left behind"


def nobody_answers(ports: Sequence[int]) -> bool:
    for port in ports:
        with socket.socket() as probe:
            if not probe.connect_ex(("127.0.0.1", port)):
                return False
    return True


# -- disks -------------------------------------------------------------------------------------------------------------


def test_a_full_disk_at_a_child_costs_rounds_and_no_head(running: Running, calm: str) -> None:
    """Given a child whose disk fills up while it trains, When there is room again, Then its job ends as the undisturbed one."""
    made, (_, amy) = running.made, running.mounted()
    job = made.start_job(**JOB)
    made.wait_event(lambda event: event["kind"] == "round.published" and event["round"] == 1)
    amy.fill()
    refused = made.wait_event(lambda event: event["kind"] == "update.refused" and event["job"] == job)
    assert running.heads(), "what was saved before is whole"
    amy.empty()
    assert made.finish(job, 240.0) == calm
    assert "storage" in str(refused), refused
    assert "No space left on device" in running.log("amy")
    assert "Traceback" not in running.log("amy")


def test_a_full_disk_at_the_master_stops_its_job_until_there_is_room(running: Running, calm: str) -> None:
    made, (master, _) = running.made, running.mounted()
    job = made.start_job(**JOB, encoder="other")
    made.wait_event(lambda event: event["kind"] == "round.published" and event["round"] == 1 and event["job"] == job)
    master.fill()
    made.wait("the master to notice", lambda: "No space left" in running.log("master") or "is full" in running.log("master"), 120.0)
    master.empty()
    made.finish(job, 240.0)
    assert made.call("GET", "/v1/admin/encoders/other")["current"]["digest"] == calm
    assert "Traceback" not in running.log("master")


def test_a_read_only_disk_is_told_and_both_go_on_when_it_is_mounted_writable(running: Running) -> None:
    made, (master, amy) = running.made, running.mounted()
    assert made.daemon is not None
    for process in (made.children["amy"], made.daemon):
        process.terminate()
        assert process.wait(60) == 0
    ports = ["--port", str(made.ports[0]), "--superlink-port", str(made.ports[1])]
    for one in (master, amy):
        one.remount("ro")
    try:
        serve, run = ended(ours(ADMIN, "serve", *made.state, *ports), ours(CHILD, "run", "--home", str(amy.folder)))
    finally:
        for one in (master, amy):
            one.remount("rw")
    assert (serve.code, run.code) == (1, 1)
    assert "writable" in serve.error and "Mount it writable" in serve.error
    assert "writable" in run.error and "Mount it writable" in run.error
    heads = running.heads()
    made.start_master()
    made.start_child("amy")
    job = made.start_job(rounds=1, training={"steps": 2})
    made.finish(job, 240.0)
    assert set(running.heads()) == set(heads)


class Filling(LocalLink):
    """Once the updates are in, the disk takes no target set any more. (A file stands in a folder's place: that stops root too.)"""

    def __init__(self, world: World) -> None:
        super().__init__(world.children)
        self._scratch = world.folder / "blobs" / "scratch"

    def exchange(self, messages: Mapping[str, Outgoing], deadline: Deadline) -> Iterator[tuple[str, Reply, bytes | None]]:
        yield from super().exchange(messages, deadline)
        if self._scratch.is_dir():
            self._scratch.rmdir()
            self._scratch.touch()

    def mend(self) -> None:
        self._scratch.unlink()


def always(link: Link) -> jobrun.LinkFactory:
    return lambda nodes, boots: link


def test_a_disk_that_refuses_what_was_fused_does_not_end_the_job(tmp_path: Path) -> None:
    """Given room for the ledger but none for the target set, When there is room, Then the job goes on as if nothing had been."""
    digests = []
    for name in ("calm", "full"):
        (folder := tmp_path / name).mkdir()
        world, home = make_world(folder), MasterHome(folder)
        world.gate = Gate(new_secret(home.grant_secret), world.clock)
        world.add_child("amy", sentiment(write_reviews(folder / "amy.csv", 60, 0)))
        job = world.ledger.start_job("tiny", JobSpec.model_validate({"encoder": "tiny", **JOB}).table())[0].id
        if name == "full":
            link = Filling(world)
            with pytest.raises(StorageFailed, match="should be writable"):
                jobrun.play(world.ledger, home, world.ledger.job(job), always(link), world.clock)
            assert world.ledger.job(job).state == "running"
            link.mend()
        jobrun.play(world.ledger, home, world.ledger.job(job), always(LocalLink(world.children)), world.clock)
        assert world.ledger.job(job).state == "finished"
        digests.append(world.digest())
    assert digests[0] == digests[1]
