"""Learned constraints: of the whole database, since the next study on the same kind of node begins with them."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "servetune_constraint",
        sa.Column("key", sa.String(16), primary_key=True),
        sa.Column("slug", sa.String(64), nullable=False),
        sa.Column("forbids", sa.Text, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("confidence", sa.Float(53), nullable=False),
        sa.Column("lessons", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("withdrawn", sa.Text, nullable=False),
        sa.Column("rejections", sa.Integer, nullable=False),
        sa.Column("learned_at", sa.String(32), nullable=False),
        sa.Column("changed_at", sa.String(32), nullable=False),
    )
