"""An index for the events of a tenant that belong to no user, which all of its members see."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0103"
down_revision = "0101"


def upgrade() -> None:
    ownerless = sa.text("owner IS NULL")
    op.create_index(
        "ix_events_tenant_seq", "events", ["tenant", "seq"], sqlite_where=ownerless, postgresql_where=ownerless
    )
