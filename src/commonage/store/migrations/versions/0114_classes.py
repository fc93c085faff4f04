"""Meetings of classes: their messages, and which students let teachers into their sessions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0114"
down_revision = "0112"

ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "class_meetings",
        sa.Column("id", ID, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_class_meetings"),
        sqlite_with_rowid=False,
    )
