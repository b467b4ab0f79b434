"""A real master and real children as processes, small enough to be killed often."""

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from master.api.client import open_admin
from master.cli import encoder_files
from master.demo.processes import ADMIN, CHILD, Processes, free_ports
from master.home import MasterHome
from tasks.specs import Config, EncoderSpec
from tests.support import tiny
from tests.support.world import PLAIN, write_reviews
from trunkline.clock import Deadline, SystemClock
from trunkline.errors import TrunklineError
from trunkline.https import Https, Patience

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

Event = Mapping[str, Any]


@dataclass
class Cluster:
    """One master, and children by name."""

    folder: Path
    processes: Processes
    clock: SystemClock = field(default_factory=SystemClock)
    ports: list[int] = field(default_factory=lambda: free_ports(2))
    daemon: subprocess.Popen[bytes] | None = None
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _after: int = 0

    @property
    def state(self) -> list[str]:
        return ["--state", str(self.folder / "master")]

    # -- starting ------------------------------------------------------------------------------------------------------

    def start_master(self) -> None:
        """Start the daemon and wait until it answers."""
        self.launch_master()
        self.wait_ready()

    def launch_master(self) -> None:
        ports = ["--port", str(self.ports[0]), "--superlink-port", str(self.ports[1])]
        self.daemon = self.processes.start("master", self.processes.command(ADMIN, ["serve", *self.state, *ports]))

    def wait_ready(self) -> None:
        self.wait("the master to answer", lambda: self.call("GET", "/readyz") is not None, 90.0)

    def start_child(self, name: str) -> None:
        home = str(self.folder / name)
        self.children[name] = self.processes.start(name, self.processes.command(CHILD, ["run", "--home", home]))

    def add_child(self, name: str, data: Path, *more: str) -> None:
        """Enrol a child with a sentiment task, and start it."""
        home = ["--home", str(self.folder / name)]
        token = self.call("POST", "/v1/admin/nodes/invite", json.dumps({"name": name}))["token"]
        self.processes.run("enrol", self.processes.command(CHILD, ["enrol", "--token", token, *home]))
        task = ["task", "add", str(data), "--task", "sentiment", "--text", "text", "--label", "label", "--batch-size", "8", *more]
        self.processes.run("task add", self.processes.command(CHILD, [*task, *home]))
        (self.folder / name / "child.toml").write_text("threads = 1\naway = 1.0\nidle_poll = 0.5\n", encoding="utf-8")
        self.start_child(name)

    def add_encoder(self, name: str = "tiny", **options: int) -> None:
        """A tiny BERT from a seed; `options` of its config make it a larger one."""
        source = Config(options=tiny.OPTIONS | options, seed=1, tokenizer=str(tiny.tokenizer(self.folder / "tokenizer")))
        spec = EncoderSpec.model_validate({"name": name, "type": "text", "source": source, "max_length": 32})
        place = self.folder / f"encoder-{name}"
        encoder_files.make(spec, place, (), lambda note: None)
        with self.admin() as https:
            encoder_files.send(https, place, name, "text", json.loads((place / "encoder.json").read_bytes()), lambda note: None)

    # -- talking -------------------------------------------------------------------------------------------------------

    def admin(self) -> Https:
        patience = Patience(connect=5.0, answer=60.0, progress=1.0)
        return open_admin(MasterHome(self.folder / "master"), self.clock, random.Random(0), patience)

    def call(self, method: str, path: str, body: str | None = None, query: Mapping[str, Any] | None = None) -> Any:
        with self.admin() as https:
            return https.call(method, path, body, query=query)

    def start_job(self, **spec: Any) -> str:
        """What is not said is as plain as in `tests.support.world`."""
        table: dict[str, Any] = {"encoder": "tiny", "rounds": 3, "rule": "mean", **spec}
        training = PLAIN | {"steps": 12} | table.pop("training", {})
        return self.call("POST", "/v1/admin/jobs", json.dumps({"spec": table | {"training": training}}))["job"]["id"]

    def job(self, job: str) -> dict[str, Any]:
        return self.call("GET", f"/v1/admin/jobs/{job}")

    def finish(self, job: str, seconds: float = 180.0) -> str:
        """Wait for a job to finish; return the digest of what it came to."""

        def over() -> bool:
            state = self.job(job)
            assert state["state"] not in ("failed", "aborted"), state["reason"]
            return state["state"] == "finished"

        self.wait(f"job {job} to finish", over, seconds)
        return self.call("GET", "/v1/admin/encoders/tiny")["current"]["digest"]

    def wait(self, what: str, until: Callable[[], bool], seconds: float) -> None:
        """Wait with a deadline; a master that is away for a moment is asked again."""
        deadline = Deadline(self.clock, seconds, what)
        while True:
            try:
                if until():
                    return
            except TrunklineError:
                pass
            deadline.check()
            self.clock.sleep(0.05)

    def wait_event(self, wanted: Callable[[Event], bool], seconds: float = 120.0) -> Event:
        """The first event from now on that is wanted."""
        found: list[Event] = []

        def look() -> bool:
            told = self.call("GET", "/v1/admin/events", query={"after": self._after, "wait": 1.0})
            for event in told["events"]:
                self._after = event["id"]
                if wanted(event):
                    found.append(event)
                    return True
            return False

        self.wait("an event", look, seconds)
        return found[0]

    # -- killing -------------------------------------------------------------------------------------------------------

    def kill_child(self, name: str) -> None:
        self.children[name].kill()
        self.children[name].wait(10)

    def kill_master(self) -> None:
        """SIGKILL the daemon; what it started ends with it."""
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait(10)

    def kill_serverapp(self, job: str) -> None:
        """SIGKILL the process that plays the job's rounds."""
        os.kill(int(self.job(job)["owner"].rsplit(":", 1)[1]), signal.SIGKILL)


@contextmanager
def cluster(folder: Path, children: Mapping[str, int]) -> Iterator[Cluster]:
    """A cluster with an encoder and children that hold so many reviews each."""
    with Processes(folder, SystemClock(), ENVIRONMENT) as processes:
        made = Cluster(folder, processes)
        made.start_master()
        made.add_encoder()
        for seed, (name, count) in enumerate(children.items()):
            made.add_child(name, write_reviews(folder / f"{name}.csv", count, seed))
        made.wait("the children to greet", lambda: all(node["boot"] for node in made.call("GET", "/v1/admin/nodes")), 90.0)
        yield made
