"""The initial schema. Databases with an older one are refused: see `store.upgrade`."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0100"
down_revision = None

ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _where(condition: str) -> dict[str, Any]:
    """The condition of a partial index, for both databases."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("seq", NUMBER, autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("workload_id", ID, nullable=True),
        sa.Column("attempt_id", ID, nullable=True),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_events"),
    )
    op.create_index("ix_events_owner_seq", "events", ["owner", "seq"], **_where("owner IS NOT NULL"))
    op.create_index("ix_events_workload_id_seq", "events", ["workload_id", "seq"], **_where("workload_id IS NOT NULL"))
    op.create_table(
        "nodes",
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reasons", sa.Text(), nullable=False),
        sa.Column("observed_at", sa.Double(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.Column("leave_by", sa.Double(), nullable=True),
        sa.Column("drained_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("site", "name", name="pk_nodes"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "specs",
        sa.Column("id", ID, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_specs"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "workloads",
        sa.Column("id", ID, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=True),
        sa.Column("submitted_at", sa.Double(), nullable=False),
        sa.Column("array_id", ID, nullable=True),
        sa.Column("array_index", sa.Integer(), nullable=True),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("name_folded", sa.Text(), nullable=False),
        sa.Column("spec_id", ID, nullable=False),
        sa.Column("attempt_id", ID, nullable=True),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("stop", sa.Text(), nullable=True),
        sa.Column("not_before", sa.Double(), nullable=True),
        sa.Column("warned", sa.Boolean(), nullable=False),
        sa.Column("retried", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["spec_id"], ["specs.id"], name="fk_workloads_spec_id"),
        sa.PrimaryKeyConstraint("id", name="pk_workloads"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_workloads_array_id_id", "workloads", ["array_id", "id"], **_where("array_id IS NOT NULL"))
    op.create_index("ix_workloads_environment_state_id", "workloads", ["environment", "state", "id"])
    op.create_index("ix_workloads_kind_state_id", "workloads", ["kind", "state", "id"])
    op.create_index("ix_workloads_node_id", "workloads", ["node", "id"], **_where("node IS NOT NULL"))
    op.create_index("ix_workloads_owner_state_id", "workloads", ["owner", "state", "id"])
    op.create_index("ix_workloads_state_id", "workloads", ["state", "id"])
    op.create_index("ix_workloads_tenant_state_id", "workloads", ["tenant", "state", "id"])
    op.create_index("uq_workloads_owner_key", "workloads", ["owner", "key"], unique=True, **_where("key IS NOT NULL"))
    op.create_table(
        "attempts",
        sa.Column("id", ID, nullable=False),
        sa.Column("workload_id", ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("cpus_milli", sa.BigInteger(), nullable=False),
        sa.Column("memory_mib", sa.BigInteger(), nullable=False),
        sa.Column("gpu_mib", sa.BigInteger(), nullable=False),
        sa.Column("gpu_milli", sa.BigInteger(), nullable=False),
        sa.Column("shares", sa.Text(), nullable=False),
        sa.Column("allocated_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("url", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["workload_id"], ["workloads.id"], name="fk_attempts_workload_id"),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_attempts_ended_at", "attempts", ["ended_at"])
    op.create_index("ix_attempts_owner_ended_at", "attempts", ["owner", "ended_at"])
    op.create_index("uq_attempts_workload_id_number", "attempts", ["workload_id", "number"], unique=True)
    op.create_table(
        "secrets",
        sa.Column("workload_id", ID, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["workload_id"], ["workloads.id"], name="fk_secrets_workload_id"),
        sa.PrimaryKeyConstraint("workload_id", name="pk_secrets"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "usage_reports",
        sa.Column("attempt_id", ID, nullable=False),
        sa.Column("workload_id", ID, nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("command_hash", sa.Text(), nullable=False),
        sa.Column("began_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["workload_id"], ["workloads.id"], name="fk_usage_reports_workload_id"),
        sa.PrimaryKeyConstraint("attempt_id", name="pk_usage_reports"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_usage_reports_workload_id_began_at", "usage_reports", ["workload_id", "began_at"])
    op.create_index(
        "ix_usage_reports_owner_command_hash_ended_at", "usage_reports", ["owner", "command_hash", "ended_at"]
    )
    op.create_index("ix_usage_reports_began_at", "usage_reports", ["began_at"], **_where("ended_at IS NULL"))
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
    op.create_table(
        "images",
        sa.Column("name", ID, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_images"),
        sqlite_with_rowid=False,
    )
