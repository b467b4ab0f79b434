"""The database's errors in our words, its settings, and how long opening takes."""

import sqlite3
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from master import database, schema
from master.ledger import Ledger
from tests.support.ledgers import open_ledger
from trunkline.clock import ManualClock
from trunkline.errors import DamagedFile, DeadlineExceeded, SettingsError, StorageFailed, Unreachable


def open_url(url: str) -> Ledger:
    return Ledger.open(url, ManualClock())


@pytest.mark.parametrize("url", ["", "ledger.db", "nosuch://host/db", "mysql+nosuchdriver://host/db", "oracle+oracledb://host/db"])
def test_a_wrong_url_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(SettingsError, match="`ledger` should"):
        open_url(url)


def test_a_file_that_is_no_database_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a database, but long enough to look at" * 50)
    with pytest.raises(DamagedFile, match=r"ledger\.db.*backup"):
        open_url(f"sqlite:///{tmp_path}/ledger.db")


def test_a_database_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("CREATE TABLE nodes (x)")
    connection.close()
    with pytest.raises(SettingsError, match=r"found tables nodes.*its own"):
        open_url(f"sqlite:///{tmp_path}/ledger.db")


def test_a_folder_where_the_file_should_be(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").mkdir()
    with pytest.raises(StorageFailed, match="writable"):
        open_url(f"sqlite:///{tmp_path}/ledger.db")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="folder"):
        open_url(f"sqlite:///{tmp_path}/file/ledger.db")


def test_a_server_that_is_not_there_is_unreachable() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1") as caught:
        open_url("postgresql+psycopg://user:secret@127.0.0.1:1/ledger")
    assert "secret" not in str(caught.value)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """Given a database that may not grow, writing fails in our words; given room again, it goes on."""
    ledger = open_ledger(tmp_path)
    before = ledger.event("before")
    with ledger._db._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageFailed, match="Free some space"):
        for _ in range(100):
            ledger.event("big", data={"x": "y" * 10_000})
    count = len(ledger.events())
    with ledger._db._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    ledger.event("after")
    kinds = [event.kind for event in ledger.events()]
    assert (kinds[0], kinds[-1], len(kinds)) == ("before", "after", count + 1)
    assert ledger.events()[0].id == before
    ledger.close()


def test_every_error_of_sqlite_has_words_or_is_a_mistake_of_ours() -> None:
    """The translation is complete: the primary result codes of SQLite, 1 to 26, are on one of two lists."""
    world = {"BUSY", "LOCKED", "CORRUPT", "NOTADB", "FULL", "READONLY", "CANTOPEN", "PERM", "IOERR", "PROTOCOL"}
    ours = {"ERROR", "INTERNAL", "ABORT", "NOMEM", "INTERRUPT", "NOTFOUND", "EMPTY", "SCHEMA", "TOOBIG", "CONSTRAINT", "MISMATCH"}
    ours |= {"MISUSE", "NOLFS", "AUTH", "FORMAT", "RANGE"}
    assert sorted(getattr(sqlite3, f"SQLITE_{name}") for name in world | ours) == list(range(1, 27))
    for name in world | ours:
        cause = sqlite3.OperationalError("x")
        cause.sqlite_errorname = f"SQLITE_{name}"
        translated = database._ours(OperationalError("", {}, cause), "ledger")
        assert (translated is not None) == (name in world), name


def test_settings_of_sqlite(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    with ledger._db.read() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous", "foreign_keys")
        }
        assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 30_000
    ledger.close()


def test_a_reader_does_not_wait_for_a_writer_and_sees_one_moment(tmp_path: Path) -> None:
    ledger, other = open_ledger(tmp_path), open_ledger(tmp_path)
    with ledger._db.write() as connection:
        connection.execute(schema.invites.insert().values(hash="x", created=0.0, expires=0.0))
        assert other.events() == []
        with other._db.read() as reading:
            assert reading.execute(sa.select(schema.invites)).all() == []
    ledger.close()
    other.close()


def test_a_writer_that_gets_no_turn_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "PATIENCE", 0.05)
    ledger, other = open_ledger(tmp_path), open_ledger(tmp_path)
    with ledger._db.write():
        with pytest.raises(DeadlineExceeded, match="other writers"):
            other.event("x")
        failed: list[BaseException] = []

        def same() -> None:
            try:
                ledger.event("x")
            except DeadlineExceeded as error:
                failed.append(error)

        thread = threading.Thread(target=same)
        thread.start()
        thread.join(10)
        assert "turn to write" in str(failed[0])
    ledger.event("x")
    other.event("x")
    ledger.close()
    other.close()


def test_closing_lets_go_of_the_file(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.event("x")
    ledger.close()
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.db"], "the log was folded into the file"
