"""What an engine knows in memory of an attempt that is a container."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from commonage.domain.sightings import Order, Seen, Sighting
from commonage.engines.common.board import NoticeBoard
from commonage.engines.common.runs import RunFolder
from commonage.engines.containers.box import Box


@dataclass(slots=True, eq=False)
class Run:
    """An attempt of ours. `begun` is done once it is written down, or failed to be.

    `launching` is the task that has it started, `again` one that is going to look what became of it, and `trouble` why
    that could not be seen, if so. `kill_at` is the loop's time at which a stop turns to force. `port` is what it
    listens on where that was chosen for it; `container` and `pid` are the daemon's id of it and its first process,
    while they are known. `signalled_at`: when somebody else than we sent it a signal that ends,
    by the clock that only rises. `looking` keeps two looks from crossing.
    """

    order: Order
    folder: RunFolder
    sighting: Sighting
    port: int | None = None
    begun: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    launching: asyncio.Task[None] | None = None
    ending: asyncio.Task[None] | None = None
    again: asyncio.Task[None] | None = None
    trouble: str = ""
    kill_at: float = inf
    container: str | None = None
    pid: int | None = None
    signalled_at: float = -inf
    looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def id(self) -> str:
        """The attempt's id."""
        return self.order.attempt_id

    @property
    def box(self) -> Box:
        """Its box."""
        return Box(self.folder.outside / "box")

    @property
    def is_running(self) -> bool:
        """True while it is seen running."""
        return self.sighting.seen is Seen.RUNNING

    @property
    def is_launching(self) -> bool:
        """True while a task of ours has it started."""
        return self.launching is not None and not self.launching.done()


Board: TypeAlias = NoticeBoard[Run]
"""The runs by attempt id, and the watchers."""
