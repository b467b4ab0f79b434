"""A real master's API on a loopback port with TLS, without rounds: what the contract tests talk to."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from child.api import MasterApi, enrol
from master import nodes, pki
from master.api.app import make_app
from master.api.parts import Parts
from master.api.serve import ApiServer
from master.blobs import BlobStore
from master.ledger import Ledger
from master.settings import MasterSettings
from master.streams import Streams
from master.tokens import Gate
from trunkline.api import BlobFile, Enrolled, Manifest
from trunkline.clock import SystemClock
from trunkline.https import Https, Patience
from trunkline.sets import encode_set

ADMIN = "admin-token-of-the-tests"
QUICK = Patience(connect=5.0, answer=10.0, progress=5.0, first_pause=0.01, longest_pause=0.05)


@dataclass
class Superlink:
    """Gives out node ids, and remembers what it was asked."""

    ids: dict[bytes, int] = field(default_factory=dict)
    woken: list[str] = field(default_factory=list)
    heard: set[int] | None = field(default_factory=set)  # ids of nodes that are online
    failures: list[Exception] = field(default_factory=list)  # raised first, one a call

    def register(self, key: bytes) -> int:
        if self.failures:
            raise self.failures.pop(0)
        return self.ids.setdefault(key, 2**63 + len(self.ids))

    def unregister(self, flower_id: int) -> None:
        self.ids = {key: one for key, one in self.ids.items() if one != flower_id}

    def online(self) -> frozenset[int] | None:
        return None if self.heard is None else frozenset(self.heard)

    def wake(self, job: str) -> None:
        self.woken.append(job)


@dataclass
class Running:
    """A master whose API answers."""

    parts: Parts
    superlink: Superlink
    url: str
    port: int
    tls: pki.Tls
    server: ApiServer

    def invite(self, name: str | None = None, url: str | None = None) -> str:
        return nodes.invite(
            self.parts.ledger, name, 600.0, url=url or self.url, fingerprint=self.tls.fingerprint, clock=self.parts.clock
        )

    def enrol(self, name: str) -> Enrolled:
        return enrol(self.invite(name), None, ec.generate_private_key(ec.SECP384R1()), SystemClock(), random.Random(1), QUICK)[1]

    def child(self, name: str, url: str | None = None, patience: Patience = QUICK) -> MasterApi:
        """A new child's connection."""
        enrolled = self.enrol(name)
        return MasterApi(url or self.url, enrolled.ca, enrolled.token, SystemClock(), random.Random(2), patience)

    def https(self, token: str | None, patience: Patience = QUICK) -> Https:
        return Https(self.url, self.parts.ca, token, SystemClock(), random.Random(3), patience)

    def down(self, child: str, digest: str, *, round: int = 1, seconds: float = 600.0) -> str:
        """A grant to fetch."""
        return self.parts.gate.issue(child, "job-1", round, digest, "down", self.parts.blobs.size(digest), seconds)

    def up(self, child: str, size: int, *, round: int = 1, seconds: float = 600.0) -> str:
        """A grant to send."""
        return self.parts.gate.issue(child, "job-1", round, "0" * 64, "up", size, seconds)

    def encoder(self, name: str = "text", type: str = "text", first: bytes | None = None) -> Manifest:
        """An encoder whose files are two short texts."""
        blobs = self.parts.blobs
        initial = first or encode_set({"w": np.arange(3, dtype=np.float32)})
        texts = {"config.json": b'{"layers": 2}', "tokenizer.json": name.encode()}
        manifest = Manifest(files={key: BlobFile(digest=blobs.add_bytes(text), size=len(text)) for key, text in texts.items()})
        digest = blobs.add_bytes(initial)
        shared = {"w": [[3], "F32"]}
        self.parts.ledger.create_encoder(
            name, type, {"name": name}, blobs.add_bytes(manifest.encode()), shared, first=digest, size=len(initial)
        )
        return manifest

    def events(self, kind: str) -> list[dict[str, object]]:
        """What the ledger has of one kind, in order."""
        found = [event for event in self.parts.ledger.events(limit=100_000) if event.kind == kind]
        return [{"job": one.job, "round": one.round, "child": one.child, **one.data} for one in found]


@contextmanager
def running_master(folder: Path, *, streams: Streams | None = None, **settings: object) -> Iterator[Running]:
    """A master on any free port, until the block ends."""
    clock = SystemClock()
    tls = pki.ensure(folder / "tls", ["127.0.0.1", "localhost"], clock.now())
    ledger = Ledger.open(f"sqlite:///{folder / 'ledger.sqlite3'}", clock)
    superlink = Superlink()
    options = MasterSettings.model_validate({"state": folder} | settings)
    parts = Parts(
        ledger=ledger,
        blobs=BlobStore(folder / "blobs"),
        gate=Gate(b"s" * 32, clock),
        settings=options,
        register=superlink.register,
        actions=superlink,
        clock=clock,
        admin_token=ADMIN,
        ca=tls.ca.read_text(),
        flower="127.0.0.1:8441",
        url="https://127.0.0.1:8440",
        streams=streams,
    )
    try:
        with ApiServer(make_app(parts), "127.0.0.1", 0, tls, clock=clock, stop_seconds=2.0) as server:
            yield Running(parts, superlink, f"https://127.0.0.1:{server.port}", server.port, tls, server)
    finally:
        ledger.close()
