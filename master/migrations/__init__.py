"""How the ledger's schema came about, one file a step, run by Alembic when a ledger of an older Trunkline is opened."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy.engine import Connection


def config() -> Config:
    """Alembic's settings; no file of its own is needed."""
    settings = Config()
    settings.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return settings


def upgrade(connection: Connection) -> None:
    """Bring a ledger to the newest schema, inside the connection's transaction."""
    settings = config()
    settings.attributes["connection"] = connection
    command.upgrade(settings, "head")
