"""A master without processes and real children with real encoders, in one folder: what the flow tests play with."""

import random
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from child.handlers import Child, open_child
from child.registry import Registry
from child.transfer import FolderTransfer
from master.api.files import Files
from master.blobs import BlobStore
from master.jobs import JobSpec
from master.ledger import Ledger
from master.link import Link
from master.local import LocalLink
from master.phases.play import Play
from master.rounds import run
from master.tokens import Gate
from tasks import encoders
from tasks.specs import Config, EncoderSpec, TaskSpec
from tests.support import tiny
from trunkline.api import BlobFile, Manifest
from trunkline.clock import ManualClock
from trunkline.messages import EncoderRef
from trunkline.sets import SetFile

PLAIN = {"steps": 4, "learning_rate": 1e-3, "head_learning_rate": 1e-2, "decay": "none", "moments": "fresh"}


@dataclass
class World:
    """One master and its children."""

    folder: Path
    clock: ManualClock
    ledger: Ledger
    blobs: BlobStore
    gate: Gate
    encoder: EncoderRef
    children: dict[str, Child]

    def add_child(self, name: str, *tasks: TaskSpec) -> Child:
        """A child with these tasks; calling it again opens the same folder anew, as a restart does."""
        home = self.folder / "children" / name
        child = open_child(home, self.transfer(name), name=name, clock=self.clock)
        registry = Registry(child.home)
        for task in tasks:
            registry.add(task, replace=True)
        self.children[name] = child
        return child

    def transfer(self, name: str) -> FolderTransfer:
        """What moves a child's bytes: the blob store, under the gate's grants."""
        files = Files(self.ledger, self.blobs)

        def check(grant: str, digest: str) -> None:
            self.gate.check(grant, digest=digest, direction="down", child=name)

        def take(path: Path, digest: str, grant: str) -> None:
            self.gate.check(grant, digest=None, direction="up", child=name)
            self.blobs.add_file(path)

        def manifest(encoder: str, digest: str) -> dict[str, tuple[str, int]]:
            return {name: (file.digest, file.size) for name, file in files.manifest(digest).files.items()}

        return FolderTransfer(self.blobs.path, take, check, files.public, manifest)

    def play(self, link: Link | None = None, **spec: Any) -> Play:
        """A job, started and owned, or the open one owned anew, as after a crash. What is not said is as plain as it can be."""
        training = PLAIN | spec.pop("training", {})
        table = {"encoder": self.encoder.name, "rounds": 2, "rule": "mean", "training": training}
        job_spec = JobSpec.model_validate(table | spec)
        opened = self.ledger.open_jobs()
        job = opened[0] if opened else self.ledger.start_job(self.encoder.name, job_spec.table())[0]
        link = link or LocalLink(self.children, debug=True)
        pen = self.ledger.own(job.id, "test")
        return Play(job.id, job_spec, self.encoder, self.ledger, pen, link, self.blobs, self.gate, self.clock)

    def run(self, link: Link | None = None, **spec: Any) -> Play:
        """Play a job to its end."""
        play = self.play(link, **spec)
        play.pen.finish("finished", run(play))
        return play

    def digest(self) -> str:
        return self.ledger.version(self.encoder.name).digest

    def current(self) -> dict[str, Any]:
        """Tensors of the current version."""
        with self.blobs.open_set(self.digest()) as file:
            return file.tensors()


def make_world(folder: Path, spec: EncoderSpec | None = None, **changes: Any) -> World:
    """A master in a folder, with one encoder (default: a tiny BERT from a seed)."""
    clock = ManualClock()
    blobs, gate = BlobStore(folder / "blobs"), Gate(secrets.token_bytes(32), clock)
    ledger = Ledger.open(f"sqlite:///{folder / 'ledger.sqlite3'}", clock)
    if spec is None:
        source = Config(options=tiny.OPTIONS, seed=1, tokenizer=str(tiny.tokenizer(folder / "tokenizer")))
        spec = EncoderSpec.model_validate({"name": "tiny", "type": "text", "source": source, "max_length": 32} | changes)
    made = folder / "encoder"
    encoders.create(spec, made)
    first, _ = blobs.add_file(made / "shared.safetensors")
    files = {}
    for path in sorted(made.rglob("*")):
        if path.is_file() and path.name != "shared.safetensors":
            digest, size = blobs.add_file(path)
            files[str(path.relative_to(made))] = BlobFile(digest=digest, size=size)
    manifest = blobs.add_bytes(Manifest(files=files).encode())
    with SetFile(blobs.path(first)) as shared:
        shape = {name: [list(tensor.shape), tensor.dtype] for name, tensor in shared.spec.items()}
    ledger.create_encoder(spec.name, spec.type, spec.table(), manifest, shape, first=first, size=blobs.size(first))
    return World(folder, clock, ledger, blobs, gate, EncoderRef(name=spec.name, type=spec.type, manifest=manifest), {})


def write_reviews(path: Path, count: int, seed: int = 0, canary: str = "") -> Path:
    """A small file of reviews whose label can be read off their words."""
    rng = random.Random(seed)
    lines = ["text,label,split"]
    for number in range(count):
        positive = rng.random() < 0.5
        words = rng.sample(["the food was", "place is", "room was", "price is a", "staff and"], 2)
        mood = rng.choice(["good", "loved", "fast"] if positive else ["bad", "hated", "slow"])
        split = "train" if number % 10 < 7 else "validation" if number % 10 < 8 else "test"
        lines.append(f"{words[0]} {mood} {words[1]} {number} {canary},{'positive' if positive else 'negative'},{split}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def sentiment(path: Path, **changes: Any) -> TaskSpec:
    """A sentiment task over such a file."""
    table = {"name": "sentiment", "head": "single", "data": str(path), "fields": ["text"], "label": "label", "batch_size": 8}
    return TaskSpec.model_validate(table | changes)
