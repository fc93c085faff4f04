"""What executes workloads on a site. `commonage.testing.engine_contract` is what an implementation must keep."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Protocol

from commonage.domain.environments import Environment, EnvironmentStatus
from commonage.domain.fleet import NodeReport
from commonage.domain.sightings import Capabilities, LogLine, Measurement, Order, ProcessOwner, Sighting
from commonage.domain.turns import Turns
from commonage.ports.agents import Told, unheard
from commonage.ports.execs import ExecStream, Terminal


class Engine(Protocol):
    """One site's engine. Every method may raise EngineFailure (retryable or not) and nothing else of its own."""

    @property
    def site(self) -> str:
        """The name of its site."""
        ...

    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...

    async def open(self) -> None:
        """Take up work again: find what an earlier life of ours started. Before any other call."""
        ...

    async def close(self) -> None:
        """Let go without ending anything that runs."""
        return

    def loops(self) -> Sequence[Turns]:
        """The turns of the loops that it runs by itself while it is open, each under a name of its own."""
        return ()

    async def start(self, order: Order) -> None:
        """Have the attempt run. Idempotent by `order.attempt_id`: never runs it twice, also not after a crash.

        Returns quickly; what takes long (preparing an environment) shows as sightings with a detail.
        """
        ...

    async def stop(self, attempt_id: str, grace_s: float) -> None:
        """End the attempt and all its children, by force after `grace_s`. Idempotent; unknown ids are no error.

        Returns quickly; the end shows as a sighting.
        """
        ...

    async def forget(self, attempt_id: str) -> None:
        """The end of this attempt is written down: it need not be sighted any more. Logs stay. Idempotent."""
        ...

    async def sightings(self) -> Sequence[Sighting]:
        """All that is ours right now, ended ones too until they are forgotten; also after a restart."""
        ...

    def watch(self) -> AsyncIterator[Sighting]:
        """Sightings as they change, from now on, until closed. May repeat, never goes back."""
        ...

    def logs(
        self, attempt_id: str, *, offset: int = 0, tail: int | None = None, follow: bool = False
    ) -> AsyncIterator[LogLine]:
        """Its output, stdout and stderr together, from byte `offset` or the last `tail` lines; `follow` until it ends.

        Raises NotFound where there is no log (any more).
        """
        ...

    async def exec(self, attempt_id: str, command: Sequence[str], terminal: Terminal | None = None) -> ExecStream:
        """Run a command beside what runs there: within its limits and walls, in its folder, with its variables.

        An empty command is a shell. With a terminal its input and output are that. It ends with the attempt at the
        latest, and with this engine's `close`. A command that is not there ends with 127, or 126 if it is none.
        Raises NotRunning.
        """
        ...

    async def measure(self) -> Sequence[Measurement]:
        """What each running attempt uses now."""
        ...

    async def owners(self, pids: Collection[int]) -> Sequence[ProcessOwner]:
        """Whose these processes of its machine are, looked up now: also of those that began a moment ago.

        An attempt owns what it holds together (its control group, its container) and all that descends from that. Left
        out is what has ended; a machine of another site answers with nothing.
        """
        ...

    async def nodes(self) -> Sequence[NodeReport]:
        """The machines of the site, with what they have in all, and what is wrong with them."""
        ...

    async def prepare(self, environment: Environment, node: str | None = None, told: Told = unheard) -> None:
        """Have the environment ready before it is needed, on this machine of the site or (None) on all that take work.

        Returns when it is; raises EngineFailure if it cannot. `told` hears how far it is.
        """
        ...

    async def environments(self) -> Sequence[EnvironmentStatus]:
        """Where each environment that it was ever asked for stands."""
        ...
