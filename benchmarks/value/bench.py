"""A master without processes and real children with real encoders, in one folder: the rounds of the shared variant.

The children's handlers, the checks, the ledger, the rules and the codecs are the product's own; only the wire is missing.
"""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from child.handlers import Child, open_child
from child.registry import Registry
from child.state import PrivateStore
from child.transfer import FolderTransfer
from master.api.files import Files
from master.blobs import BlobStore
from master.fusion import opened
from master.jobs import JobSpec
from master.ledger import Ledger
from master.local import LocalLink
from master.phases.play import Play
from master.rounds import run
from master.rules import Parameters
from master.tokens import Gate
from tasks.declared import read_spec
from tasks.folder import SHARED
from tasks.specs import TaskSpec
from trunkline.api import BlobFile, Manifest
from trunkline.clock import SystemClock
from trunkline.errors import FailedError
from trunkline.messages import EncoderRef
from trunkline.sets import SetFile

ENCODER = "value"


@dataclass(frozen=True, slots=True)
class Kept:
    """What runs of one worker share, so that it is read once."""

    tables: Path  # token tables, a folder a child
    encoders: Path  # encoder files by the digest of their manifest


class Bench:
    """One master and its children.

    :param folder: new and empty.
    :param made: an encoder as `tasks.encoders.create` leaves it.
    """

    def __init__(self, folder: Path, made: Path) -> None:
        self.folder, self.clock = folder, SystemClock()
        self.blobs, self.gate = BlobStore(folder / "blobs"), Gate(secrets.token_bytes(32), self.clock)
        self.ledger = Ledger.open(f"sqlite:///{folder / 'ledger.sqlite3'}", self.clock)
        self.children: dict[str, Child] = {}
        self.encoder = self._bring(made)

    def _bring(self, made: Path) -> EncoderRef:
        spec = read_spec(made)
        first, _ = self.blobs.add_file(made / SHARED)
        files = {}
        for path in sorted(made.rglob("*")):
            if path.is_file() and path.name != SHARED:
                digest, size = self.blobs.add_file(path)
                files[str(path.relative_to(made))] = BlobFile(digest=digest, size=size)
        manifest = self.blobs.add_bytes(Manifest(files=files).encode())
        with SetFile(self.blobs.path(first)) as shared:
            shape = {name: [list(tensor.shape), tensor.dtype] for name, tensor in shared.spec.items()}
        self.ledger.create_encoder(ENCODER, spec.type, spec.table(), manifest, shape, first=first, size=self.blobs.size(first))
        return EncoderRef(name=ENCODER, type=spec.type, manifest=manifest)

    def add_child(self, name: str, task: TaskSpec, kept: Kept) -> None:
        """A child with one task; its token tables and its copy of the encoder's files may be there from an earlier run."""
        home = self.folder / "children" / name
        home.mkdir(parents=True)
        for link, target in (("cache", kept.tables / name), ("encoders", kept.encoders)):
            target.mkdir(parents=True, exist_ok=True)
            (home / link).symlink_to(target.absolute(), target_is_directory=True)
        child = open_child(home, self._transfer(name), name=name, clock=self.clock)
        Registry(child.home).add(task)
        self.children[name] = child

    def _transfer(self, name: str) -> FolderTransfer:
        files = Files(self.ledger, self.blobs)

        def check(grant: str, digest: str) -> None:
            self.gate.check(grant, digest=digest, direction="down", child=name)

        def take(path: Path, digest: str, grant: str) -> None:
            self.gate.check(grant, digest=None, direction="up", child=name)
            self.blobs.add_file(path)

        def manifest(encoder: str, digest: str) -> dict[str, tuple[str, int]]:
            return {name: (file.digest, file.size) for name, file in files.manifest(digest).files.items()}

        return FolderTransfer(self.blobs.path, take, check, files.public, manifest)

    def play(self, spec: JobSpec) -> Mapping[str, int]:
        """Play a job to its end; return the bytes of the last round's update, by child.

        :raises FailedError: a child's update is missing from a round.
        """
        job, _ = self.ledger.start_job(ENCODER, spec.table())
        self.spec, self.pen = spec, self.ledger.own(job.id, "value")
        pen = self.pen
        link = LocalLink(self.children, debug=True)
        play = Play(job.id, spec, self.encoder, self.ledger, pen, link, self.blobs, self.gate, self.clock)
        pen.finish("finished", run(play))
        sizes: dict[str, int] = {}
        for round_ in pen.rounds():
            sizes = {row.child: row.size for row in pen.updates(round_.number)}
            if round_.state != "closed" or set(sizes) != set(self.children):
                raise FailedError(f"round {round_.number} should have an update of every child, found {sorted(sizes)}.")
        return sizes

    @contextmanager
    def updates(self) -> Iterator[Mapping[str, Parameters]]:
        """What each child trained in the last round, before it was fused."""
        last = self.pen.last_round()
        assert last is not None, "a job was played"
        with opened(self.blobs, self.pen, last, self.spec) as inputs:
            yield {one.child: one.parameters for one in inputs.contributions}

    def close(self) -> None:
        """Let go of the ledger's file."""
        self.ledger.close()

    def target(self) -> SetFile:
        """The parameter set that the rounds came to."""
        return self.blobs.open_set(self.ledger.version(ENCODER).digest)

    def private(self, name: str) -> PrivateStore:
        """A child's heads after the rounds."""
        return PrivateStore(self.children[name].home.private / ENCODER)
