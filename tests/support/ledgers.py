"""Ledgers for tests: none waits for the migrations, and most not for the disk."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from master import schema
from master.ledger import Ledger
from master.ledger_rounds import JobLedger
from trunkline.clock import Clock, ManualClock


def digest(mark: str) -> str:
    """A digest that can be told from others at a glance.

    >>> digest("a1")[:6]
    'a1a1a1'
    """
    return (mark * 64)[:64]


@functools.cache
def _prepared() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        Ledger.open(f"sqlite:///{path}", ManualClock()).close()
        return path.read_bytes()


def open_ledger(folder: Path, clock: Clock | None = None) -> Ledger:
    """An empty ledger in a folder, or the one that lies there."""
    path = folder / "ledger.db"
    if not path.exists():
        path.write_bytes(_prepared())
    return Ledger.open(f"sqlite:///{path}", clock or ManualClock())


@functools.cache
def _in_memory() -> Ledger:
    return Ledger.open("sqlite://", ManualClock())


def memory_ledger(clock: Clock | None = None) -> Ledger:
    """The one ledger in memory of this process, emptied: what an earlier call handed out must not be used any more."""
    ledger = _in_memory()
    ledger._clock = clock or ManualClock()
    with ledger._db.write() as connection:
        for table in reversed(schema.metadata.sorted_tables):
            if table is not schema.writer:
                connection.execute(sa.delete(table))
    return ledger


def add_encoder(ledger: Ledger, name: str = "text", kind: str = "text") -> None:
    """An encoder whose first version has the digest `digest("0")`."""
    ledger.create_encoder(name, kind, {"layers": 2}, digest("e"), {"w": [[2], "F32"]}, first=digest("0"), size=100)


def owned_job(ledger: Ledger, encoder: str = "text", **more: Any) -> JobLedger:
    """A job of an encoder, made if need be, and owned."""
    if encoder not in {known.name for known in ledger.encoders()}:
        add_encoder(ledger, encoder)
    job, _ = ledger.start_job(encoder, {"rounds": 3}, **more)
    return ledger.own(job.id, "test")


def play_to(job: JobLedger, state: str, children: tuple[str, ...] = ("a", "b"), number: int = 1, target: str = "f") -> None:
    """Bring a round to a state, the shortest way."""
    job.open_round(number, job.current_version().digest)
    if state == "instructing":
        return
    for child in children:
        job.record_confirmation(number, child, {"samples": 1}, True)
    job.fix_members(number, children)
    if state == "training":
        return
    for child in children:
        job.record_update(number, child, {"base": "x"}, digest(f"{child}{number}"), 10)
    job.close_updates(number)
    if state == "fusing":
        return
    base = job.current_version().digest
    job.publish(number, digest(f"{target}{number}"), 100, base, {child: 1 / len(children) for child in children})
    if state == "reporting":
        return
    job.close_round(number)
