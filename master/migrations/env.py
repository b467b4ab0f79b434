"""What Alembic runs before the migrations: they use the connection they are handed and leave its transaction alone."""

from alembic import context

from master import schema

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=schema.metadata,
    version_table=schema.VERSION_TABLE,
    render_as_batch=True,  # SQLite cannot change a column in place
)
with context.begin_transaction():
    context.run_migrations()
