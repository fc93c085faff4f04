"""The steps of a renaming or removal. Each may be killed at any point and run again; what it did stays done.

Called by `offboardings`, in the order of `domain.offboarding.Step`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from commonage.control.catalogue.images import Images
from commonage.control.offboarding.plans import Planner, archive_name
from commonage.control.offboarding.references import revision_of
from commonage.control.reservations import Reservations
from commonage.control.resources.resources import Resources
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.control.workloads.bundles import UserBundles
from commonage.control.workloads.cron_jobs import CronJobs
from commonage.domain.cron_jobs import CronJob
from commonage.domain.errors import NotFound
from commonage.domain.images import Removal
from commonage.domain.lifecycle import Reassigned, StopRequested
from commonage.domain.offboarding import Change, DataChoice, Offboarding, Step, Subject, Wanted, WorkChoice
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal
from commonage.domain.reasons.offboarding import HandedOver, StoppedByOffboarding
from commonage.domain.workloads import Kind, Spec, State, StopCause, StopRequest, Workload
from commonage.ports.clock import Clock
from commonage.ports.identity import Identity
from commonage.ports.store import Store

AT_ONCE = 500  # workloads or events that get a new name in one transaction
_PAUSE_S = 0.05  # between two of those, for the changes of others


@dataclass(frozen=True, slots=True)
class Steps:
    store: Store
    live_state: LiveState
    writer: Writer
    clock: Clock
    identity: Identity
    planner: Planner
    resources: Resources
    reservations: Reservations
    images: Images
    cron_jobs: CronJobs
    bundles: UserBundles

    async def run(self, step: Step, offboarding: Offboarding) -> bool:
        """Carry the step out; False if it waits for workloads. Raises CommonageError."""
        steps: Mapping[Step, Callable[[Offboarding], Awaitable[bool]]] = {
            Step.TOKENS: self._tokens,
            Step.WORKLOADS: self._workloads,
            Step.ACCOUNT: self._account,
            Step.DATA: self._data,
            Step.RESOURCES: self._resources,
            Step.CRON_JOBS: self._cron_jobs,
            Step.RESERVATIONS: self._reservations,
            Step.IMAGES: self._images,
            Step.HISTORY: self._history,
        }
        return await steps[step](offboarding)

    async def _tokens(self, offboarding: Offboarding) -> bool:
        await self.identity.revoke_tokens(offboarding.wanted.name)
        return True

    async def _workloads(self, offboarding: Offboarding) -> bool:
        wanted = offboarding.wanted
        for workload in self.planner.work_of(wanted.subject, wanted.name):
            cause = _stop_cause(workload, wanted)
            if cause is not None and workload.stop is None:
                reason = StoppedByOffboarding(by=offboarding.by, subject=wanted.subject.value, name=wanted.name)
                stop = StopRequest(offboarding.by, self.clock.now(), cause, reason)
                await self.writer.apply(workload.id, StopRequested(stop))
        left = self.planner.work_of(wanted.subject, wanted.name)
        if not wanted.holds_queue:
            return not left
        # Queued workloads could still start: timers hold them.
        if any(one.state is not State.HELD for one in left):
            return False
        if wanted.change is Change.REMOVE:
            await self._reassign(offboarding)
            return not self.planner.work_of(wanted.subject, wanted.name)
        return True

    async def _reassign(self, offboarding: Offboarding) -> None:
        """Give the work that waits its new owner or tenant. A renamed user keeps the client keys."""
        wanted, specs = offboarding.wanted, dict[int, Spec]()  # members of an array share one
        reason = HandedOver(before=wanted.name, after=wanted.receiver)
        changes = []
        for workload in self.planner.work_of(wanted.subject, wanted.name):
            before = workload.spec
            spec = specs.get(id(before))
            if spec is None:
                spec = specs[id(before)] = _reassigned(before, wanted)
                with suppress(NotFound):  # the workload fails with this error when it is started
                    await self.bundles.claim(Principal(before.owner, frozenset()), spec)
            changes.append(self.writer.note(workload.id, Reassigned(spec, reason)))
        await asyncio.gather(*changes)

    async def _account(self, offboarding: Offboarding) -> bool:
        wanted = offboarding.wanted
        name, renames = wanted.name, wanted.change is Change.RENAME
        if wanted.subject is Subject.USER and await self._stops_sessions(name):
            return False
        if wanted.keep_account:
            return True
        if wanted.subject is Subject.USER:
            await (self.identity.rename_user(name, wanted.to) if renames else self.identity.remove_user(name))
        else:
            await (self.identity.rename_group(name, wanted.to) if renames else self.identity.remove_group(name))
        return True

    async def _stops_sessions(self, user: str) -> bool:
        """Have the hub end the servers of which it does not know yet that their workloads ended."""
        account = await self.identity.account(user)
        sessions = () if account is None else account.sessions
        for name in sessions:
            await self.identity.stop_session(user, name)
        return bool(sessions)

    async def _data(self, offboarding: Offboarding) -> bool:
        wanted, homes = offboarding.wanted, self.planner.homes
        for folder in await self.planner.folders_of(wanted):
            assert homes is not None  # it found the folder
            if wanted.change is Change.RENAME or wanted.data is DataChoice.HAND_OVER:
                await homes.move(folder, self.planner.destination(homes, folder, wanted))
            elif wanted.data is DataChoice.ARCHIVE:
                await homes.archive(folder, f"{archive_name(wanted, folder)}-{offboarding.id}")
            elif wanted.data is DataChoice.DELETE:
                await homes.delete(folder)
        return True

    async def _resources(self, offboarding: Offboarding) -> bool:
        revision = revision_of(self.resources.present(), offboarding.wanted)
        if not revision.is_empty:
            await self.resources.revise(offboarding.by, revision.documents, revision.gone)
        return True

    async def _cron_jobs(self, offboarding: Offboarding) -> bool:
        wanted = offboarding.wanted
        heir = None
        if wanted.subject is Subject.USER and wanted.heir and wanted.holds_queue:
            heir = await self.identity.account(wanted.heir)
            if heir is None:
                raise NotFound(
                    f"There is no user {wanted.heir} to hand cron jobs over to. Create the user in JupyterHub again.",
                    code="user-not-found",
                )
        of_admin = heir is not None and self.planner.access(heir).may(Permission.SUBMIT)
        changed_ids = {one.id for one in self.planner.cron_jobs_of(wanted)}

        def revised(one: CronJob) -> CronJob | None:
            groups = one.groups
            if wanted.subject is Subject.TENANT and wanted.change is Change.RENAME:  # its group was renamed, too
                groups = tuple(wanted.to if group == wanted.name else group for group in groups)
            if one.id not in changed_ids:
                return replace(one, groups=groups)
            if not wanted.holds_queue:
                return None
            spec = _reassigned(one.spec, wanted)
            if heir is None:
                return replace(one, spec=spec, groups=groups)
            return replace(one, spec=spec, groups=heir.groups, of_admin=of_admin)

        await self.cron_jobs.revise(offboarding.by, revised)
        return True

    async def _reservations(self, offboarding: Offboarding) -> bool:
        wanted = offboarding.wanted
        for one in self.planner.reservations_of(wanted):
            after = None
            if wanted.receiver and wanted.subject is Subject.USER:
                after = replace(one, owner=wanted.receiver)
            elif wanted.receiver:
                after = replace(one, tenant=wanted.receiver)
            await self.reservations.revise(offboarding.by, one, after)
        return True

    async def _images(self, offboarding: Offboarding) -> bool:
        wanted = offboarding.wanted
        for image in self.planner.images_of(wanted):
            if wanted.subject is Subject.USER and wanted.receiver:
                await self.images.revise(offboarding.by, replace(image, by=wanted.receiver))
            elif wanted.subject is Subject.TENANT and wanted.receiver:
                await self.images.revise(offboarding.by, replace(image, tenant=wanted.receiver))
            elif wanted.subject is Subject.TENANT:
                removal = Removal(offboarding.by, self.clock.now())
                await self.images.revise(offboarding.by, replace(image, removed=removal))
        return True

    async def _history(self, offboarding: Offboarding) -> bool:
        wanted = offboarding.wanted
        await self._reassign(offboarding)
        while await self.store.rename(wanted.subject, wanted.name, wanted.to, limit=AT_ONCE):
            await self.clock.sleep(_PAUSE_S)
        change = (wanted.name, wanted.to)
        if wanted.subject is Subject.USER:
            self.live_state.snapshot.rename(owner=change)
        else:
            self.live_state.snapshot.rename(tenant=change)
        return not self.planner.work_of(wanted.subject, wanted.name)


def _stop_cause(workload: Workload, wanted: Wanted) -> StopCause | None:
    """The cause with which to stop it now; None if it continues, or waits for its new owner."""
    if workload.spec.kind is Kind.SESSION:
        return StopCause.ADMIN
    if workload.state.waits and wanted.holds_queue:
        return None
    causes = {WorkChoice.STOP: StopCause.ADMIN, WorkChoice.HAND_OVER: StopCause.EVICTION}
    return causes.get(wanted.workloads)


def _reassigned(spec: Spec, wanted: Wanted) -> Spec:
    if wanted.subject is Subject.TENANT:
        return replace(spec, tenant=wanted.receiver)
    return replace(spec, owner=wanted.receiver, key=spec.key if wanted.change is Change.RENAME else None)
