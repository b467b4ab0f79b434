"""Help for tests with a real SuperLink: ports, certificates, keys, agents in threads and in processes, a link in this process."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from child.fleet import FleetSession, Incoming
from child.talk import talk
from master import pki
from master.flower import FlowerLink
from master.flower.grid import RuntimeGrid
from master.superlink import SuperLink
from trunkline.clock import SystemClock
from trunkline.messages import (
    Confirmation,
    EncoderRef,
    InitialSet,
    Instruction,
    Message,
    Plan,
    Report,
    ReportRequest,
    SetRef,
    Update,
)

CLOCK = SystemClock()
DIGEST = "0" * 64
ROOT = Path(__file__).parents[2]

Found = TypeVar("Found")


def until(look: Callable[[], Found | None], seconds: float, what: str, log: Path | None = None) -> Found:
    """What `look` gives, as soon as it gives something true; else an error that shows the log."""
    end = time.monotonic() + seconds
    while True:
        if found := look():
            return found
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}\n{log.read_text() if log else ''}"
        time.sleep(0.02)


def free_port() -> int:
    """A port that is free, outside the range from which the system takes ports for connections that go out."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def tls_files(folder: Path) -> pki.Tls:
    """Certificates for the loopback."""
    return pki.ensure(folder, ["localhost", "127.0.0.1"], time.time())


class NodeKey:
    """A child's key, in memory and on disk."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.private = name, ec.generate_private_key(ec.SECP384R1())
        self.path, self.ssh = folder / f"{name}.pem", folder / f"{name}.ssh"
        self.path.write_bytes(self._bytes(serialization.PrivateFormat.PKCS8))
        self.ssh.write_bytes(self._bytes(serialization.PrivateFormat.OpenSSH))
        self.public = self.private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def _bytes(self, form: serialization.PrivateFormat) -> bytes:
        return self.private.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def session(superlink: SuperLink, key: NodeKey, node_id: int | None = None, **named: Any) -> FleetSession:
    """A session of this key, not entered yet."""
    assert superlink.tls is not None
    ca = superlink.tls.ca.read_bytes()
    named = {"limit": 20.0, **named}
    return FleetSession(superlink.address, ca, key.path, named.pop("clock", CLOCK), random.Random(0), node_id=node_id, **named)


def take(fleet: FleetSession, seconds: float = 20.0) -> Incoming:
    """The next message."""
    return until(fleet.receive, seconds, "a message")


# -- messages ----------------------------------------------------------------------------------------------------------

ENCODER = EncoderRef(name="e", type="text", manifest=DIGEST)
BASE = SetRef(digest=DIGEST, size=1, version=1)
PLAN = Plan(steps=1, total_steps=1)


def instruction(round: int = 1) -> Instruction:
    return Instruction(job="j", round=round, encoder=ENCODER, base=BASE, plan=PLAN)


def initial_set(child: str, round: int = 1) -> InitialSet:
    return InitialSet(
        job="j", round=round, child=child, encoder=ENCODER, base=BASE, plan=PLAN, transfer="inline", token="t", upload_token="u"
    )


def report_request(child: str, round: int = 1) -> ReportRequest:
    return ReportRequest(job="j", round=round, child=child, encoder=ENCODER, target=BASE, token="t")


class StandIn:
    """Answers as a child would, without learning anything; an attachment comes back reversed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def answer(self, message: Message, attachment: bytes | None = None) -> tuple[Message, bytes | None]:
        back = attachment[::-1] if attachment is not None else None
        if isinstance(message, Instruction):
            return Confirmation(job=message.job, round=message.round, child=self.name, accepted=True), back
        if isinstance(message, InitialSet):
            return Update(
                job=message.job,
                round=message.round,
                child=self.name,
                base=message.base.digest,
                digest=DIGEST,
                size=1,
                codec="float32",
                samples={},
                applied={},
                losses={},
                seconds=0.0,
            ), back
        assert isinstance(message, ReportRequest)
        return Report(
            job=message.job, round=message.round, child=self.name, target=message.target.digest, scores=(), seconds=0.0
        ), back


def open_stand_in(home: Path) -> StandIn:
    """For TRUNKLINE_CHILD_OPEN."""
    return StandIn(home.name)


def serve(fleet: FleetSession, child: StandIn, stop: Callable[[], bool]) -> None:
    """Answer messages until told to stop."""
    while not stop():
        if (incoming := fleet.receive()) is None:
            time.sleep(0.02)
            continue
        text, attachment = talk(child, incoming.text, incoming.attachment)
        fleet.reply(incoming, text, attachment, 0.0)


@contextmanager
def warm(superlink: SuperLink, *keys: NodeKey):
    """Agents in threads of this process."""
    stop, threads = threading.Event(), []
    sessions = [session(superlink, key) for key in keys]
    try:
        for key, fleet in zip(keys, sessions, strict=True):
            fleet.__enter__()
            thread = threading.Thread(target=serve, args=(fleet, StandIn(key.name), stop.is_set), daemon=True)
            thread.start()
            threads.append(thread)
        yield {key.name: fleet.node_id for key, fleet in zip(keys, sessions, strict=True)}
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
        for fleet in sessions:
            fleet.__exit__(None, None, None)


# -- processes ---------------------------------------------------------------------------------------------------------


class AgentProcess:
    """`tests.support.warm_agent` in a process of its own, so that it can be killed."""

    def __init__(self, superlink: SuperLink, key: NodeKey, folder: Path, mode: str = "answer", node_id: int | None = None) -> None:
        assert superlink.tls is not None
        self.log = folder / f"{key.name}-{random.randrange(10**9)}.log"
        order = {
            "address": superlink.address,
            "ca": str(superlink.tls.ca),
            "key": str(key.path),
            "name": key.name,
            "mode": mode,
            "node_id": node_id,
        }
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.warm_agent", json.dumps(order)], cwd=ROOT, stdout=out, stderr=out
            )

    def lines(self, word: str) -> list[str]:
        """Lines of its output that begin with a word."""
        return [line for line in self.log.read_text().splitlines() if line.startswith(word)]

    def wait(self, word: str, count: int = 1, seconds: float = 30.0) -> str:
        """The last of `count` lines that begin with a word."""

        def look() -> str | None:
            assert self.process.poll() is None or len(self.lines(word)) >= count, self.log.read_text()
            found = self.lines(word)
            return found[-1] if len(found) >= count else None

        return until(look, seconds, repr(word), self.log)

    def node_id(self, count: int = 1) -> int:
        return int(self.wait("online", count).split()[1])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


@contextmanager
def run_here(superlink: SuperLink, config: Mapping[str, str] | None = None):
    """A run whose ServerApp is this process: its grid."""
    assert superlink.tls is not None
    started = superlink.control.start_run(config or {"job": "j"})
    grid = RuntimeGrid.connect(superlink.address, superlink.tls.ca.read_bytes(), started.token, CLOCK, random.Random(0))
    with grid:
        grid.take_task()
        try:
            yield grid
        finally:
            superlink.control.stop_run(started.run_id)


def link_here(grid: RuntimeGrid, nodes: Mapping[str, int], boots: Mapping[str, str] | None = None, **named: Any) -> FlowerLink:
    """A link to these nodes; the mappings are read again and again."""
    return FlowerLink(grid, CLOCK, lambda: nodes, lambda: boots or {}, **named)


def gone(pid: int) -> bool:
    """Whether a process is not there, or is a zombie that nobody fetched."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True
