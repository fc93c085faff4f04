"""Engines execute workloads on a site; control calls them through this port.

An implementation must pass `commonage.testing.engine_contract`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Protocol

from commonage.domain.images import Environment, EnvironmentStatus
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.statuses import Capabilities, LogLine, Measurement, ProcessOwner, StartRequest, Status
from commonage.domain.tenants import Tenant
from commonage.ports.agents import OnProgress, ignore_progress
from commonage.ports.execs import ExecStream, Terminal


class Engine(Protocol):
    """One site's engine. Every method may raise EngineFailure (retryable or not) and no other error of its own."""

    @property
    def site(self) -> str: ...

    def capabilities(self) -> Capabilities: ...

    async def open(self) -> None:
        """Find the attempts that an earlier process started. Called before any other method."""

    async def close(self) -> None:
        """Release resources without stopping anything that runs."""
        return

    def loops(self) -> Sequence[Iterations]:
        """The turns of its own loops while it is open, each under a different name."""
        return ()

    async def start(self, request: StartRequest) -> None:
        """Start the attempt. Idempotent by `request.attempt_id`: never runs it twice, not even after a crash.

        Returns quickly; slow steps (preparing an environment) appear as statuses with a detail.
        """

    async def stop(self, attempt_id: str, grace_s: float) -> None:
        """Stop the attempt and all its child processes, by force after `grace_s`. Idempotent; unknown ids are no error.

        Returns quickly; the end appears as a status.
        """

    async def forget(self, attempt_id: str) -> None:
        """Stop reporting the status of this attempt: its end is stored. The logs stay. Idempotent."""

    async def statuses(self) -> Sequence[Status]:
        """Statuses of all attempts of this installation, ended ones until they are forgotten; also after a restart."""

    def watch(self) -> AsyncIterator[Status]:
        """Yield status changes from now on, until closed. May repeat a status, never returns to an earlier one."""

    def logs(
        self, attempt_id: str, *, offset: int = 0, tail: int | None = None, follow: bool = False
    ) -> AsyncIterator[LogLine]:
        """Its output, stdout and stderr together, from byte `offset` or the last `tail` lines; `follow` until it ends.

        Raises NotFound if the log does not exist (any more).
        """

    async def exec(self, attempt_id: str, command: Sequence[str], terminal: Terminal | None = None) -> ExecStream:
        """Run a command in the attempt's environment: with its limits, isolation, working folder and variables.

        An empty command is a shell. With a terminal, input and output are the terminal's. It ends with the attempt at
        the latest, and with this engine's `close`. The exit code is 127 if the command does not exist, 126 if it cannot
        be executed. Raises NotRunning.
        """

    async def measure(self) -> Sequence[Measurement]: ...

    async def owners(self, pids: Collection[int]) -> Sequence[ProcessOwner]:
        """Look up now which attempts own these processes of its node, including processes that just started.

        An attempt owns its control group or container and all descendants of those processes. Ended processes are left
        out; a node of another site returns nothing.
        """

    async def nodes(self) -> Sequence[NodeReport]:
        """The nodes of the site, with their total resources and their faults."""

    async def prepare(
        self, environment: Environment, node: str | None = None, on_progress: OnProgress = ignore_progress
    ) -> None:
        """Prepare the environment before it is needed, on this node of the site or (None) on all schedulable nodes.

        Returns when it is ready; raises EngineFailure if it cannot be prepared. `on_progress` receives the progress.
        """

    async def keep_tenants(self, tenants: Sequence[Tenant]) -> Mapping[str, Reason]:
        """Keep what the site has for each tenant, such as a namespace. `tenants` are all tenants that may use the site.

        Returns the tenants whose work cannot start there yet, and why. Most sites have nothing to keep.
        """
        return {}

    async def environments(self) -> Sequence[EnvironmentStatus]:
        """Status of each environment that it was ever asked for."""
