"""In-memory state of the attempts. Used by the engine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from commonage.domain.statuses import Phase, StartRequest, Status
from commonage.engines.rundir.runs import RunFolder
from commonage.engines.rundir.table import RunTable


@dataclass(slots=True, eq=False)
class Run:
    """One attempt. `begun` is done once the request is written to disk and started, or that failed.

    `kill_at` is the loop's time at which a stop turns to SIGKILL. `pidfd` watches its shim, `pid`, while that lives.
    """

    request: StartRequest
    folder: RunFolder
    status: Status
    port: int | None = None
    begun: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    preparing: asyncio.Task[None] | None = None
    ending: asyncio.Task[None] | None = None
    kill_at: float = inf
    pid: int | None = None
    pidfd: int | None = None
    over_memory: bool = False

    @property
    def id(self) -> str:
        return self.request.attempt_id

    @property
    def is_running(self) -> bool:
        return self.status.phase is Phase.RUNNING


Table: TypeAlias = RunTable[Run]
"""The runs by attempt id, and the watchers."""
