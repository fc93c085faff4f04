"""Limits per user, per tenant and in total, so that no user blocks the others.

Made by the server from its settings; enforced by `live_limits`, `connections` and `rates`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Live workloads (those that have not ended; each member of an array counts), long connections, requests.

    `workloads_per_user` and `workloads_per_tenant` count jobs and services. Sessions have a limit of their own, and the
    last tenth of `workloads` is kept for them. `recheck_s`: how often the identity behind a long connection is checked;
    the identity port remembers the hub's answer for half a minute, so the hub is asked no more often than that.
    """

    workloads_per_user: int = 20_000
    workloads_per_tenant: int = 100_000
    sessions_per_user: int = 20
    workloads: int = 200_000
    streams_per_user: int = 50
    streams: int = 2_000
    commands_per_user: int = 10
    commands: int = 500
    requests_per_s: float = 50.0
    failed_tokens_per_s: float = 5.0
    recheck_s: float = 10.0
