"""Restarts sessions: replaces each session that ended because of its node, or to continue without its GPU.

The hub starts the replacement as if the user had requested it. So it has the user's URL, a fresh token, and a progress
page. `SessionRestarts` is notified of every workload that is written. The client key of the new session names the old
one, so that a restart of the control plane does not start a second replacement.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from commonage.control.state.feed import event_of
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.domain.errors import CommonageError, Conflict, start_failure
from commonage.domain.iterations import Iterations
from commonage.domain.reasons import Reason
from commonage.domain.reasons.notes import RestartedAs, RestartedTooOften, RestartFailed, RestartOf
from commonage.domain.workloads import MAX_LOSSES, EventKind, Kind, Spec, State, StopCause, Workload
from commonage.ports.clock import Clock
from commonage.ports.store import Filter, Store

log = logging.getLogger(__name__)
GIVE_UP_AFTER_S = 600.0
LONG_ENOUGH_S = 3600.0
LONGEST_PAUSE_S = 15.0
_LOOK_BACK = 200  # newest sessions checked at start for one that ended like this and was not replaced
_KEY = re.compile(r"again-(\d+)-.+")
# Environment variables that the hub sets at each start of a session.
_OF_THE_HUB = re.compile(r"JUPYTERHUB_.*|JPY_.*|COMMONAGE_URL")

Start = Callable[[Spec], Awaitable[Workload]]
"""Have the hub start a session with this spec; returns the resulting workload."""


class SessionRestarts:
    """Restarts sessions, each in its own task because the hub may respond slowly."""

    def __init__(self, store: Store, live_state: LiveState, writer: Writer, clock: Clock, start: Start) -> None:
        self._store, self._live_state, self._writer, self._clock, self._start = store, live_state, writer, clock, start
        self.iterations = Iterations("session_restarts", clock.now)
        self._waiting: asyncio.Queue[Workload] = asyncio.Queue()

    def changed(self, workload: Workload) -> None:
        if should_restart(workload):
            self._waiting.put_nowait(workload)

    async def open(self) -> None:
        which = Filter(kinds=(Kind.SESSION,), states=(State.LOST, State.STOPPED))
        page = await self._store.workloads(which, limit=_LOOK_BACK)
        for one in page.items:
            if self._clock.now() - one.since < GIVE_UP_AFTER_S:
                self.changed(one)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as starting:
            while True:
                with self.iterations.rest():
                    lost = await self._waiting.get()
                starting.create_task(self._restart_until_done(lost), name=f"again {lost.id}")

    async def _restart_until_done(self, lost: Workload) -> None:
        """Retry until it is restarted, its user was faster, or the deadline has passed. Raises no CommonageError."""
        give_up, pause = self._clock.now() + GIVE_UP_AFTER_S, 0.5
        while True:
            try:
                await self._once(lost)
                return
            except CommonageError as error:
                # A conflict comes from the hub: it is still stopping the old session.
                may_pass = error.is_retryable or isinstance(error, Conflict)
                if not may_pass or self._clock.now() + pause > give_up:
                    log.warning("session %s of %s is not started again: %s", lost.id, lost.spec.owner, error)
                    with suppress(CommonageError):
                        await self._tell(lost, RestartFailed(cause=start_failure(error)))
                    return
                log.info("session %s of %s is not started again yet: %s", lost.id, lost.spec.owner, error)
            await self._clock.sleep(pause)
            pause = min(LONGEST_PAUSE_S, pause * 2)

    async def _once(self, lost: Workload) -> None:
        spec, number = lost.spec, restarts_of(lost) + 1
        key = f"again-{number}-{lost.id}"
        if self._is_there(lost) or await self._store.workload_by_key(spec.owner, key) is not None:
            return  # its user was faster, or it was already handled
        if number > MAX_LOSSES and not gave_gpu_back(lost):
            await self._tell(lost, RestartedTooOften(times=number))
            return
        request = replace(spec.request, gpu=None) if gave_gpu_back(lost) else spec.request
        made = await self._start(replace(spec, key=key, variables=own_variables(spec), secrets=(), request=request))
        await self._tell(lost, RestartedAs(workload_id=made.id), EventKind.RETRYING)
        await self._tell(made, RestartOf(workload_id=lost.id, cause=lost.reason))

    def _is_there(self, lost: Workload) -> bool:
        mine = (lost.spec.owner, lost.spec.name)
        return any(
            one.spec.kind is Kind.SESSION and (one.spec.owner, one.spec.name) == mine for one in self._live_state
        )

    async def _tell(self, workload: Workload, reason: Reason, kind: EventKind = EventKind.WARNING) -> None:
        await self._writer.write(events=[event_of(workload, kind, self._clock.now(), reason)])


def should_restart(workload: Workload) -> bool:
    if workload.spec.kind is not Kind.SESSION:
        return False
    return gave_gpu_back(workload) or (workload.spec.requeue and ended_by_platform(workload))


def gave_gpu_back(workload: Workload) -> bool:
    stop = workload.stop
    return workload.state is State.STOPPED and stop is not None and stop.cause is StopCause.GPU_RELEASE


def ended_by_platform(workload: Workload) -> bool:
    evicted = workload.stop is not None and workload.stop.cause is StopCause.EVICTION
    return workload.state is State.LOST or (workload.state is State.STOPPED and evicted)


def restarts_of(workload: Workload) -> int:
    """Count the consecutive restarts of a session, this one included; 0 once it ran for an hour."""
    attempt, found = workload.attempt, _KEY.fullmatch(workload.spec.key or "")
    if found is None or attempt is None:
        return int(found[1]) if found else 0
    ran_s = (attempt.ended_at or workload.since) - (attempt.started_at or attempt.allocation.at)
    return 0 if ran_s >= LONG_ENOUGH_S else int(found[1])


def own_variables(spec: Spec) -> tuple[tuple[str, str], ...]:
    """Variables that the owner set. For a session without those of the hub: each start sets those."""
    if spec.kind is not Kind.SESSION:
        return spec.variables
    return tuple((name, value) for name, value in spec.variables if not _OF_THE_HUB.fullmatch(name))
