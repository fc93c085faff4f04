"""Receipts: what each attempt used of what it had asked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "receipts",
        sa.Column("attempt_id", ID, nullable=False),
        sa.Column("workload_id", ID, nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("likeness", sa.Text(), nullable=False),
        sa.Column("began_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["workload_id"], ["workloads.id"], name="fk_receipts_workload_id"),
        sa.PrimaryKeyConstraint("attempt_id", name="pk_receipts"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_receipts_workload_id_began_at", "receipts", ["workload_id", "began_at"])
    op.create_index("ix_receipts_owner_likeness_ended_at", "receipts", ["owner", "likeness", "ended_at"])
    op.create_index(
        "ix_receipts_began_at",
        "receipts",
        ["began_at"],
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
