"""In-memory state of an attempt that is a container. Used by the container engines."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from commonage.domain.statuses import Phase, StartRequest, Status
from commonage.engines.containers.files.control_folder import ControlFolder
from commonage.engines.rundir.runs import RunFolder
from commonage.engines.rundir.table import RunTable


@dataclass(slots=True, eq=False)
class Run:
    """One attempt. `begun` is done once the request is written to disk, or writing it failed.

    `launching` is the task that starts it, `again` one that will look at its status again, and `last_error` the error
    of
    the last look, if any. `kill_at` is the loop's time at which a stop turns to SIGKILL. `port` is the port it listens
    on, if one was chosen for it. `container` and `pid` are the daemon's id of it and its first process, while they are
    known. `signalled_at`: monotonic time at which another party sent it a signal that ends it. `status_lock` is a lock:
    one
    look at a time.
    """

    request: StartRequest
    folder: RunFolder
    status: Status
    port: int | None = None
    begun: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    launching: asyncio.Task[None] | None = None
    ending: asyncio.Task[None] | None = None
    again: asyncio.Task[None] | None = None
    last_error: str = ""
    kill_at: float = inf
    container: str | None = None
    pid: int | None = None
    signalled_at: float = -inf
    status_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def id(self) -> str:
        return self.request.attempt_id

    @property
    def control_folder(self) -> ControlFolder:
        return ControlFolder(self.folder.outside / "box")

    @property
    def is_running(self) -> bool:
        return self.status.phase is Phase.RUNNING

    @property
    def is_launching(self) -> bool:
        return self.launching is not None and not self.launching.done()


Table: TypeAlias = RunTable[Run]
"""The runs by attempt id, and the watchers."""
