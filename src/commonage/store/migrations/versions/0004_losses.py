"""How often a workload's machine was lost, and when a machine that is drained must be empty."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("workloads", sa.Column("losses", sa.Integer(), nullable=True))
    op.add_column("nodes", sa.Column("leave_by", sa.Double(), nullable=True))
