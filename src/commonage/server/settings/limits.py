"""The settings of limits: how much one user, one tenant and all may have at once. A part of `settings`' table."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from commonage.control.limits import Limits
from commonage.server.settings.table import Row, setting
from commonage.server.settings.types import Mib

_COUNT = "a number from 1"
_DEFAULT = Limits()
Count = Annotated[int, Field(ge=1, le=10_000_000)]


class LimitSettings(BaseModel):
    """The limits of users and tenants. A refusal is 429 (413 for a body) and names the limit."""

    max_array: Annotated[int, Field(ge=1, le=10_000)] = setting(
        10_000, "Most workloads in one array.", Row("a number from 1 to 10000", "Limits")
    )
    max_workloads_per_user: Count = setting(
        _DEFAULT.workloads_per_user,
        "Most live jobs and services of one user; each member of an array counts.",
        Row(_COUNT, "Limits"),
    )
    max_workloads_per_tenant: Count = setting(
        _DEFAULT.workloads_per_tenant,
        "Most live jobs and services of one tenant; `max_workloads` of a `[[tenants]]` table is its own limit.",
        Row(_COUNT, "Limits"),
    )
    max_workloads: Count = setting(
        _DEFAULT.workloads,
        "Most live workloads of all users together. The last tenth is kept for sessions.",
        Row(_COUNT, "Limits"),
    )
    max_sessions_per_user: Count = setting(
        _DEFAULT.sessions_per_user, "Most live sessions of one user.", Row(_COUNT, "Limits")
    )
    max_streams_per_user: Count = setting(
        _DEFAULT.streams_per_user,
        "Most event streams and followed logs that one user may have open; each open page of the portal has one.",
        Row(_COUNT, "Limits"),
    )
    max_streams: Count = setting(
        _DEFAULT.streams, "Most event streams and followed logs of all users together.", Row(_COUNT, "Limits")
    )
    max_commands_per_user: Count = setting(
        _DEFAULT.commands_per_user,
        "Most commands (`commonage exec`) that one user may run beside workloads at the same time.",
        Row(_COUNT, "Limits"),
    )
    max_commands: Count = setting(
        _DEFAULT.commands, "Most commands beside workloads of all users together.", Row(_COUNT, "Limits")
    )
    max_requests_per_second: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] = setting(
        _DEFAULT.requests_per_s,
        "Most requests a second of one user to the API and the portal; four times as many at once.",
        Row("a number above 0", "Limits"),
    )
    max_failed_sign_ins_per_minute: Count = setting(
        10,
        "Most failed sign-ins a minute from one address for one user name; five times as many for all user names.",
        Row(_COUNT, "Limits"),
    )
    max_log: Annotated[Mib, Field(ge=2)] = setting(
        512,
        "Most disk space of the log of one attempt. Of a longer log the start and the end are kept.",
        Row("an amount of space of at least 2MiB, like 512MiB", "Limits"),
    )

    @property
    def limits(self) -> Limits:
        """The same as control has it."""
        return Limits(
            workloads_per_user=self.max_workloads_per_user,
            workloads_per_tenant=self.max_workloads_per_tenant,
            sessions_per_user=self.max_sessions_per_user,
            workloads=self.max_workloads,
            streams_per_user=self.max_streams_per_user,
            streams=self.max_streams,
            commands_per_user=self.max_commands_per_user,
            commands=self.max_commands,
            requests_per_s=self.max_requests_per_second,
        )
