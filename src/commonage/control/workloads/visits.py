"""Lets users open sessions of others in the browser: the table of roles decides, the hub carries it out.

Called by the API and the portal. The hub forgets all visitors when a session ends, and asks every few seconds whether
those that it has let in may still stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commonage.control.access import access_of
from commonage.control.classes.meetings import Meetings
from commonage.control.queries.workloads import WorkloadQueries
from commonage.control.settings import ControlSettings
from commonage.control.state.feed import event_of
from commonage.control.state.writer import Writer
from commonage.domain.errors import Forbidden
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.notes import ServiceOpened, SessionOpened
from commonage.domain.workloads import Event, EventKind, Kind, State, Workload
from commonage.ports.clock import Clock
from commonage.ports.execs import NotRunning
from commonage.ports.identity import Identity


@dataclass(slots=True)
class Visits:
    """Needs the permission `enter-workloads`, except in one's own sessions, and the consent of a student in a class."""

    queries: WorkloadQueries
    writer: Writer
    identity: Identity
    clock: Clock
    settings: ControlSettings
    meetings: Meetings

    async def open(self, principal: Principal, workload_id: str) -> Workload:
        """Let the principal into a running session. An audit event notifies its owner first.

        Raises NotFound, Forbidden, NotRunning, Unavailable.
        """
        principal.need(Scope.SUBMIT)
        workload = await self.queries.workload(principal, workload_id)
        self.queries.need(Permission.ENTER_WORKLOADS, principal, workload)
        self.meetings.need_consent(principal, workload)
        spec = workload.spec
        if spec.kind is not Kind.SESSION or workload.state is not State.RUNNING or workload.stop is not None:
            raise NotRunning(f"{workload.id} is not a running session; only a running session can be opened")
        if spec.owner != principal.name:
            if not self.settings.session_origin:
                raise Forbidden(
                    "Sessions share the origin of the portal here, so that the page of this session could act as you. "
                    "An admin can give sessions host names of their own (`session_host`). Until then, use "
                    "`commonage exec`.",
                    code="sessions-share-origin",
                )
            event = Event(
                EventKind.AUDIT,
                self.clock.now(),
                SessionOpened(by=principal.name, session=spec.name),
                workload_id=workload.id,
                attempt_id=None if workload.attempt is None else workload.attempt.id,
                owner=spec.owner,
                tenant=spec.tenant,
            )
            await self.writer.write(events=[event])
            await self.identity.share_session(spec.owner, spec.name, principal.name)
        return workload

    async def enter_service(self, principal: Principal, workload_id: str) -> Workload:
        """Check that the principal may use a running service. An audit event notifies its owner first if the principal
        is another user.

        Raises NotFound, Forbidden, NotRunning.
        """
        workload = await self.check_service(principal, workload_id)
        spec = workload.spec
        if spec.owner != principal.name:
            opened = ServiceOpened(by=principal.name, service=spec.name)
            await self.writer.write(events=[event_of(workload, EventKind.AUDIT, self.clock.now(), opened)])
        return workload

    async def check_service(self, principal: Principal, workload_id: str) -> Workload:
        """The same for each request, without an event."""
        principal.need(Scope.SUBMIT)
        workload = await self.queries.workload(principal, workload_id)
        self.queries.need(Permission.ENTER_WORKLOADS, principal, workload)
        if workload.spec.kind is not Kind.SERVICE or workload.state is not State.RUNNING:
            raise NotRunning(f"{workload.id} is not a running service; only a running service can be opened")
        if workload.spec.owner != principal.name and not self.settings.session_origin:
            raise Forbidden(
                "Services share the origin of the portal here, so that the page of this service could act as you. "
                "An admin can give them host names of their own (`session_host`).",
                code="sessions-share-origin",
            )
        return workload

    async def may_stay(
        self, principal: Principal, workload_id: str, visitors: Sequence[Principal]
    ) -> Sequence[Principal]:
        """Those of the visitors who may still be in this session. For the hub and admins."""
        access_of(principal, self.settings).need(Permission.MANAGE_PLATFORM)
        workload = await self.queries.workload(principal, workload_id)
        spec = workload.spec
        return [
            one
            for one in visitors
            if access_of(one, self.settings).may_on(Permission.ENTER_WORKLOADS, spec.owner, spec.tenant)
            and self.meetings.consent_missing(one, workload) is None
        ]
