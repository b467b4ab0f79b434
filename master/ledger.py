"""The ledger: the durable record of encoders, versions, jobs, rounds, members, updates, reports, nodes and events.

It is the truth after a crash. Files are written before the rows that name them. Every change writes its event in the same
transaction. A job is written to by one owner at a time: `Ledger.own` hands out a `JobLedger` and fences off every older one.

    ledger = Ledger.open("sqlite:////var/lib/trunkline/ledger.db", SystemClock())
    ledger.create_encoder("text", "text", spec, manifest, shared, first=digest, size=size)
    job, new = ledger.start_job("text", {"rounds": 3}, name="nightly", key="2026-05-01")
    owned = ledger.own(job.id, "host-1:4711")
    owned.open_round(1, base=digest)
"""

from collections.abc import Mapping
from typing import Any, Self

import sqlalchemy as sa

from master import schema
from master.database import Database
from master.ledger_base import add_event, record
from master.ledger_encoders import EncoderPart
from master.ledger_jobs import JobPart
from master.ledger_nodes import NodePart
from master.ledger_reader import JobReader
from master.ledger_rounds import JobLedger
from master.records import (
    ChildRequest,
    Encoder,
    Event,
    Job,
    Member,
    Node,
    RecordedReport,
    RecordedUpdate,
    Refusal,
    Round,
    Version,
)
from trunkline.clock import Clock


class Ledger(EncoderPart, JobPart, NodePart):
    """Everything the master knows and must not forget. Safe to use from several threads and processes at once."""

    @classmethod
    def open(cls, url: str, clock: Clock) -> Self:
        """Open a ledger; make it, or bring its schema up to date, if need be.

        :param url: an SQLAlchemy URL; `sqlite:////path/to/ledger.db` for a file, `sqlite://` for memory.
        :raises SettingsError: no such kind of database, or its schema is newer than this Trunkline knows.
        :raises StorageFailed: the file cannot be made or written.
        :raises DamagedFile: the file is not a database.
        :raises Unreachable: the database server does not answer.
        """
        return cls(Database(url), clock)

    def close(self) -> None:
        """Let go of the database."""
        self._db.close()

    def reader(self, job_id: str) -> JobReader:
        """A job and its rounds, to read.

        :raises NotFound: no such job.
        """
        return JobReader(self._db, self._clock, self.job(job_id).id)

    def named(self) -> set[str]:
        """Every digest of a file that some row still needs."""
        with self._db.read() as connection:
            return {digest for query in schema.naming() for digest in connection.execute(query).scalars()}

    def event(
        self,
        kind: str,
        *,
        job: str | None = None,
        round: int | None = None,
        child: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> int:
        """Write down something that happened, and return its id."""
        with self._db.write() as connection:
            return add_event(connection, self._clock.now(), kind, job=job, round=round, child=child, data=data)

    def events(self, after: int = 0, job: str | None = None, limit: int = 1000) -> list[Event]:
        """What happened after an event, oldest first."""
        table = schema.events
        query = sa.select(table).where(table.c.id > after).order_by(table.c.id).limit(limit)
        if job is not None:
            query = query.where(table.c.job == job)
        with self._db.read() as connection:
            return [record(Event, row) for row in connection.execute(query).mappings()]


__all__ = [
    "ChildRequest",
    "Encoder",
    "Event",
    "Job",
    "JobLedger",
    "JobReader",
    "Ledger",
    "Member",
    "Node",
    "RecordedReport",
    "RecordedUpdate",
    "Refusal",
    "Round",
    "Version",
]
