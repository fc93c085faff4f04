"""What an engine's own hands do with the container of one attempt; all else is the same for all (`engine.py`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import SiteNotAnswering
from commonage.domain.sightings import Order
from commonage.engines.common.runs import Exit
from commonage.engines.containers.board import Run
from commonage.ports.agents import Told


class Away(EngineFailure):
    """Who was asked does not answer: what became of what we asked for is not known. Ask again."""

    retryable = True
    waiting: ClassVar[Reason] = SiteNotAnswering()


class Gone(EngineFailure):
    """The machine that it was to run on is gone: it never ran there, and never will."""


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no container of it. `reason`: why, if it had one."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Made:
    """There is a container, which was never started; starting it is for `launch`."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Others are about to start it: what is being done, and how far it is (0..1)."""

    reason: Reason
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class Lives:
    """It runs."""

    started_at: float | None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Over:
    """It ran, or was to run, and does not any more. `end` finds out how it ended."""

    started_at: float | None
    end: Callable[[], Awaitable[Exit]]


Look = Absent | Made | Waiting | Lives | Over
Signal = Literal["SIGTERM", "SIGKILL"]


class Hands(Protocol):
    """Every method may raise EngineFailure; Away where nobody knows what became of it."""

    def check(self, order: Order) -> None:
        """Raises EngineFailure for an order that can never be run."""
        ...

    def node_of(self, order: Order) -> str:
        """The machine that it runs on."""
        ...

    def port_for(self, order: Order, taken: Collection[int]) -> int | None:
        """The port of its machine that is to be its; None where it needs none. `taken` are those of others there.

        Raises EngineFailure when there is none left.
        """
        ...

    async def launch(self, run: Run, told: Told) -> None:
        """Have its image there and its container started.

        Idempotent: called again after a crash, after Away, and after any failure that may pass (`is_retryable`).
        """
        ...

    async def look(self, run: Run) -> Look:
        """What is to be seen of its container now."""
        ...

    async def signal(self, run: Run, signal: Signal) -> None:
        """Ask its program to end, or end it. One that does not run is no error."""
        ...

    async def remove(self, run: Run) -> None:
        """It ended: its container need not be there any more. Nothing of another attempt is touched."""
        ...

    async def release(self, run: Run) -> None:
        """Its processes are gone: give back what its machine held for it. Idempotent, raises nothing."""
        ...
