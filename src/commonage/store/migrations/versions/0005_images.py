"""Images of the catalogue."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "images",
        sa.Column("name", ID, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("removed_at", sa.Double(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_images"),
        sqlite_with_rowid=False,
    )
