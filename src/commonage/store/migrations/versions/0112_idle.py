"""Sessions that are kept by their owners, and warnings about idle ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0112"
down_revision = "0107"


def upgrade() -> None:
    op.add_column("workloads", sa.Column("kept_until", sa.Double(), nullable=True))
    op.add_column("workloads", sa.Column("idle_warned_at", sa.Double(), nullable=True))
