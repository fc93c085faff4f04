"""The operations on an attempt's container that each engine implements, for `engine.py`; and `Run`, the attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, Literal, Protocol, TypeAlias

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import SiteNotAnswering
from commonage.domain.statuses import StartRequest
from commonage.engines.containers.files.control_folder import NAME as CONTROL_FOLDER
from commonage.engines.containers.files.control_folder import ControlFolder
from commonage.engines.rundir.run import EngineRun, RunTable
from commonage.engines.rundir.runs import Exit
from commonage.ports.agents import OnProgress


@dataclass(slots=True, eq=False)
class Run(EngineRun):
    """An attempt whose program runs in a container.

    `launching` is the task that starts it, `again` a task that reads its status again later. `last_error` is the error
    of the last status read, empty if it succeeded. `container` is the daemon's id, None while unknown. `signalled_at`
    is the monotonic time at which another party sent a terminating signal. `status_lock` serializes status reads.
    """

    launching: asyncio.Task[None] | None = None
    again: asyncio.Task[None] | None = None
    last_error: str = ""
    container: str | None = None
    signalled_at: float = -inf
    status_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def control_folder(self) -> ControlFolder:
        return ControlFolder(self.folder.writable / CONTROL_FOLDER)

    @property
    def is_launching(self) -> bool:
        return self.launching is not None and not self.launching.done()


Table: TypeAlias = RunTable[Run]


class Unreachable(EngineFailure):
    """The daemon or node does not answer: the result of the request is unknown. Ask again."""

    retryable = True
    waiting: ClassVar[Reason] = SiteNotAnswering()


class NodeGone(EngineFailure):
    """The node of the attempt is gone. The attempt never ran there, and never will."""


@dataclass(frozen=True, slots=True)
class Absent:
    """The attempt has no container. `reason`: why, if it had one."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Created:
    """The container exists, but was never started; `launch` starts it."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Another program, such as a Swarm manager, starts the container: its current step, and the progress (0..1)."""

    reason: Reason
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class Running:
    started_at: float | None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The attempt has ended, possibly before its command ran. `end` determines the exit."""

    started_at: float | None
    end: Callable[[], Awaitable[Exit]]


ContainerState = Absent | Created | Waiting | Running | Ended
Signal = Literal["SIGTERM", "SIGKILL"]


class AttemptBackend(Protocol):
    """Every method may raise EngineFailure; Unreachable if the result is unknown."""

    def node_of(self, request: StartRequest) -> str: ...

    def port_for(self, request: StartRequest, taken: Collection[int]) -> int | None:
        """Choose its port on its node; None if it needs none. `taken` are the ports of others there.

        Raises EngineFailure if none is free.
        """

    async def launch(self, run: Run, on_progress: OnProgress) -> None:
        """Pull its image and start its container.

        Idempotent: called again after a crash, after Unreachable, and after any temporary failure (`is_retryable`).
        """

    async def inspect(self, run: Run) -> ContainerState: ...

    async def signal(self, run: Run, signal: Signal) -> None:
        """Send the signal to the program. A program that has ended is no error."""

    async def remove(self, run: Run) -> None:
        """Remove the container of an ended attempt. Nothing of another attempt is touched."""

    async def release(self, run: Run) -> None:
        """Release what its node held for it, once its processes are gone. Idempotent, raises nothing."""
