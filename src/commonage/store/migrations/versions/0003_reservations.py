"""Reservations: room for a tenant in a window of time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "reservations",
        sa.Column("id", ID, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("starts_at", sa.Double(), nullable=False),
        sa.Column("ends_at", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_reservations"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_reservations_ends_at", "reservations", ["ends_at"])
