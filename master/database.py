"""The database under the ledger: opening it, its schema, transactions with one writer at a time, and its errors in our words.

SQLite by default: write-ahead log, every commit flushed, foreign keys on, writers queue at `BEGIN IMMEDIATE`. Any other SQLAlchemy
URL works too; there a writer locks the one row of `writer` first. So a transaction never sees half of another's on any database,
and ids of events grow in the order of commits.
"""

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.pool import StaticPool

from master import schema
from trunkline.errors import DamagedFile, DeadlineExceeded, SettingsError, StorageFailed, TrunklineError, Unreachable

PATIENCE = 30.0
"""Seconds a writer waits for its turn."""


class Database:
    """A database whose schema is up to date.

    :param url: an SQLAlchemy URL, `sqlite:////path/to/ledger.db` for a file.
    :raises SettingsError: the URL is none, its driver is missing, or the schema is newer than this Trunkline knows.
    :raises StorageFailed: the file cannot be opened or written.
    :raises Unreachable: the database server does not answer.
    """

    def __init__(self, url: str) -> None:
        self.url = _parse(url)
        self.where = self.url.render_as_string(hide_password=True)
        self._turn = threading.Lock()
        self._engine = _engine(self.url)
        self._shared = isinstance(self._engine.pool, StaticPool)  # in memory: one connection for all threads
        try:
            self._bring_up_to_date()
        except BaseException:
            self._engine.dispose()
            raise

    def close(self) -> None:
        """Let go of every connection."""
        self._engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one moment of the ledger."""
        with self._my_turn() if self._shared else nullcontext(), self._translated(), self._engine.connect() as connection:
            if connection.dialect.name != "sqlite":  # there a transaction sees one moment anyway
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is the only one to write; all of it happens or nothing.

        :raises DeadlineExceeded: other writers kept it waiting.
        """
        with self._my_turn(), self._translated(), self._engine.connect() as connection:
            connection = connection.execution_options(write=True)
            with connection.begin():
                _lock_writers(connection)
                yield connection

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        # Threads of one process queue here: a lock wakes the next one at once, SQLite's own wait polls.
        if not self._turn.acquire(timeout=PATIENCE):
            raise DeadlineExceeded(f"waited {PATIENCE:g} s for a turn to write to the ledger.")
        try:
            yield
        finally:
            self._turn.release()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except exc.DBAPIError as error:
            ours = _ours(error, self.where)
            if ours is None:
                raise
            raise ours from error
        except exc.TimeoutError as error:
            raise DeadlineExceeded(f"waited for a connection to `{self.where}`.") from error

    def _bring_up_to_date(self) -> None:
        with self.read() as connection:
            found = _revision(connection)
        if found == schema.REVISIONS[-1]:
            return
        if found is not None and found not in schema.REVISIONS:
            raise SettingsError(
                f"`{self.where}` should have a schema up to {schema.REVISIONS[-1]}, found {found}.",
                hint="It was written by a newer Trunkline: upgrade this one, or name another ledger.",
            )
        with self._my_turn(), self._translated(), self._engine.connect() as connection:
            connection = connection.execution_options(write=True)
            with connection.begin():
                _upgrade(connection, self.where)


def _parse(text: str) -> URL:
    try:
        url = make_url(text)
    except exc.ArgumentError:
        raise SettingsError(
            f"`ledger` should be an SQLAlchemy URL, found {text!r}.", hint="For a file: sqlite:////path/to/ledger.db."
        ) from None
    if url.get_backend_name() == "sqlite" and url.database and url.database != ":memory:" and not url.database.startswith("file:"):
        folder = Path(url.database).absolute().parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageFailed(f"`{folder}` should be a folder for the ledger, found: {error.strerror}.") from error
    return url


def _engine(url: URL) -> Engine:
    options: dict[str, Any] = {"json_serializer": _to_json}
    if url.get_backend_name() == "sqlite":
        options["connect_args"] = {"timeout": PATIENCE, "check_same_thread": False}
        if url.database in (None, "", ":memory:"):
            options["poolclass"] = StaticPool
        else:
            options |= {"pool_size": 8, "max_overflow": -1}
    else:
        options["pool_pre_ping"] = True
        if url.get_backend_name() == "postgresql":
            options["connect_args"] = {"connect_timeout": 10}
    try:
        engine = sa.create_engine(url, **options)
    except (ImportError, exc.NoSuchModuleError) as error:
        raise SettingsError(
            f"`ledger` should name a database whose driver is installed, found {url.drivername!r}.",
            hint=f"Install the driver ({error}).",
        ) from None
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, record: object) -> None:
    connection.isolation_level = None  # the driver must not begin transactions by itself; `_begin_sqlite` does
    connection.execute(f"PRAGMA busy_timeout = {int(PATIENCE * 1000)}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA journal_mode = WAL")


def _begin_sqlite(connection: Connection) -> None:
    # A deferred transaction that turns into a writer fails at once when another wrote meanwhile; an immediate one waits its turn.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("write") else "BEGIN")


def _lock_writers(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        return  # `BEGIN IMMEDIATE` did it
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(PATIENCE * 1000)}")
    connection.execute(sa.select(schema.writer.c.id).with_for_update())


def _revision(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table(schema.VERSION_TABLE):
        return None
    return connection.execute(sa.select(sa.column("version_num")).select_from(sa.table(schema.VERSION_TABLE))).scalar()


def _upgrade(connection: Connection, where: str) -> None:
    found = _revision(connection)  # again: another process may have been first
    if found == schema.REVISIONS[-1]:
        return
    if found is None:
        strangers = sorted(set(sa.inspect(connection).get_table_names()) & set(schema.metadata.tables))
        if strangers:
            raise SettingsError(
                f"`{where}` should be an empty database or a ledger, found tables {', '.join(strangers)}.",
                hint="Give the ledger a database of its own.",
            )
    from master.migrations import upgrade  # alembic takes 0.2 s to import: only when there is something to do

    upgrade(connection)


def _to_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)


_SQLITE = {
    "SQLITE_FULL": "Free some space and try again; nothing was lost.",
    "SQLITE_READONLY": "Mount it writable, or name another ledger.",
    "SQLITE_CANTOPEN": "Give this user the right to write there, or name another ledger.",
    "SQLITE_PERM": "Give this user the right to write there, or name another ledger.",
    "SQLITE_IOERR": "Look at the disk; nothing that was confirmed is lost.",
}


def _ours(error: exc.DBAPIError, where: str) -> TrunklineError | None:
    """What the database says, in our words; None where it is a mistake of ours."""
    cause = error.orig
    if isinstance(cause, sqlite3.Error):
        name = getattr(cause, "sqlite_errorname", "")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")):
            return DeadlineExceeded(f"waited {PATIENCE:g} s for other writers of `{where}`.")
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            return DamagedFile(f"`{where}` should be a ledger, found: {cause}.", hint="Restore it from a backup.")
        for prefix, hint in _SQLITE.items():
            if name.startswith(prefix):
                return StorageFailed(f"`{where}` should be writable, found: {cause}.", hint=hint)
        return None
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if state == "55P03":
        return DeadlineExceeded(f"waited {PATIENCE:g} s for other writers of `{where}`.")
    if state in ("53100", "25006", "42501"):  # disk full, read only, no right
        return StorageFailed(f"`{where}` should be writable, found: {cause}.", hint="Look at the database server.")
    if error.connection_invalidated or isinstance(error, (exc.OperationalError, exc.InterfaceError)):
        first = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
        return Unreachable(f"the database `{where}` should answer, found: {first}.")
    return None
