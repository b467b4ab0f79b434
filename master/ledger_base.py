"""What every part of the ledger is built on: a database, a clock, and one way to write events and text."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from master import schema
from master.database import Database
from master.records import Job, Version
from master.states import ENDED_JOBS, ENDED_ROUNDS, JobState
from trunkline.clock import Clock
from trunkline.errors import NotFound
from trunkline.messages import DeltaRef

TEXT_LIMIT = 2000
"""Characters of a reason or detail that are kept; they may come from a child."""

Record = TypeVar("Record")


class Part:
    """A part of the ledger."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._db, self._clock = database, clock


def text(value: str) -> str:
    """Text that any database takes: bounded, no NUL, no half surrogates."""
    clean = value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= TEXT_LIMIT else clean[: TEXT_LIMIT - 1] + "…"


def plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object as it reads back (tuples become lists), so that it compares equal to what is stored."""
    return json.loads(json.dumps(dict(value)))


def add_event(
    connection: Connection,
    at: float,
    kind: str,
    *,
    job: str | None = None,
    round: int | None = None,
    child: str | None = None,
    data: Mapping[str, Any] | None = None,
) -> int:
    """Write an event in the transaction that makes it true, and return its id."""
    row = {"at": at, "kind": kind, "job": job, "round": round, "child": child, "data": dict(data or {})}
    key = connection.execute(schema.events.insert(), row).inserted_primary_key
    assert key is not None
    return int(key[0])


def record(kind: type[Record], row: RowMapping | Mapping[str, Any], **given: Any) -> Record:
    """A frozen value from a row; columns that the value does not have are left out."""
    fields: dict[str, Any] = {name: row[name] for name in kind.__dataclass_fields__ if name in row}  # type: ignore[attr-defined]
    return kind(**(fields | given))


def get_job(connection: Connection, job: str) -> Job:
    """:raises NotFound: no such job, neither by id nor by name (the newest of that name counts)."""
    rows = sa.select(schema.jobs)
    found = connection.execute(rows.where(schema.jobs.c.id == job)).mappings().first()
    if found is None:
        named = rows.where(schema.jobs.c.name == job).order_by(schema.jobs.c.ordinal.desc()).limit(1)
        found = connection.execute(named).mappings().first()
    if found is None:
        raise NotFound(f"`job` should be the id or name of a job, found {job!r}.", hint="See `trunkline job list`.")
    return record(Job, found)


def to_version(row: RowMapping) -> Version:
    """A version from its row."""
    delta = None
    if row["delta_digest"] is not None:
        delta = DeltaRef(held=row["parent"], digest=row["delta_digest"], size=row["delta_size"], codec=row["delta_codec"])
    return record(Version, row, delta=delta)


def current_version(connection: Connection, encoder: str) -> Version:
    """The newest version of an encoder.

    :raises NotFound: no such encoder.
    """
    table = schema.versions
    newest = sa.select(table).where(table.c.encoder == encoder).order_by(table.c.number.desc()).limit(1)
    row = connection.execute(newest).mappings().first()
    if row is None:
        raise no_encoder(encoder)
    return to_version(row)


def no_encoder(name: str) -> NotFound:
    return NotFound(f"`encoder` should be the name of an encoder, found {name!r}.", hint="See `trunkline encoder list`.")


def _end_open_round(connection: Connection, job: str, at: float, reason: str) -> None:
    """A job that ends takes its open round with it: closed if its target was published, skipped if not."""
    table = schema.rounds
    still = sa.select(table.c.number, table.c.state).where(table.c.job == job, table.c.state.not_in(ENDED_ROUNDS))
    for number, state in connection.execute(still).all():
        ended = "closed" if state == "reporting" else "skipped"
        connection.execute(
            table.update().where(table.c.job == job, table.c.number == number).values(state=ended, reason=text(reason), closed=at)
        )
        add_event(connection, at, f"round.{ended}", job=job, round=number, data={"reason": text(reason)})


def change_job(connection: Connection, job: Job, state: JobState, reason: str, at: float, *, epoch: int) -> None:
    """Put a job into another state, with its event; a job that ends takes its open round along."""
    values: dict[str, Any] = {"state": state, "reason": text(reason), "epoch": epoch}
    if state in ENDED_JOBS:
        values["ended"] = at
        _end_open_round(connection, job.id, at, reason or f"the job is {state}")
    connection.execute(schema.jobs.update().where(schema.jobs.c.id == job.id).values(values))
    add_event(connection, at, f"job.{state}", job=job.id, data={"reason": text(reason)})
