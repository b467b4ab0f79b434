"""Trunkline as a person starts it: a master with TLS, and two warm children, each a process of its own."""

import json
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.agent import declare
from benchmarks.figures import Note, Run, between, later
from child.home import ChildHome
from child.identity import Identity, come_in
from master.api.client import open_admin
from master.cli import encoder_files
from master.demo.processes import ADMIN, Processes, free_ports
from master.home import MasterHome
from trunkline.clock import Clock, Deadline
from trunkline.errors import FailedError, TrunklineError
from trunkline.https import Https, Patience
from trunkline.sets import write_set

CHILDREN = ("one", "two")
SECONDS = 1800.0
"""A job that takes longer has gone wrong."""

PATIENCE = Patience(connect=5.0, answer=60.0, progress=30.0)


@dataclass(frozen=True, slots=True)
class Fleet:
    """A master and two children that were let in."""

    folder: Path
    processes: Processes
    clock: Clock
    admin: Https
    children: Mapping[str, Identity]

    def add_set(self, name: str, elements: int, tensors: int) -> tuple[str, int]:
        """Register an encoder that is a random parameter set, and nothing else; return the set's digest and size."""
        rng = np.random.default_rng(0)
        folder = self.folder / f"encoder-{name}"
        folder.mkdir()
        each = elements // tensors
        arrays = {f"tensor.{number:03d}": rng.standard_normal(each, dtype=np.float32) for number in range(tensors)}
        write_set(folder / encoder_files.SHARED, arrays)
        (folder / "encoder.json").write_text(json.dumps({"name": name}), encoding="utf-8")
        told = encoder_files.send(self.admin, folder, name, "random", {}, lambda note: None)
        return told["current"]["digest"], told["current"]["size"]

    def start_agents(self) -> None:
        """Start the children's processes, and wait until both have greeted."""
        for name in self.children:
            self.processes.start(name, [sys.executable, "-P", "-m", "benchmarks.agent", str(self.folder / name)])
        deadline = Deadline(self.clock, 120.0, "the children to greet")
        while not all(node["boot"] for node in self.admin.call("GET", "/v1/admin/nodes")):
            self.processes.check()
            deadline.check()
            self.clock.sleep(0.1)

    def play(self, encoder: str, rounds: int, codec: str = "float32") -> list[Mapping[str, Any]]:
        """Play a job without evaluation to its end; return its events.

        :raises FailedError: it did not finish.
        """
        children = {"wanted": len(CHILDREN), "least": len(CHILDREN), "least_updates": len(CHILDREN), "wait_seconds": 120.0}
        spec = {"encoder": encoder, "rounds": rounds, "codec": codec, "report": [], "final_report": [], "children": children}
        job = self.admin.call("POST", "/v1/admin/jobs", json.dumps({"spec": spec}))["job"]["id"]
        deadline, events, after = Deadline(self.clock, SECONDS, f"job {job}"), [], 0
        while not any(
            event["kind"].startswith("job.") and event["kind"][4:] in ("finished", "failed", "aborted") for event in events
        ):
            told = self.admin.call("GET", "/v1/admin/events", query={"after": after, "wait": 5})
            events += [event for event in told["events"] if event["job"] == job]
            after = told["last"]
            self.processes.check()
            deadline.check()
        if not any(event["kind"] == "job.finished" for event in events):
            raise FailedError(f"job {job} should finish, found: {events[-1]['data']}.", hint=f"See {self.folder}.")
        return events


@contextmanager
def fleet(folder: Path, clock: Clock) -> Iterator[Fleet]:
    """A master of its own, with two children enrolled; their agents are not started yet."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**machine.environment(), "PYTHONPATH": str(Path(__file__).parent.parent)}
    with Processes(folder, clock, environment) as processes:
        home = MasterHome(folder / "master")
        api, link = free_ports(2)
        serve = ["serve", "--state", str(home.folder), "--port", str(api), "--superlink-port", str(link)]
        processes.start("master", processes.command(ADMIN, serve))
        with _master(home, clock, processes) as admin:
            children = {name: _enrolled(admin, folder / name, name, clock) for name in CHILDREN}
            yield Fleet(folder, processes, clock, admin, children)


def _master(home: MasterHome, clock: Clock, processes: Processes) -> Https:
    deadline = Deadline(clock, 120.0, "the master to start")
    while True:
        processes.check()
        try:
            admin = open_admin(home, clock, random.Random(), PATIENCE)
            admin.call("GET", "/readyz")
            return admin
        except TrunklineError:
            deadline.check()
            clock.sleep(0.1)


def _enrolled(admin: Https, folder: Path, name: str, clock: Clock) -> Identity:
    token = admin.call("POST", "/v1/admin/nodes/invite", json.dumps({"name": name}))["token"]
    home = ChildHome(folder)
    declare(home)
    return come_in(home, token, name, clock, random.Random(), patience=PATIENCE)


def measure(elements: int, tensors: int, rounds: int, folder: Path, clock: Clock, note: Note, codec: str = "float32") -> Run:
    """Play rounds over two agents.

    :raises FailedError: a process ended, or an exchange was not answered by both.
    """
    with fleet(folder, clock) as made:
        made.add_set("random", elements, tensors)
        made.start_agents()
        note(f"ours: {rounds} rounds of {4 * elements} bytes in {codec}")
        before = machine.loopback()
        events = made.play("random", rounds, codec)
        after = machine.loopback()
    updates = sum(event["kind"] == "update.accepted" for event in events)
    if updates != rounds * len(CHILDREN):
        raise FailedError(f"{rounds * len(CHILDREN)} updates should be accepted, found {updates}.", hint=f"See {folder}.")
    moved: dict[int, int] = {}
    for event in events:
        if event["kind"] == "blob.moved":
            moved[event["round"]] = moved.get(event["round"], 0) + event["data"]["bytes"]
    wire = None if before is None or after is None else (after - before) // rounds
    whole = between(events, "round.opened", "round.published")
    usual = int(later([moved[number] for number in sorted(moved)]))  # a child that comes in gets the whole set once
    return Run(whole, between(events, "round.members", "round.published"), usual, wire)
