"""Cron jobs, and the cron job that a workload is a run of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0107"
down_revision = "0106"

ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "cron_jobs",
        sa.Column("id", ID, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_cron_jobs"),
        sqlite_with_rowid=False,
    )
    op.add_column("workloads", sa.Column("cron_job", ID, nullable=True))
    of_cron_job = sa.text("cron_job IS NOT NULL")
    columns = ["cron_job", "id"]
    op.create_index(
        "ix_workloads_cron_job_id", "workloads", columns, sqlite_where=of_cron_job, postgresql_where=of_cron_job
    )
