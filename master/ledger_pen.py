"""How one owner writes to the ledger about its job.

Every write looks at the job's epoch inside its own transaction: an owner that was replaced can write nothing more.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from master import schema
from master.database import Database
from master.ledger_base import add_event, get_job, text
from master.ledger_reader import JobReader
from master.records import Round
from master.states import RoundState
from trunkline.clock import Clock
from trunkline.errors import Conflict, Fenced

# Built once: putting a statement together costs more than running it, and a round has several for every child.
_ALIVE = (
    schema.jobs.update()
    .where(schema.jobs.c.id == sa.bindparam("of_job"), schema.jobs.c.epoch == sa.bindparam("of_epoch"))
    .values(heartbeat=sa.bindparam("heartbeat"))
)


@cache
def _of_child(table: sa.Table) -> sa.Select[Any]:
    key = {"of_job": table.c.job, "of_round": table.c.round, "of_child": table.c.child}
    return sa.select(table).where(*(column == sa.bindparam(name) for name, column in key.items()))


class Pen(JobReader):
    """The pen of one owner, and the rows it is moved over.

    :raises Fenced: (every write) a newer owner took over, or the job was ended from outside.
    """

    def __init__(self, database: Database, clock: Clock, job_id: str, epoch: int) -> None:
        super().__init__(database, clock, job_id)
        self.epoch = epoch

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with self._db.write() as connection:
            alive = {"of_job": self.job_id, "of_epoch": self.epoch, "heartbeat": self._clock.now()}
            if connection.execute(_ALIVE, alive).rowcount != 1:
                epoch = get_job(connection, self.job_id).epoch
                raise Fenced(
                    f"the owner of job {self.job_id!r} should be number {epoch}, found number {self.epoch}.",
                    hint="A newer owner took over, or the job was ended; this one must stop.",
                )
            yield connection

    def heartbeat(self) -> None:
        """Say that the owner is alive; every other write says so too."""
        with self._write():
            pass

    def event(
        self,
        kind: str,
        *,
        round: int | None = None,
        child: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> int:
        """Write down something that happened in this job, and return its id."""
        with self._write() as connection:
            return self._event(connection, kind, round, child, data)

    # -- rows ------------------------------------------------------------------------------------------------------

    def _event(
        self, connection: Connection, kind: str, number: int | None, child: str | None, data: Mapping[str, Any] | None
    ) -> int:
        return add_event(connection, self._clock.now(), kind, job=self.job_id, round=number, child=child, data=data)

    def _in_state(self, connection: Connection, number: int, what: str, *states: RoundState) -> Round:
        found = self._round(connection, number)
        if found.state not in states:
            raise Conflict(f"round {number} should be {' or '.join(states)} for {what}, found it {found.state}.")
        return found

    def _set_round(self, connection: Connection, number: int, state: RoundState, **values: Any) -> None:
        table = schema.rounds
        here = sa.and_(table.c.job == self.job_id, table.c.number == number)
        connection.execute(table.update().where(here).values(state=state, **values))

    def _end_round(self, connection: Connection, number: int, state: RoundState, reason: str) -> None:
        self._set_round(connection, number, state, reason=text(reason), closed=self._clock.now())
        self._event(connection, f"round.{state}", number, None, {"reason": text(reason)})

    def _find(self, connection: Connection, table: sa.Table, number: int, child: str) -> sa.RowMapping | None:
        at = {"of_job": self.job_id, "of_round": number, "of_child": child}
        return connection.execute(_of_child(table), at).mappings().first()

    def _put(
        self, connection: Connection, table: sa.Table, number: int, child: str, row: Mapping[str, Any], *, known: bool
    ) -> None:
        if known:
            here = sa.and_(table.c.job == self.job_id, table.c.round == number, table.c.child == child)
            connection.execute(table.update().where(here).values(dict(row)))
        else:
            connection.execute(table.insert(), {"job": self.job_id, "round": number, "child": child} | dict(row))
