"""Plans the renaming or removal of a user or a tenant: the effects on everything that belongs to it, and the obstacles.

Reads only. The version of a plan changes with everything that the plan names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from commonage.control.access import Access, access_of
from commonage.control.catalogue.catalogue import Catalogue
from commonage.control.offboarding.names import Names
from commonage.control.offboarding.references import Revision, revision_of
from commonage.control.reservations import Reservations
from commonage.control.resources.resources import Resources
from commonage.control.settings import ControlSettings
from commonage.control.state.live_state import LiveState
from commonage.control.workloads.workloads import HUB
from commonage.domain.codec import to_json
from commonage.domain.cron_jobs import CronJob
from commonage.domain.images import Image
from commonage.domain.nodes import LOCAL_SITE
from commonage.domain.offboarding import Change, DataChoice, Subject, Wanted, WorkChoice
from commonage.domain.permissions import SubjectKind
from commonage.domain.principals import OPERATOR, Principal, Scope
from commonage.domain.reasons import Reason
from commonage.domain.reasons import offboarding as reasons
from commonage.domain.tenants import Reservation
from commonage.domain.volumes import Extent, VolumeKind, docker_volume, folder_name
from commonage.domain.workloads import Kind, Workload
from commonage.ports.clock import Clock
from commonage.ports.homes import Homes, OwnedFolder
from commonage.ports.identity import Account, Identity
from commonage.ports.store import Filter, Store

AsyncReasons = AsyncIterator[Reason]
RESERVED = (HUB, OPERATOR)  # names that the server itself has as a principal


@dataclass(frozen=True, slots=True)
class OffboardingPlan:
    """`items` in the order of the steps. With `obstacles` nothing can be done."""

    wanted: Wanted
    version: str
    items: tuple[Reason, ...]
    obstacles: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Planner:
    """Computes plans. `homes` None: this installation cannot move homes. `sites` are those with an engine."""

    store: Store
    live_state: LiveState
    catalogue: Catalogue
    reservations: Reservations
    resources: Resources
    identity: Identity
    homes: Homes | None
    names: Names
    settings: ControlSettings
    clock: Clock
    sites: Collection[str]

    async def plan(self, wanted: Wanted) -> OffboardingPlan:
        """Raises Unavailable while the hub does not answer."""
        account = await self.identity.account(wanted.name) if wanted.subject is Subject.USER else None
        revision = revision_of(self.resources.present(), wanted)
        items = [
            *self._workloads(wanted),
            *await self._account(wanted, account),
            *[one async for one in self._data(wanted)],
            *revision.items(wanted),
            *self._cron_jobs(wanted),
            *self._reservations(wanted),
            *self._images(wanted),
            *self._names(wanted),
        ]
        obstacles = [one async for one in self._obstacles(wanted, revision)]
        facts = json.dumps([to_json(wanted), [to_json(one) for one in (*items, *obstacles)]], sort_keys=True)
        version = hashlib.sha256(facts.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return OffboardingPlan(wanted, version, tuple(items), tuple(obstacles))

    def work_of(self, subject: Subject, name: str) -> Sequence[Workload]:
        """Live workloads of a user or tenant, by id."""
        return sorted((one for one in self.live_state if _whose(one, subject) == name), key=lambda one: one.id)

    def cron_jobs_of(self, wanted: Wanted) -> Sequence[CronJob]:
        """By owner and name."""
        of_user = wanted.subject is Subject.USER
        found = [one for one in self.live_state.cron_jobs.values() if _of(one, of_user) == wanted.name]
        return sorted(found, key=lambda one: (one.owner, one.name))

    def reservations_of(self, wanted: Wanted) -> Sequence[Reservation]:
        of_user = wanted.subject is Subject.USER
        found = self.reservations.rules.reservations
        return [one for one in found if (one.owner if of_user else one.tenant) == wanted.name]

    def images_of(self, wanted: Wanted) -> Sequence[Image]:
        of_user = wanted.subject is Subject.USER
        return [one for one in self.catalogue.images() if (one.by if of_user else one.tenant) == wanted.name]

    async def left_in(self, tenant: str, *, members: bool) -> reasons.TenantNotEmpty | None:
        """Why the resource of this tenant may not be deleted alone; None if it has nothing else.

        `members`: they count, too.
        """
        wanted = Wanted(Subject.TENANT, Change.REMOVE, tenant)
        declared = [one for known in self.settings.rules.tenants if known.name == tenant for one in known.members]
        subjects = {(one.kind, one.subject) for one in declared if members}
        if members:
            subjects |= {(SubjectKind.USER, user) for user in await self.identity.group(tenant) or ()}
        counts = {
            "workloads": len(self.work_of(Subject.TENANT, tenant)),
            "cron_jobs": sum(not one.removed for one in self.cron_jobs_of(wanted)),
            "reservations": len(self.reservations_of(wanted)),
            "images": len(self.images_of(wanted)),
            "folders": len(await self.folders_of(wanted)) + len(await self._claims_of(wanted)),
            "members": len(subjects),
        }
        return reasons.TenantNotEmpty(tenant=tenant, managed_by="", **counts) if any(counts.values()) else None

    async def folders_of(self, wanted: Wanted) -> Sequence[OwnedFolder]:
        if self.homes is None:
            return []
        owner = {"user" if wanted.subject is Subject.USER else "tenant": wanted.name}
        return await self.homes.folders_of(self.settings.volumes, **owner)

    async def _claims_of(self, wanted: Wanted) -> Sequence[str]:
        if self.homes is None:
            return ()
        owner = {"user" if wanted.subject is Subject.USER else "tenant": wanted.name}
        return await self.homes.claims_of(self.settings.volumes, **owner)

    def destination(self, homes: Homes, folder: OwnedFolder, wanted: Wanted) -> str:
        """The path to which the folder is moved."""
        if wanted.change is Change.RENAME:
            return homes.place(folder, wanted.to)
        return homes.place(folder, wanted.name, within=wanted.heir)

    def _workloads(self, wanted: Wanted) -> Iterator[Reason]:
        work = self.work_of(wanted.subject, wanted.name)
        sessions = tuple(one.id for one in work if one.spec.kind is Kind.SESSION)
        others = [one for one in work if one.spec.kind is not Kind.SESSION]
        running = tuple(one.id for one in others if not one.state.waits)
        waiting = tuple(one.id for one in others if one.state.waits)
        if sessions:
            yield reasons.SessionsStop(workloads=sessions)
        if wanted.holds_queue:
            if waiting:
                yield reasons.WorkloadsMove(workloads=waiting, receiver=wanted.receiver)
        else:
            running = tuple(sorted((*running, *waiting)))
        if running and wanted.workloads is WorkChoice.STOP:
            yield reasons.WorkloadsStop(workloads=running)
        elif running and wanted.workloads is WorkChoice.FINISH:
            yield reasons.WorkloadsFinish(workloads=running)
        elif running:
            yield reasons.WorkloadsRequeued(workloads=running, receiver=wanted.receiver)

    async def _data(self, wanted: Wanted) -> AsyncReasons:
        for folder in await self.folders_of(wanted):
            yield self._folder(wanted, folder)
        if claims := await self._claims_of(wanted):
            yield reasons.ClaimsStay(claims=tuple(claims), to=wanted.to if wanted.change is Change.RENAME else "")
        of_user = wanted.subject is Subject.USER
        to = folder_name(wanted.to) if wanted.change is Change.RENAME else ""
        for site in sorted(set(self.sites) - {LOCAL_SITE}) if of_user else ():
            yield reasons.FolderElsewhere(site=site, folder=f"workspaces/{folder_name(wanted.name)}", to=to)
        for volume in self.settings.volumes:
            if volume.kind is VolumeKind.DOCKER and volume.per is (Extent.USER if of_user else Extent.TENANT):
                yield reasons.DockerVolumeStays(
                    volume=volume.name,
                    source=docker_volume(volume.name, wanted.name),
                    to=docker_volume(volume.name, wanted.to) if to else "",
                )

    def _folder(self, wanted: Wanted, folder: OwnedFolder) -> Reason:
        assert self.homes is not None  # it found the folder
        if wanted.change is Change.RENAME or wanted.data is DataChoice.HAND_OVER:
            return reasons.FolderMoves(folder=folder.path, to=self.destination(self.homes, folder, wanted))
        if wanted.data is DataChoice.ARCHIVE:
            return reasons.FolderArchived(folder=folder.path, archive=self.homes.archives)
        if wanted.data is DataChoice.KEEP:
            return reasons.FolderKept(folder=folder.path)
        return reasons.FolderDeleted(folder=folder.path)

    def _cron_jobs(self, wanted: Wanted) -> Iterator[Reason]:
        of_user = wanted.subject is Subject.USER
        found = tuple(
            one.name if of_user else f"{one.name} of {one.owner}"
            for one in self.cron_jobs_of(wanted)
            if not one.removed
        )
        if found and wanted.holds_queue:
            yield reasons.CronJobsMove(cron_jobs=found, receiver=wanted.receiver)
        elif found:
            yield reasons.CronJobsRemoved(cron_jobs=found)

    def _reservations(self, wanted: Wanted) -> Iterator[Reason]:
        found = tuple(one.id for one in self.reservations_of(wanted))
        if found and wanted.receiver:
            yield reasons.ReservationsMove(reservations=found, receiver=wanted.receiver)
        elif found:
            yield reasons.ReservationsCancelled(reservations=found)

    def _images(self, wanted: Wanted) -> Iterator[Reason]:
        found = tuple(one.name for one in self.images_of(wanted))
        if found and wanted.receiver:
            yield reasons.ImagesMove(images=found, receiver=wanted.receiver)
        elif found and wanted.subject is Subject.USER:
            yield reasons.ImagesStay(images=found)
        elif found:
            yield reasons.ImagesRemoved(images=found)

    async def _account(self, wanted: Wanted, account: Account | None) -> Sequence[Reason]:
        found: list[Reason] = []
        of_user, name, subject = wanted.subject is Subject.USER, wanted.name, wanted.subject.value
        removes = wanted.change is Change.REMOVE
        if of_user:
            count = 0 if account is None else account.tokens
            found.append(reasons.TokensRevoked(count=count) if removes else reasons.TokensStay(count=count))
            found.append(reasons.JoinTokensStay())
        there = account is not None if of_user else await self.identity.group(name) is not None
        if there and wanted.keep_account:
            found.append(reasons.AccountStays(subject=subject, name=name))
        elif there and removes:
            found.append(reasons.AccountRemoved(subject=subject, name=name))
        elif there:
            found.append(reasons.AccountRenamed(subject=subject, name=name, to=wanted.to))
        return found

    def _names(self, wanted: Wanted) -> Iterator[Reason]:
        if wanted.change is Change.REMOVE:
            yield reasons.UsageStays(name=wanted.name)
        else:
            yield reasons.HistoryRenamed(name=wanted.name, to=wanted.to)
        yield reasons.NameRetires(subject=wanted.subject.value, name=wanted.name)

    async def _obstacles(self, wanted: Wanted, revision: Revision) -> AsyncReasons:
        for one in revision.managed:
            yield reasons.ManagedByGit(kind=one.kind, name=one.name, managed_by=one.managed_by)
        for site in revision.opened:
            yield reasons.SiteOfTenantOnly(site=site, tenant=wanted.name)
        if wanted.change is Change.RENAME:
            if await self._is_taken(wanted.subject, wanted.to):
                yield reasons.NameTaken(subject=wanted.subject.value, name=wanted.to)
        elif wanted.heir:
            async for obstacle in self._heir(wanted):
                yield obstacle
        if self.homes is not None and (wanted.change is Change.RENAME or wanted.data is DataChoice.HAND_OVER):
            async for obstacle in self._taken_folders(self.homes, wanted):
                yield obstacle

    async def _taken_folders(self, homes: Homes, wanted: Wanted) -> AsyncReasons:
        for folder in await self.folders_of(wanted):
            to = self.destination(homes, folder, wanted)
            if not await homes.is_free(to):
                yield reasons.FolderTaken(folder=to)

    async def _heir(self, wanted: Wanted) -> AsyncReasons:
        subject, heir = wanted.subject, wanted.heir
        known = self._tenants()
        account = await self.identity.account(heir) if subject is Subject.USER else None
        exists = account is not None if subject is Subject.USER else heir in known
        if not exists or self.names.claimed(subject, heir) is not None:
            yield reasons.HeirUnknown(subject=subject.value, name=heir)
        elif account is not None and wanted.workloads is WorkChoice.HAND_OVER:
            mine = {one.name for one in self.access(account).own_tenants()}
            work = [one for one in self.work_of(subject, wanted.name) if one.spec.kind is not Kind.SESSION]
            cron_jobs = self.cron_jobs_of(wanted)
            missing = sorted({*(one.spec.tenant for one in work), *(one.tenant for one in cron_jobs)} - mine)
            if missing and not account.admin:
                yield reasons.HeirNotMember(name=heir, tenants=tuple(missing))
            there = {one.name for one in self.live_state.cron_jobs.values() if one.owner == heir and not one.removed}
            twice = tuple(one.name for one in cron_jobs if one.name in there)
            if twice:
                yield reasons.HeirHasCronJob(name=heir, cron_jobs=twice)

    def access(self, account: Account) -> Access:
        scopes = frozenset({Scope.ADMIN} if account.admin else ())
        return access_of(Principal(account.name, scopes, account.groups), self.settings)

    def _tenants(self) -> Mapping[str, object]:
        return {one.name: one for one in self.settings.rules.tenants} | {self.settings.default_tenant: None}

    async def _is_taken(self, subject: Subject, name: str) -> bool:
        """True if there is, or was, another user or tenant of this name: the data of both must not be mixed."""
        if subject is Subject.USER and name in RESERVED:
            return True
        if self.names.claimed(subject, name) is not None or self.work_of(subject, name):
            return True
        if any(_of(one, subject is Subject.USER) == name for one in self.live_state.cron_jobs.values()):
            return True
        which = Filter(owner=name) if subject is Subject.USER else Filter(tenant=name)
        if (await self.store.workloads(which, limit=1)).items:
            return True
        by = "owner" if subject is Subject.USER else "tenant"
        if any(one.subject == name for one in await self.store.usage(since=0.0, until=self.clock.now(), by=by)):
            return True
        if subject is Subject.USER:
            return await self.identity.account(name) is not None
        return name in self._tenants() or await self.identity.group(name) is not None


def archive_name(wanted: Wanted, folder: OwnedFolder) -> str:
    """The beginning of the name of a folder's archive: unique by the path of the folder."""
    digest = hashlib.sha256(folder.path.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{wanted.subject}-{folder_name(wanted.name)}-{folder.volume or 'home'}-{digest}"


def _of(cron_job: CronJob, of_user: bool) -> str:
    return cron_job.owner if of_user else cron_job.tenant


def _whose(workload: Workload, subject: Subject) -> str:
    return workload.spec.owner if subject is Subject.USER else workload.spec.tenant
