"""The first schema of the ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "encoders",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("type", sa.String(length=64), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("manifest", sa.String(length=64), nullable=False),
        sa.Column("shared", sa.JSON(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_encoders")),
    )
    op.create_index(op.f("ix_encoders_type"), "encoders", ["type"], unique=False)
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("job", sa.String(length=64), nullable=True),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("child", sa.String(length=64), nullable=True),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_events_job"), "events", ["job"], unique=False)
    op.create_table(
        "invites",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=True),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=False),
        sa.Column("used", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_invites")),
    )
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("public_key", sa.LargeBinary(), nullable=False),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("flower_id", sa.String(length=20), nullable=True),
        sa.Column("boot", sa.String(length=64), nullable=True),
        sa.Column("machine", sa.JSON(), nullable=False),
        sa.Column("tasks", sa.JSON(), nullable=False),
        sa.Column("oldest", sa.Integer(), nullable=False),
        sa.Column("newest", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("seen", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_nodes")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_nodes_token_hash")),
    )
    op.create_table(
        "writer",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_writer")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("encoder", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=True),
        sa.Column("key", sa.String(length=200), nullable=True),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("requested_by", sa.String(length=64), nullable=True),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=True),
        sa.Column("run_id", sa.String(length=64), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("heartbeat", sa.Double(), nullable=True),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("ended", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["encoder"], ["encoders.name"], name=op.f("fk_jobs_encoder")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("key", name=op.f("uq_jobs_key")),
        sa.UniqueConstraint("ordinal", name=op.f("uq_jobs_ordinal")),
    )
    op.create_index("ix_jobs_encoder_state", "jobs", ["encoder", "state"], unique=False)
    op.create_index(op.f("ix_jobs_name"), "jobs", ["name"], unique=False)
    op.create_index(op.f("ix_jobs_state"), "jobs", ["state"], unique=False)
    op.create_table(
        "versions",
        sa.Column("encoder", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("parent", sa.String(length=64), nullable=True),
        sa.Column("parent_number", sa.Integer(), nullable=True),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("job", sa.String(length=64), nullable=True),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("weights", sa.JSON(), nullable=False),
        sa.Column("delta_digest", sa.String(length=64), nullable=True),
        sa.Column("delta_size", sa.BigInteger(), nullable=True),
        sa.Column("delta_codec", sa.String(length=32), nullable=True),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["encoder"], ["encoders.name"], name=op.f("fk_versions_encoder")),
        sa.PrimaryKeyConstraint("encoder", "number", name=op.f("pk_versions")),
    )
    op.create_index(op.f("ix_versions_digest"), "versions", ["digest"], unique=False)
    op.create_table(
        "requests",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("child", sa.String(length=64), nullable=False),
        sa.Column("encoder", sa.String(length=64), nullable=True),
        sa.Column("type", sa.String(length=64), nullable=True),
        sa.Column("tasks", sa.JSON(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("job", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_requests_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_requests")),
    )
    op.create_index(op.f("ix_requests_job"), "requests", ["job"], unique=False)
    op.create_table(
        "rounds",
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("base", sa.String(length=64), nullable=False),
        sa.Column("target", sa.String(length=64), nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("opened", sa.Double(), nullable=False),
        sa.Column("closed", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_rounds_job")),
        sa.PrimaryKeyConstraint("job", "number", name=op.f("pk_rounds")),
    )
    op.create_table(
        "members",
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("child", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("confirmation", sa.JSON(), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job", "round"], ["rounds.job", "rounds.number"], name=op.f("fk_members_job_round")),
        sa.PrimaryKeyConstraint("job", "round", "child", name=op.f("pk_members")),
    )
    op.create_table(
        "refusals",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("child", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job", "round"], ["rounds.job", "rounds.number"], name=op.f("fk_refusals_job_round")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_refusals")),
    )
    op.create_index("ix_refusals_job_round", "refusals", ["job", "round"], unique=False)
    op.create_table(
        "reports",
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("child", sa.String(length=64), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job", "round"], ["rounds.job", "rounds.number"], name=op.f("fk_reports_job_round")),
        sa.PrimaryKeyConstraint("job", "round", "child", name=op.f("pk_reports")),
    )
    op.create_table(
        "updates",
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("child", sa.String(length=64), nullable=False),
        sa.Column("update", sa.JSON(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("forgotten", sa.Boolean(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job", "round"], ["rounds.job", "rounds.number"], name=op.f("fk_updates_job_round")),
        sa.PrimaryKeyConstraint("job", "round", "child", name=op.f("pk_updates")),
    )
    op.create_index(op.f("ix_updates_digest"), "updates", ["digest"], unique=False)
    op.execute("INSERT INTO writer (id) VALUES (1)")


def downgrade() -> None:
    op.drop_index(op.f("ix_updates_digest"), table_name="updates")
    op.drop_table("updates")
    op.drop_table("reports")
    op.drop_index("ix_refusals_job_round", table_name="refusals")
    op.drop_table("refusals")
    op.drop_table("members")
    op.drop_table("rounds")
    op.drop_index(op.f("ix_requests_job"), table_name="requests")
    op.drop_table("requests")
    op.drop_index(op.f("ix_versions_digest"), table_name="versions")
    op.drop_table("versions")
    op.drop_index(op.f("ix_jobs_state"), table_name="jobs")
    op.drop_index(op.f("ix_jobs_name"), table_name="jobs")
    op.drop_index("ix_jobs_encoder_state", table_name="jobs")
    op.drop_table("jobs")
    op.drop_table("writer")
    op.drop_table("nodes")
    op.drop_table("invites")
    op.drop_index(op.f("ix_events_job"), table_name="events")
    op.drop_table("events")
    op.drop_index(op.f("ix_encoders_type"), table_name="encoders")
    op.drop_table("encoders")
