"""Attempts and workloads name the site of their node; until now every node was at the site `local`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0101"
down_revision = "0100"

_TABLE = {"sqlite_with_rowid": False}


def upgrade() -> None:
    site = sa.text("site IS NOT NULL")
    columns = ["site", "node", "id"]
    op.drop_index("ix_workloads_node_id", "workloads")
    if op.get_bind().dialect.name == "sqlite":  # adds a column in the middle, or NOT NULL, only by copying the table
        for table in ("workloads", "attempts"):
            with op.batch_alter_table(table, recreate="always", table_kwargs=_TABLE) as batch:
                batch.add_column(sa.Column("site", sa.Text(), nullable=True), insert_after="environment")
    else:
        op.add_column("workloads", sa.Column("site", sa.Text(), nullable=True))
        op.add_column("attempts", sa.Column("site", sa.Text(), nullable=True))
    op.execute("UPDATE workloads SET site = 'local' WHERE node IS NOT NULL")
    op.execute("UPDATE attempts SET site = 'local'")
    with op.batch_alter_table("attempts", table_kwargs=_TABLE) as batch:
        batch.alter_column("site", existing_type=sa.Text(), nullable=False)
    op.create_index("ix_workloads_site_node_id", "workloads", columns, sqlite_where=site, postgresql_where=site)
