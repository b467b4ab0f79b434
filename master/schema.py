"""The tables of the ledger. What each row means stands in `master/records.py`; how they came about in `master/migrations`.

encoders ─< versions              a version is a published parameter set; its lineage is `parent_number`
encoders ─< jobs ─< rounds        a round belongs to a job, a job trains one encoder
rounds ─< members, updates, refusals, reports
nodes, invites, requests          children, how they came in, what they asked for
events                            everything that changed, in the order in which it was committed
writer                            one row; databases without `BEGIN IMMEDIATE` lock it, so that there too one writes at a time
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    String,
    Table,
    Text,
    select,
)

REVISIONS = ("0001", "0002")
"""Every migration, oldest first. A ledger at another revision was written by a newer Trunkline."""

VERSION_TABLE = "schema_version"

NAME, DIGEST, WORD = String(64), String(64), String(32)
BIG_KEY = BigInteger().with_variant(Integer(), "sqlite")  # SQLite counts up only what is called INTEGER

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

writer = Table("writer", metadata, Column("id", Integer, primary_key=True, autoincrement=False))

encoders = Table(
    "encoders",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("type", NAME, nullable=False, index=True),
    Column("spec", JSON, nullable=False),
    Column("manifest", DIGEST, nullable=False),
    Column("shared", JSON, nullable=False),  # name -> [shape, dtype]
    Column("created", Double, nullable=False),
)

versions = Table(
    "versions",
    metadata,
    Column("encoder", NAME, ForeignKey("encoders.name"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("digest", DIGEST, nullable=False, index=True),
    Column("size", BigInteger, nullable=False),  # bytes
    Column("parent", DIGEST),
    Column("parent_number", Integer),
    Column("kind", WORD, nullable=False),  # initial, round, rollback, snapshot
    Column("job", NAME),
    Column("round", Integer),
    Column("weights", JSON, nullable=False),  # child -> share of the fused set
    Column("delta_digest", DIGEST),  # a file that holds the difference from the parent
    Column("delta_size", BigInteger),
    Column("delta_codec", WORD),
    Column("data", JSON, nullable=False),
    Column("created", Double, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("ordinal", Integer, nullable=False, unique=True),
    Column("encoder", NAME, ForeignKey("encoders.name"), nullable=False),
    Column("name", NAME, index=True),
    Column("key", String(200), unique=True),  # idempotency key of whoever started it
    Column("spec", JSON, nullable=False),
    Column("requested_by", NAME),
    Column("state", WORD, nullable=False, index=True),
    Column("reason", Text, nullable=False),
    Column("epoch", Integer, nullable=False),  # counts owners; an older one is fenced off
    Column("owner", String(200)),
    Column("run_id", String(64)),
    Column("pid", Integer),
    Column("heartbeat", Double),
    Column("created", Double, nullable=False),
    Column("ended", Double),
)
Index("ix_jobs_encoder_state", jobs.c.encoder, jobs.c.state)

rounds = Table(
    "rounds",
    metadata,
    Column("job", NAME, ForeignKey("jobs.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("state", WORD, nullable=False),
    Column("base", DIGEST, nullable=False),
    Column("target", DIGEST),
    Column("version", Integer),  # number of the version that the target became
    Column("reason", Text, nullable=False),
    Column("opened", Double, nullable=False),
    Column("closed", Double),
    Column("rule_state", DIGEST),  # what the rule remembers after this round
    Column("residual", DIGEST),  # what a lossy codec left out of the target
    Column("notes", JSON(none_as_null=True)),  # what the rule saw, for people, and its state beside the tensors
)


def _of_round() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["job", "round"], ["rounds.job", "rounds.number"])


members = Table(
    "members",
    metadata,
    Column("job", NAME, primary_key=True),
    Column("round", Integer, primary_key=True, autoincrement=False),
    Column("child", NAME, primary_key=True),
    Column("state", WORD, nullable=False),  # confirmed or refused; once fixed: member, left_out or refused
    Column("confirmation", JSON, nullable=False),
    Column("reason", WORD),
    Column("detail", Text, nullable=False),
    Column("at", Double, nullable=False),
    _of_round(),
)

updates = Table(
    "updates",
    metadata,
    Column("job", NAME, primary_key=True),
    Column("round", Integer, primary_key=True, autoincrement=False),
    Column("child", NAME, primary_key=True),
    Column("update", JSON, nullable=False),
    Column("digest", DIGEST, nullable=False, index=True),
    Column("size", BigInteger, nullable=False),
    Column("forgotten", Boolean(create_constraint=False), nullable=False),  # its file may be gone
    Column("at", Double, nullable=False),
    Column("arrival", Integer),  # the how-manieth of its round, from 1
    Column("origin", Integer),  # the round whose initial set it was trained from
    _of_round(),
)

refusals = Table(
    "refusals",
    metadata,
    Column("id", BIG_KEY, primary_key=True),
    Column("job", NAME, nullable=False),
    Column("round", Integer, nullable=False),
    Column("child", NAME, nullable=False),
    Column("reason", WORD, nullable=False),
    Column("detail", Text, nullable=False),
    Column("data", JSON, nullable=False),
    Column("at", Double, nullable=False),
    _of_round(),
    Index("ix_refusals_job_round", "job", "round"),
)

reports = Table(
    "reports",
    metadata,
    Column("job", NAME, primary_key=True),
    Column("round", Integer, primary_key=True, autoincrement=False),
    Column("child", NAME, primary_key=True),
    Column("report", JSON, nullable=False),
    Column("at", Double, nullable=False),
    _of_round(),
)

nodes = Table(
    "nodes",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("public_key", LargeBinary, nullable=False),
    Column("token_hash", DIGEST, nullable=False, unique=True),
    Column("flower_id", String(20)),  # an unsigned 64-bit number: too large for the integers of most databases
    Column("boot", String(64)),
    Column("machine", JSON, nullable=False),
    Column("tasks", JSON, nullable=False),
    Column("oldest", Integer, nullable=False),  # wire versions it speaks
    Column("newest", Integer, nullable=False),
    Column("state", WORD, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("created", Double, nullable=False),
    Column("seen", Double),
)

invites = Table(
    "invites",
    metadata,
    Column("hash", DIGEST, primary_key=True),
    Column("name", NAME),
    Column("created", Double, nullable=False),
    Column("expires", Double, nullable=False),
    Column("used", Double),
)

requests = Table(
    "requests",
    metadata,
    Column("id", BIG_KEY, primary_key=True),
    Column("child", NAME, nullable=False),
    Column("encoder", NAME),
    Column("type", NAME),
    Column("tasks", JSON, nullable=False),
    Column("at", Double, nullable=False),
    Column("job", NAME, ForeignKey("jobs.id"), index=True),
)

events = Table(
    "events",
    metadata,
    Column("id", BIG_KEY, primary_key=True),
    Column("at", Double, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("job", NAME, index=True),
    Column("round", Integer),
    Column("child", NAME),
    Column("data", JSON, nullable=False),
    sqlite_autoincrement=True,  # an id is never used twice, not even after old events were deleted
)


def naming() -> list[Select[str]]:
    """Queries that together give every digest of a file that some row still needs."""
    return [
        select(encoders.c.manifest),
        select(versions.c.digest),
        select(versions.c.delta_digest).where(versions.c.delta_digest.is_not(None)),
        select(rounds.c.base),
        select(rounds.c.rule_state).where(rounds.c.rule_state.is_not(None)),
        select(rounds.c.residual).where(rounds.c.residual.is_not(None)),
        select(updates.c.digest).where(updates.c.forgotten.is_(False)),
    ]
