"""The ledger's part on one job and its rounds, to read."""

from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from master import schema
from master.database import Database
from master.ledger_base import Part, current_version, get_job, record, to_version
from master.records import Job, Member, RecordedReport, RecordedUpdate, Refusal, Round, Version
from trunkline.clock import Clock
from trunkline.errors import NotFound

_ROUND = sa.select(schema.rounds).where(
    schema.rounds.c.job == sa.bindparam("of_job"), schema.rounds.c.number == sa.bindparam("of_number")
)


@cache
def _rows(table: sa.Table) -> sa.Select[Any]:
    """What a round has in a table, in no order."""
    return sa.select(table).where(table.c.job == sa.bindparam("of_job"), table.c.round == sa.bindparam("of_number"))


class JobReader(Part):
    """One job and its rounds. Anybody may read, at any time."""

    def __init__(self, database: Database, clock: Clock, job_id: str) -> None:
        super().__init__(database, clock)
        self.job_id = job_id

    @property
    def job(self) -> Job:
        """The job as it stands now: an operator may have paused or aborted it."""
        with self._db.read() as connection:
            return get_job(connection, self.job_id)

    def rounds(self) -> list[Round]:
        """Its rounds, first to last."""
        table = schema.rounds
        query = sa.select(table).where(table.c.job == self.job_id).order_by(table.c.number)
        with self._db.read() as connection:
            return [record(Round, row) for row in connection.execute(query).mappings()]

    def round(self, number: int) -> Round | None:
        """One round, or None."""
        with self._db.read() as connection:
            return self._find_round(connection, number)

    def last_round(self) -> Round | None:
        """The newest round, or None."""
        with self._db.read() as connection:
            return self._last_round(connection)

    def fused(self, before: int) -> list[int]:
        """Numbers of the rounds before one that came to a target, first to last."""
        table = schema.rounds
        query = sa.select(table.c.number).where(table.c.job == self.job_id, table.c.target.is_not(None), table.c.number < before)
        with self._db.read() as connection:
            return list(connection.execute(query.order_by(table.c.number)).scalars())

    def recorded(self) -> list[int]:
        """Numbers of the rounds that came to a target and whose updates are kept still, first to last."""
        rounds, updates = schema.rounds, schema.updates
        forgotten = sa.exists().where(
            updates.c.job == rounds.c.job, updates.c.round == rounds.c.number, updates.c.forgotten.is_(True)
        )
        query = sa.select(rounds.c.number).where(rounds.c.job == self.job_id, rounds.c.target.is_not(None), ~forgotten)
        with self._db.read() as connection:
            return list(connection.execute(query.order_by(rounds.c.number)).scalars())

    def last_fused(self, before: int) -> Round | None:
        """The newest round before one that came to a target: what that one starts from."""
        table = schema.rounds
        query = sa.select(table).where(table.c.job == self.job_id, table.c.target.is_not(None), table.c.number < before)
        with self._db.read() as connection:
            row = connection.execute(query.order_by(table.c.number.desc()).limit(1)).mappings().first()
        return None if row is None else record(Round, row)

    def training(self) -> list[tuple[int, Member]]:
        """Members of any round who have neither sent an update nor been refused one for it, with the number of that round."""
        members, updates, refusals = schema.members, schema.updates, schema.refusals
        sent = sa.exists().where(
            updates.c.job == members.c.job, updates.c.origin == members.c.round, updates.c.child == members.c.child
        )
        refused = sa.exists().where(
            refusals.c.job == members.c.job, refusals.c.round == members.c.round, refusals.c.child == members.c.child
        )
        query = sa.select(members).where(members.c.job == self.job_id, members.c.state == "member", ~sent, ~refused)
        with self._db.read() as connection:
            rows = connection.execute(query.order_by(members.c.round)).mappings().all()
        return [(row["round"], record(Member, row)) for row in rows]

    def members(self, number: int) -> list[Member]:
        """Every child that answered the instruction, in the order of names, with what became of it."""
        return [record(Member, row) for row in self._of_round(schema.members, number)]

    def updates(self, number: int) -> list[RecordedUpdate]:
        """The accepted updates, in the order of the children's names."""
        return [record(RecordedUpdate, row) for row in self._of_round(schema.updates, number)]

    def refusals(self, number: int) -> list[Refusal]:
        """What was refused, in the order in which it came."""
        return [record(Refusal, row) for row in self._of_round(schema.refusals, number)]

    def reports(self, number: int) -> list[RecordedReport]:
        """The reports, in the order of the children's names."""
        return [record(RecordedReport, row) for row in self._of_round(schema.reports, number)]

    def _of_round(self, table: sa.Table, number: int) -> list[sa.RowMapping]:
        with self._db.read() as connection:
            rows = connection.execute(_rows(table), {"of_job": self.job_id, "of_number": number}).mappings().all()
        # Sorted here: each database has its own idea of the order of letters, and updates are fused in this order.
        return sorted(rows, key=lambda row: row["id"] if "id" in row else row["child"])

    def current_version(self) -> Version:
        """The current version of the job's encoder."""
        with self._db.read() as connection:
            return current_version(connection, get_job(connection, self.job_id).encoder)

    def version(self, digest: str) -> Version:
        """The newest version of the job's encoder with this digest.

        :raises NotFound: there is none.
        """
        table = schema.versions
        with self._db.read() as connection:
            encoder = get_job(connection, self.job_id).encoder
            query = sa.select(table).where(table.c.encoder == encoder, table.c.digest == digest)
            row = connection.execute(query.order_by(table.c.number.desc()).limit(1)).mappings().first()
        if row is None:
            raise NotFound(f"a version of encoder {encoder!r} with digest {digest} should be there, found none.")
        return to_version(row)

    def _find_round(self, connection: Connection, number: int) -> Round | None:
        row = connection.execute(_ROUND, {"of_job": self.job_id, "of_number": number}).mappings().first()
        return None if row is None else record(Round, row)

    def _last_round(self, connection: Connection) -> Round | None:
        table = schema.rounds
        query = sa.select(table).where(table.c.job == self.job_id).order_by(table.c.number.desc()).limit(1)
        row = connection.execute(query).mappings().first()
        return None if row is None else record(Round, row)

    def _round(self, connection: Connection, number: int) -> Round:
        found = self._find_round(connection, number)
        if found is None:
            raise NotFound(f"round {number} of job {self.job_id!r} should be there, found none.")
        return found
