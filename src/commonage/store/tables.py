"""The declared schema, equal to the result of the newest migration (tests/migration checks that).

Used by the modules of this package. A change is made here and in a new migration next to
`migrations/versions/0100_initial.py`; never in a released one.

Fields that lists are filtered by, or that usage is summed from, are columns; fields that are only read as a whole
are JSON text. Times are unix seconds. Ids are compared byte by byte, so that they sort alike on every database.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    text,
)

from commonage.domain.workloads import State

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

# Keyset paging compares ids in the database: the order must not depend on the locale of the server.
Id = Text().with_variant(Text(collation="C"), "postgresql")
# SQLite uses a column as its row number, without a second index, only if its type is INTEGER.
Number = BigInteger().with_variant(Integer(), "sqlite")


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


# The states of ended workloads, as the partial index has them: it is used by statements with the same text.
ENDED = f"state IN ({', '.join(repr(state.value) for state in State if state.is_terminal)})"

# The submitted spec: one for all members of an array, and never changed. Only owner and tenant may change: those of
# `workloads` count.
specs = Table(
    "specs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("body", Text, nullable=False),
    sqlite_with_rowid=False,
)

# `key` is the client's; of an array only the first member has it, so that it can be unique.
# `attempt_id`, `site` and `node` are of the newest attempt, `name_folded` is for case-insensitive search. `cron_job` is
# the id of the cron job that it is a run of.
workloads = Table(
    "workloads",
    metadata,
    Column("id", Id, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("environment", Text, nullable=False),
    Column("site", Text),
    Column("node", Text),
    Column("submitted_at", Double, nullable=False),
    Column("array_id", Id),
    Column("array_index", Integer),
    Column("key", Text),
    Column("name_folded", Text, nullable=False),
    Column("spec_id", Id, ForeignKey("specs.id"), nullable=False),
    Column("attempt_id", Id),
    Column("since", Double, nullable=False),
    Column("reason", Text, nullable=False),
    Column("stop", Text),
    Column("not_before", Double),
    Column("warned", Boolean, nullable=False),
    Column("retried", Integer, nullable=False),
    Column("losses", Integer, nullable=False),
    Column("cron_job", Id),
    Column("kept_until", Double),
    Column("idle_warned_at", Double),
    sqlite_with_rowid=False,
)

Index("uq_workloads_owner_key", workloads.c.owner, workloads.c.key, unique=True, **_where("key IS NOT NULL"))
# A list is newest first: with the state in between, each state's part of it is one walk along an index (see `paging`).
Index(None, workloads.c.state, workloads.c.id)
Index(None, workloads.c.owner, workloads.c.state, workloads.c.id)
Index(None, workloads.c.tenant, workloads.c.state, workloads.c.id)
Index(None, workloads.c.environment, workloads.c.state, workloads.c.id)
Index(None, workloads.c.kind, workloads.c.state, workloads.c.id)
Index(None, workloads.c.site, workloads.c.node, workloads.c.id, **_where("site IS NOT NULL"))
Index(None, workloads.c.array_id, workloads.c.id, **_where("array_id IS NOT NULL"))
Index(None, workloads.c.cron_job, workloads.c.id, **_where("cron_job IS NOT NULL"))
# Retention looks for the oldest ends, and for other members of an array with the same spec.
Index(None, workloads.c.since, workloads.c.id, **_where(ENDED))
Index(None, workloads.c.spec_id)

# Values of secrets, stored separately, and only until the workload has ended.
secrets = Table(
    "secrets",
    metadata,
    Column("workload_id", Id, ForeignKey("workloads.id"), primary_key=True),
    Column("body", Text, nullable=False),
    sqlite_with_rowid=False,
)

# `gpu_mib` and `gpu_milli` are the sums over the shares; owner, tenant and environment are the workload's: usage is
# one sum over this table alone.
attempts = Table(
    "attempts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("workload_id", Id, ForeignKey("workloads.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("environment", Text, nullable=False),
    Column("site", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("cpus_milli", BigInteger, nullable=False),
    Column("memory_mib", BigInteger, nullable=False),
    Column("gpu_mib", BigInteger, nullable=False),
    Column("gpu_milli", BigInteger, nullable=False),
    Column("shares", Text, nullable=False),
    Column("allocated_at", Double, nullable=False),
    Column("started_at", Double),
    Column("ended_at", Double),
    Column("exit_code", Integer),
    Column("reason", Text),
    Column("url", Text),
    sqlite_with_rowid=False,
)
Index("uq_attempts_workload_id_number", attempts.c.workload_id, attempts.c.number, unique=True)
Index(None, attempts.c.ended_at)
Index(None, attempts.c.owner, attempts.c.ended_at)

events = Table(
    "events",
    metadata,
    Column("seq", Number, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("reason", Text, nullable=False),
    Column("workload_id", Id),
    Column("attempt_id", Id),
    Column("owner", Text),
    Column("tenant", Text),
    Column("state", Text),
)
Index(None, events.c.workload_id, events.c.seq, **_where("workload_id IS NOT NULL"))
Index(None, events.c.owner, events.c.seq, **_where("owner IS NOT NULL"))
Index(None, events.c.tenant, events.c.seq, **_where("owner IS NULL"))

nodes = Table(
    "nodes",
    metadata,
    Column("site", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("engine", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reasons", Text, nullable=False),
    Column("observed_at", Double, nullable=False),
    Column("report", Text, nullable=False),
    Column("leave_by", Double),
    Column("drained_by", Text, nullable=False),
    sqlite_with_rowid=False,
)

# One for each measured attempt. `ended_at` is absent while it runs: then the figures in `body` are those so far.
usage_reports = Table(
    "usage_reports",
    metadata,
    Column("attempt_id", Id, primary_key=True),
    Column("workload_id", Id, ForeignKey("workloads.id"), nullable=False),
    Column("owner", Text, nullable=False),
    Column("command_hash", Text, nullable=False),
    Column("began_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("body", Text, nullable=False),
    sqlite_with_rowid=False,
)
Index(None, usage_reports.c.workload_id, usage_reports.c.began_at)
Index(None, usage_reports.c.owner, usage_reports.c.command_hash, usage_reports.c.ended_at)
Index(None, usage_reports.c.began_at, **_where("ended_at IS NULL"))

# Usage of deleted workloads: see `domain.usage.DailyUsage`.
usage_totals = Table(
    "usage_totals",
    metadata,
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("tenant", Id, primary_key=True),
    Column("owner", Id, primary_key=True),
    Column("environment", Id, primary_key=True),
    Column("workloads", BigInteger, nullable=False),
    Column("began", BigInteger, nullable=False),
    Column("gpu_mib_s", Double, nullable=False),
    Column("gpu_milli_s", Double, nullable=False),
    Column("cpus_milli_s", Double, nullable=False),
    Column("memory_mib_s", Double, nullable=False),
    sqlite_with_rowid=False,
)

# Resources reserved for a tenant in a window of time; the request is in `body`. Past ones stay, as a record.
reservations = Table(
    "reservations",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("starts_at", Double, nullable=False),
    Column("ends_at", Double, nullable=False),
    Column("body", Text, nullable=False),
    sqlite_with_rowid=False,
)
Index(None, reservations.c.ends_at)

# Cron jobs, with the values of their secrets, which each of their runs needs.
cron_jobs = Table(
    "cron_jobs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("body", Text, nullable=False),
    sqlite_with_rowid=False,
)

# Meetings of classes that are on, or were over a short time ago.
class_meetings = Table(
    "class_meetings",
    metadata,
    Column("id", Id, primary_key=True),
    Column("body", Text, nullable=False),
    sqlite_with_rowid=False,
)

# Platform resources. A deleted one stays without a body, so that its versions continue to grow.
resources = Table(
    "resources",
    metadata,
    Column("kind", Id, primary_key=True),
    Column("name", Id, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("body", Text),
    Column("managed_by", Text, nullable=False),
    Column("changed_by", Text, nullable=False),
    Column("changed_at", Double, nullable=False),
    sqlite_with_rowid=False,
)

# Renamings and removals of users and tenants. They stay: they say which names are retired.
offboardings = Table(
    "offboardings",
    metadata,
    Column("id", Id, primary_key=True),
    Column("at", Double, nullable=False),
    Column("body", Text, nullable=False),
    sqlite_with_rowid=False,
)

# The newest notice about each bound of a quota, so that a restart does not repeat it.
quota_notices = Table(
    "quota_notices",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("scope", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("resource", Text, primary_key=True),
    Column("level", Integer, nullable=False),
    Column("period_at", Double, nullable=False),
    Column("at", Double, nullable=False),
    sqlite_with_rowid=False,
)

# Images of the catalogue by their names; removed ones stay, to explain why they are unavailable.
images = Table(
    "images",
    metadata,
    Column("name", Id, primary_key=True),
    Column("tenant", Text),
    Column("body", Text, nullable=False),
    sqlite_with_rowid=False,
)
