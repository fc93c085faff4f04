"""Gives running services a route through the proxy, and checks their health.

The result of the checks is live state: after a restart the checks start from the beginning. A service whose program
ends is started again by its retry policy, like any workload; one that does not answer keeps running. Routes do not wait
for checks.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from commonage.control.signals import wait_at_most
from commonage.control.state.feed import event_of
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.domain.errors import CommonageError, Unavailable
from commonage.domain.iterations import Iterations
from commonage.domain.reasons.notes import ServiceAnswers, ServiceNotAnswering
from commonage.domain.services import ServiceHealth, ServiceRoute
from commonage.domain.workloads import Attempt, EventKind, Kind, State, Workload
from commonage.ports.clock import Clock
from commonage.ports.services import ServiceAccess

log = logging.getLogger(__name__)
TICK_S = 1.0
FAILURES_MAX = 3
"""Failed checks in a row after which a service that answered counts as not answering."""
_AT_ONCE = 50


@dataclass(slots=True)
class _Check:
    due_at: float = 0.0
    failures: int = 0
    is_looking: bool = False


class Services:
    """The only writer of `live_state.service_health`."""

    def __init__(self, live_state: LiveState, writer: Writer, access: ServiceAccess, clock: Clock) -> None:
        self._live_state, self._writer, self._access, self._clock = live_state, writer, access, clock
        self._running: dict[str, tuple[Workload, Attempt]] = {}
        self._checks: dict[str, _Check] = {}
        self._published: tuple[ServiceRoute, ...] | None = None
        self._woken = asyncio.Event()
        self.iterations = Iterations("services", clock.now)

    def open(self) -> None:
        for workload in self._live_state:
            self.changed(workload)

    def changed(self, workload: Workload) -> None:
        if workload.spec.kind is not Kind.SERVICE:
            return
        if workload.state is State.RUNNING and workload.attempt is not None:
            self._running[workload.id] = (workload, workload.attempt)
        else:
            self._running.pop(workload.id, None)
        self._woken.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as checks:
            while True:
                self._woken.clear()
                await self._publish()
                self._forget_ended()
                for workload, attempt in self._due():
                    check = self._check_of(attempt)
                    check.is_looking = True
                    checks.create_task(self._look(workload, attempt, check), name=f"health of {attempt.id}")
                with self.iterations.rest():
                    await wait_at_most(TICK_S, self._woken, self._clock)

    async def _publish(self) -> None:
        routes = tuple(ServiceRoute(one.id, attempt.url) for one, attempt in self._running.values() if attempt.url)
        if routes == self._published:
            return
        try:
            await self._access.publish(routes)
            self._published = routes
        except Unavailable as error:  # a full disk: try again at the next tick
            log.error("routes of services are not written: %s", error)

    def _due(self) -> list[tuple[Workload, Attempt]]:
        """The services to look at now, those that wait longest first."""
        now, free = self._clock.now(), _AT_ONCE - sum(one.is_looking for one in self._checks.values())
        checks = [(self._check_of(running[1]), running) for running in self._running.values()]
        due = [(check.due_at, running) for check, running in checks if check.due_at <= now and not check.is_looking]
        return [running for _, running in sorted(due, key=lambda one: one[0])[: max(0, free)]]

    def _check_of(self, attempt: Attempt) -> _Check:
        return self._checks.setdefault(attempt.id, _Check())

    def _forget_ended(self) -> None:
        running = {attempt.id for _, attempt in self._running.values()}
        for kept in (self._checks, self._live_state.service_health):
            for attempt_id in [one for one in kept if one not in running]:
                del kept[attempt_id]

    async def _look(self, workload: Workload, attempt: Attempt, check: _Check) -> None:
        spec = workload.spec
        why = await self._access.failure(attempt.url, spec.health_path) if attempt.url else "its port is unknown"
        check.failures = 0 if why is None else check.failures + 1
        before = self._live_state.service_health.get(attempt.id, ServiceHealth.STARTING)
        after = before
        if why is None:
            after = ServiceHealth.READY
        elif before is ServiceHealth.READY and check.failures >= FAILURES_MAX:
            after = ServiceHealth.NOT_ANSWERING
        # Until it answers, it is asked often: its user waits.
        pause_s = spec.health_interval_s if after is ServiceHealth.READY else min(TICK_S * 2, spec.health_interval_s)
        if after is not before:
            path = spec.health_path or "/"
            event = (
                event_of(workload, EventKind.PROGRESS, self._clock.now(), ServiceAnswers(path=path))
                if why is None
                else event_of(workload, EventKind.WARNING, self._clock.now(), ServiceNotAnswering(path=path, why=why))
            )
            try:
                await self._writer.write(events=[event])
                self._live_state.service_health[attempt.id] = after
            except CommonageError as error:  # the database does not answer: look again soon
                log.warning("the health of service %s is not written: %s", workload.id, error)
                pause_s = TICK_S
        check.due_at, check.is_looking = self._clock.now() + pause_s, False
