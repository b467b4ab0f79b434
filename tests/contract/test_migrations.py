"""The migrations and `master/schema.py` describe the same tables."""

import re
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection, Engine

from master import schema
from master.ledger import Ledger
from master.migrations import config, upgrade
from tests.support.ledgers import owned_job, play_to
from tests.support.postgres import postgres
from trunkline.clock import ManualClock

pytestmark = pytest.mark.contract


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "sqlite":
        engine = sa.create_engine("sqlite://")
        yield engine
        engine.dispose()
    else:
        with postgres() as url:
            engine = sa.create_engine(url)
            yield engine
            engine.dispose()


def test_the_migrations_lead_to_the_schema(engine: Engine) -> None:
    with engine.begin() as connection:
        upgrade(connection)
        assert _differences(connection) == []
        assert connection.execute(sa.select(schema.writer)).all() == [(1,)]
        connection.execute(sa.text("ALTER TABLE nodes ADD COLUMN forgotten_here INTEGER"))
        assert _differences(connection) != [], "the comparison can fail"


def _differences(connection: Connection) -> list[object]:
    options = {"version_table": schema.VERSION_TABLE, "compare_type": True, "compare_server_default": True}
    return compare_metadata(MigrationContext.configure(connection, opts=options), schema.metadata)


def test_the_list_of_revisions_is_that_of_the_files() -> None:
    scripts = ScriptDirectory.from_config(config())
    assert [script.revision for script in scripts.walk_revisions()] == list(reversed(schema.REVISIONS))
    assert all(re.fullmatch(r"\d{4}", revision) for revision in schema.REVISIONS)


def test_every_step_can_be_taken_back(engine: Engine) -> None:
    settings = config()
    with engine.begin() as connection:
        settings.attributes["connection"] = connection
        command.upgrade(settings, "head")
        command.downgrade(settings, "base")
        assert sa.inspect(connection).get_table_names() == [schema.VERSION_TABLE]
        command.upgrade(settings, "head")


def test_a_ledger_of_every_older_revision_opens_and_works(tmp_path_factory: pytest.TempPathFactory) -> None:
    for revision in schema.REVISIONS:
        url = f"sqlite:///{tmp_path_factory.mktemp('old')}/ledger.db"
        engine = sa.create_engine(url)
        settings = config()
        with engine.begin() as connection:
            settings.attributes["connection"] = connection
            command.upgrade(settings, revision)
        engine.dispose()
        ledger = Ledger.open(url, ManualClock())
        play_to(owned_job(ledger), "closed")
        ledger.close()
