"""A master without processes: ledger, blobs, gate and a job, ready to be played over a local link."""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from master.blobs import BlobStore
from master.jobs import JobSpec
from master.ledger import Ledger
from master.link import Link
from master.local import LocalLink
from master.phases.play import Play
from master.rounds import run
from master.tokens import Gate
from tests.support.sites import QuadraticSite, points
from trunkline.clock import ManualClock
from trunkline.messages import EncoderRef
from trunkline.sets import write_set


@dataclass
class Bench:
    """One master, its encoder of a single tensor `w`, and numpy children."""

    folder: Path
    clock: ManualClock
    ledger: Ledger
    blobs: BlobStore
    gate: Gate
    sites: dict[str, QuadraticSite]
    trace: list[tuple[str, str, int]]

    def play(self, link: Link | None = None, **spec: Any) -> Play:
        """A job, started, owned and ready to run."""
        table = {"encoder": "vec", "rounds": 2, "rule": "mean", "report": ("validation",), "final_report": ("validation",)} | spec
        job_spec = JobSpec.model_validate({"training": {"steps": 1, "learning_rate": 0.5, "warmup": 0.0}} | table)
        opened = [job for job in self.ledger.open_jobs() if job.encoder == "vec"]
        job = opened[0] if opened else self.ledger.start_job("vec", job_spec.table())[0]
        return Play(
            id=job.id,
            spec=job_spec,
            encoder=EncoderRef(name="vec", type="vector", manifest="0" * 64),
            ledger=self.ledger,
            pen=self.ledger.own(job.id, "test"),
            link=link or LocalLink(self.sites, debug=True),
            blobs=self.blobs,
            gate=self.gate,
            clock=self.clock,
        )

    def run(self, link: Link | None = None, **spec: Any) -> str:
        """Play a job to its end."""
        play = self.play(link, **spec)
        reason = run(play)
        play.pen.finish("finished", reason)
        return reason

    def w(self) -> np.ndarray[Any, Any]:
        """The current version's only tensor."""
        with self.blobs.open_set(self.digest()) as file:
            return file.read("w")

    def digest(self) -> str:
        return self.ledger.version("vec").digest


def make_bench(folder: Path, sizes: dict[str, int], *, url: str | None = None) -> Bench:
    """A master in a folder, and a numpy child for each name with so many samples."""
    clock, trace = ManualClock(), []
    blobs, gate = BlobStore(folder / "blobs"), Gate(secrets.token_bytes(32), clock)
    ledger = Ledger.open(url or f"sqlite:///{folder / 'ledger.sqlite3'}", clock)
    first = folder / "first"
    write_set(first, {"w": np.zeros(3, np.float32)})
    digest, size = blobs.add_file(first)
    ledger.create_encoder("vec", "vector", {}, "0" * 64, {"w": [[3], "F32"]}, first=digest, size=size)
    sites = {}
    for seed, (name, count) in enumerate(sizes.items()):
        place = folder / name
        place.mkdir()
        sites[name] = QuadraticSite(name, points(seed, count), place, blobs, gate, trace)
    return Bench(folder, clock, ledger, blobs, gate, sites, trace)


__all__ = ["Bench", "make_bench"]
