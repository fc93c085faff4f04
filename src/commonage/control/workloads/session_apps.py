"""Finds the apps of running sessions, for the portal. Each session names its own at its start, in a file.

The server configuration that every engine puts into sessions writes it (`files/injected/jupyter`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from commonage.control.state.live_state import LiveState
from commonage.domain.apps import App
from commonage.domain.errors import CommonageError
from commonage.domain.workloads import Kind, State, Workload
from commonage.ports.clock import Clock
from commonage.ports.engine import Engine
from commonage.ports.execs import ExecStream

_READ = ("/bin/sh", "-c", 'cat "${TMPDIR:-/tmp}/commonage-apps"')
_TIMEOUT_S = 5.0
_PAUSE_S = 5.0
_LONGEST = 4096


@dataclass(slots=True)
class SessionApps:
    """`known` are all apps that there may be, in the order shown."""

    known: Sequence[App]
    live_state: LiveState
    engines: Mapping[str, Engine]
    clock: Clock
    _found: dict[str, tuple[App, ...]] = field(default_factory=dict)
    _asked_at: dict[str, float] = field(default_factory=dict)

    async def of(self, workload: Workload) -> tuple[App, ...]:
        """The apps of a session; empty while it starts, and for anything else."""
        attempt = workload.attempt
        if workload.spec.kind is not Kind.SESSION or workload.state is not State.RUNNING or attempt is None:
            return ()
        if attempt.id not in self._found and self.clock.now() - self._asked_at.get(attempt.id, 0.0) >= _PAUSE_S:
            self._forget_ended()
            self._asked_at[attempt.id] = self.clock.now()
            names = await self._read(attempt.allocation.site, attempt.id)
            if names:
                self._found[attempt.id] = tuple(one for one in self.known if one.name in names)
        return self._found.get(attempt.id, ())

    async def beside(self, workload: Workload) -> tuple[Workload, tuple[App, ...]] | None:
        """A running session of the same owner on the same site, which has the same home, and its apps."""
        if workload.attempt is None:
            return None
        site = workload.attempt.allocation.site
        for one in self.live_state:
            is_here = one.attempt is not None and one.attempt.allocation.site == site
            if is_here and one.spec.owner == workload.spec.owner and (apps := await self.of(one)):
                return one, apps
        return None

    async def _read(self, site: str, attempt_id: str) -> frozenset[str]:
        engine, stream = self.engines.get(site), None
        if engine is None:
            return frozenset()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                stream = await engine.exec(attempt_id, _READ)
                return frozenset((await _output(stream)).decode("utf-8", "replace").split())
        except (CommonageError, TimeoutError):  # it just ended, or its site does not answer
            return frozenset()
        finally:
            if stream is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_TIMEOUT_S):
                        await stream.close()

    def _forget_ended(self) -> None:
        running = {one.attempt.id for one in self.live_state if one.attempt is not None}
        for kept in (self._found, self._asked_at):
            for attempt_id in [one for one in kept if one not in running]:
                del kept[attempt_id]


async def _output(stream: ExecStream) -> bytes:
    output = b""
    await stream.close_stdin()
    while len(output) < _LONGEST and (part := await stream.read()) is not None:
        output += part[1] if part[0] == 1 else b""
    return output
