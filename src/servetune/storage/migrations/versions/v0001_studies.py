"""Studies, runs with phases and measurements, outcomes, the ledger of node time, leases."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

DOUBLE = sa.Float(53)
TIME = sa.String(32)
NAME = sa.String(100)
RUN = ["study", "trial", "attempt"]


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "servetune_study",
        sa.Column("name", NAME, primary_key=True),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )
    _create_runs()
    _create_parts_of_runs()
    _create_outcomes()
    op.create_table(
        "servetune_lease",
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("token", sa.String(32), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("acquired_at", TIME, nullable=False),
        sa.Column("renewed_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
    )


def _create_runs() -> None:
    op.create_table(
        "servetune_run",
        sa.Column("study", NAME, sa.ForeignKey("servetune_study.name", ondelete="CASCADE"), primary_key=True),
        sa.Column("trial", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("launch", sa.Text, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("finished_at", TIME),
        sa.Column("node_s", DOUBLE, nullable=False),
        sa.Column("failure", sa.Text),
        sa.Column("log_facts", sa.Text, nullable=False),
        sa.Column("log_warnings", sa.Text, nullable=False),
    )


def _create_parts_of_runs() -> None:
    op.create_table(
        "servetune_phase",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("study", NAME, nullable=False),
        sa.Column("trial", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("duration_s", DOUBLE, nullable=False),
        sa.ForeignKeyConstraint(RUN, [f"servetune_run.{column}" for column in RUN], ondelete="CASCADE"),
        sa.UniqueConstraint(*RUN, "name"),
    )
    op.create_table(
        "servetune_measurement",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("study", NAME, nullable=False),
        sa.Column("trial", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("concurrency", sa.Integer, nullable=False),
        sa.Column("valid", sa.Boolean, nullable=False),
        sa.Column("output_tokens_per_s", DOUBLE),
        sa.Column("document", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(RUN, [f"servetune_run.{column}" for column in RUN], ondelete="CASCADE"),
        sa.UniqueConstraint(*RUN, "concurrency"),
    )


def _create_outcomes() -> None:
    op.create_table(
        "servetune_outcome",
        sa.Column("study", NAME, sa.ForeignKey("servetune_study.name", ondelete="CASCADE"), primary_key=True),
        sa.Column("trial", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("value", DOUBLE),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("saved_at", TIME, nullable=False),
    )
    op.create_table(
        "servetune_charge",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("study", NAME, sa.ForeignKey("servetune_study.name", ondelete="CASCADE"), nullable=False),
        sa.Column("trial", sa.Integer),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("node_s", DOUBLE, nullable=False),
        sa.Column("charged_at", TIME, nullable=False),
    )
    op.create_index("servetune_charge_study", "servetune_charge", ["study"])
