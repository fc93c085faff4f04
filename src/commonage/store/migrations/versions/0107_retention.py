"""Daily usage totals of deleted workloads, and the indexes that retention needs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0107"
down_revision = "0106"

ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
ENDED = sa.text("state IN ('succeeded', 'failed', 'stopped', 'timed_out', 'lost')")


def upgrade() -> None:
    op.create_table(
        "usage_totals",
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tenant", ID, nullable=False),
        sa.Column("owner", ID, nullable=False),
        sa.Column("environment", ID, nullable=False),
        sa.Column("workloads", sa.BigInteger(), nullable=False),
        sa.Column("began", sa.BigInteger(), nullable=False),
        sa.Column("gpu_mib_s", sa.Double(), nullable=False),
        sa.Column("gpu_milli_s", sa.Double(), nullable=False),
        sa.Column("cpus_milli_s", sa.Double(), nullable=False),
        sa.Column("memory_mib_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("day", "tenant", "owner", "environment", name="pk_usage_totals"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_workloads_since_id", "workloads", ["since", "id"], sqlite_where=ENDED, postgresql_where=ENDED)
    op.create_index("ix_workloads_spec_id", "workloads", ["spec_id"])
