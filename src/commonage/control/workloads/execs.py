"""Runs commands in workloads: checks permission and finds the engine. Used by the API."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commonage.control.classes.meetings import Meetings
from commonage.control.queries.workloads import WorkloadQueries
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.domain.errors import Conflict, EngineFailure, Forbidden, NotFound
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.notes import CommandStarted
from commonage.domain.workloads import Attempt, Event, EventKind, State, Workload
from commonage.files.kernels import VARIABLE
from commonage.ports.clock import Clock
from commonage.ports.engine import Engine
from commonage.ports.execs import ExecStream, NotRunning, Terminal

_MAX_OF_A_WORD = 60
RESET_WITHIN_S = 120.0
_NOT_KEPT = 64
_RESET = f'[ -n "${VARIABLE}" ] || exit {_NOT_KEPT}; rm -rf -- "$HOME/${VARIABLE}"'


@dataclass(slots=True)
class Execs:
    """Needs the permission `enter-workloads`, except in one's own workloads. A student in a class must agree.

    Only its owner enters a build: the output of a build becomes an environment.
    """

    queries: WorkloadQueries
    live_state: LiveState
    writer: Writer
    engines: Mapping[str, Engine]
    clock: Clock
    meetings: Meetings

    async def begin(
        self, principal: Principal, workload_id: str, command: Sequence[str], terminal: Terminal | None
    ) -> ExecStream:
        """Run a command. An audit event is written first, with the command's first word only: the others may be secret.

        Raises NotFound, NotRunning, Forbidden, EngineFailure.
        """
        workload, attempt, engine = await self._running(principal, workload_id)
        event = Event(
            EventKind.AUDIT,
            self.clock.now(),
            CommandStarted(by=principal.name, program=_program(command), workload=workload.spec.name or workload.id),
            workload_id=workload.id,
            attempt_id=attempt.id,
            owner=workload.spec.owner,
            tenant=workload.spec.tenant,
        )
        await self.writer.write(events=[event])
        try:
            return await engine.exec(attempt.id, command, terminal)
        except NotRunning:
            raise _not_running(await self.queries.workload(principal, workload_id)) from None

    async def reset_packages(self, principal: Principal, workload_id: str) -> None:
        """Delete the packages that the user of a running session added. Its kernels are without them from their next
        start. Raises as `begin`; Conflict if its tenant keeps no packages.
        """
        async with asyncio.timeout(RESET_WITHIN_S):
            stream = await self.begin(principal, workload_id, ("/bin/sh", "-c", _RESET), None)
            try:
                await stream.close_stdin()
                while await stream.read() is not None:
                    pass
                code = await stream.exit_code()
            finally:
                await stream.close()
        if code == _NOT_KEPT:
            raise Conflict(f"{workload_id} keeps no packages: it is no session, or its tenant does not allow it")
        if code != 0:
            raise EngineFailure(f"the packages of {workload_id} could not be deleted; look at ~/.commonage/packages")

    async def check(self, principal: Principal, workload_id: str) -> None:
        await self._running(principal, workload_id)

    async def _running(self, principal: Principal, workload_id: str) -> tuple[Workload, Attempt, Engine]:
        principal.need(Scope.SUBMIT)
        workload = await self.queries.workload(principal, workload_id)
        self.queries.need(Permission.ENTER_WORKLOADS, principal, workload)
        self.meetings.need_consent(principal, workload)
        if workload.spec.build and workload.spec.owner != principal.name:
            raise Forbidden(
                f"{workload_id} builds an environment, so only {workload.spec.owner} may run commands in it; read its "
                "log instead"
            )
        attempt = workload.attempt
        if workload.state is not State.RUNNING or attempt is None:
            raise _not_running(workload)
        engine = self.engines.get(attempt.allocation.site)
        if engine is None:
            where = attempt.allocation.site
            raise NotFound(f"the site {where}, on which {workload_id} runs, is not known any more", code="not-found")
        return workload, attempt, engine


def _not_running(workload: Workload) -> NotRunning:
    state = str(workload.state).replace("_", " ")
    if workload.state is State.RUNNING:
        state = "just ending"
    then = "start it again" if workload.state.is_terminal else "run the command once the workload runs"
    return NotRunning(f"{workload.id} is not running but {state}; {then}")


def _program(command: Sequence[str]) -> str:
    """The command's first word, printable and of limited length; empty for a shell."""
    if not command:
        return ""
    word = "".join(letter if letter.isprintable() else "?" for letter in command[0].rpartition("/")[2])
    return word if len(word) <= _MAX_OF_A_WORD else word[: _MAX_OF_A_WORD - 1] + "…"
