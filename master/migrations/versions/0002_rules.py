"""What a rule remembers and saw, what a lossy codec left out, and the order in which updates arrived."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rounds", sa.Column("rule_state", sa.String(length=64), nullable=True))
    op.add_column("rounds", sa.Column("residual", sa.String(length=64), nullable=True))
    op.add_column("rounds", sa.Column("notes", sa.JSON(), nullable=True))
    op.add_column("updates", sa.Column("arrival", sa.Integer(), nullable=True))
    op.add_column("updates", sa.Column("origin", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("updates", "origin")
    op.drop_column("updates", "arrival")
    op.drop_column("rounds", "notes")
    op.drop_column("rounds", "residual")
    op.drop_column("rounds", "rule_state")
