"""Answers to the correctness gate's prompts: of the baseline to compare with, of the others as evidence."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

RUN = ["study", "trial", "attempt"]


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "servetune_answers",
        sa.Column("study", sa.String(100), sa.ForeignKey("servetune_study.name", ondelete="CASCADE"), primary_key=True),
        sa.Column("trial", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("wrong", sa.Boolean, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(RUN, [f"servetune_run.{column}" for column in RUN], ondelete="CASCADE"),
    )
