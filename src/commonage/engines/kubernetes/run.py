"""In-memory state of one attempt, kept by the engine and its launcher."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from commonage.domain.reasons import Reason
from commonage.engines.kubernetes.logs import LogCopy
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.rundir.run import EngineRun


@dataclass(slots=True, eq=False)
class Run(EngineRun):
    """An attempt whose program runs in a Pod.

    `copy` is that of its output. `launching` starts it, `sending` sends its files, `following` copies its output,
    `again` looks at it again later. `refused_since`: since when the cluster does not start it, and `refused_as` which
    deadline that is about. `last_pod` is the last description of its Pod, `uid` the one written down. `withdrawn`: why
    its Pod was deleted before it began.
    """

    copy: LogCopy = field(kw_only=True)
    launching: asyncio.Task[None] | None = None
    sending: asyncio.Task[None] | None = None
    following: asyncio.Task[None] | None = None
    again: asyncio.Task[None] | None = None
    last_pod: Manifest | None = None
    last_error: str = ""
    uid: str = ""
    refused_since: float = 0.0
    refused_as: type[Reason] | None = None
    withdrawn: Reason | None = None
    deleted_grace_s: int | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_launching(self) -> bool:
        return self.launching is not None and not self.launching.done()
