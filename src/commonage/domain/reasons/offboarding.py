"""Renaming and removal of users and tenants: items of a plan, its obstacles, and events.

`subject` is `user` or `tenant`, and `name` its present name.
"""

from __future__ import annotations

from commonage.domain.reasons.base import Reason


class SessionsStop(Reason):
    """Sessions are stopped: they are the user's own access, and their address has the user's name."""

    workloads: tuple[str, ...]


class WorkloadsStop(Reason):
    """Live jobs and services are stopped."""

    workloads: tuple[str, ...]


class WorkloadsFinish(Reason):
    """Jobs and services end by themselves. The other steps wait for them."""

    workloads: tuple[str, ...]


class WorkloadsRequeued(Reason):
    """Running jobs and services are requeued, and start again for their new owner or tenant."""

    workloads: tuple[str, ...]
    receiver: str


class WorkloadsMove(Reason):
    """Waiting workloads keep their places in the queue, for their new owner or tenant."""

    workloads: tuple[str, ...]
    receiver: str


class FolderMoves(Reason):
    """A home or a folder of a volume is moved."""

    folder: str
    to: str


class FolderArchived(Reason):
    """A home or a folder of a volume is packed into an archive, and then deleted."""

    folder: str
    archive: str


class FolderKept(Reason):
    """A home or a folder of a volume stays. It cannot be used while the name is retired."""

    folder: str


class FolderDeleted(Reason):
    """A home or a folder of a volume is deleted."""

    folder: str


class FolderElsewhere(Reason):
    """Data on another site stays there: the control plane cannot move files of that site."""

    site: str
    folder: str
    to: str


class DockerVolumeStays(Reason):
    """Data in a Docker volume of each node stays there: Docker cannot rename volumes."""

    volume: str
    source: str
    to: str


class ClaimsStay(Reason):
    """Claims of the cluster stay, as NAMESPACE/NAME: the platform deletes none, and the cluster cannot rename them."""

    claims: tuple[str, ...]
    to: str


class CronJobsMove(Reason):
    """Cron jobs continue for another owner or tenant."""

    cron_jobs: tuple[str, ...]
    receiver: str


class CronJobsRemoved(Reason):
    """Cron jobs are removed, because they are not handed over."""

    cron_jobs: tuple[str, ...]


class RolesMove(Reason):
    """Roles in tenants go to the new name."""

    tenants: tuple[str, ...]
    receiver: str


class RolesEnd(Reason):
    """Roles in tenants are removed."""

    tenants: tuple[str, ...]


class PlatformRolesMove(Reason):
    """Roles on the platform go to the new name."""

    roles: tuple[str, ...]
    receiver: str


class PlatformRolesEnd(Reason):
    """Roles on the platform are removed."""

    roles: tuple[str, ...]


class TenantRenamed(Reason):
    """The tenant is declared under its new name, with its quota, roles and limits."""

    name: str
    to: str


class TenantRemoved(Reason):
    """The tenant is deleted, with its quota and roles."""

    name: str


class VolumesFollow(Reason):
    """Volumes that name the tenant name the new one instead."""

    volumes: tuple[str, ...]
    receiver: str


class VolumesShared(Reason):
    """Volumes that name the tenant among others name it no longer."""

    volumes: tuple[str, ...]


class EnvironmentsFollow(Reason):
    """Environments of the tenant become those of another one."""

    environments: tuple[str, ...]
    receiver: str


class EnvironmentsDeleted(Reason):
    """Environments of the tenant are deleted with it."""

    environments: tuple[str, ...]


class VolumesDeleted(Reason):
    """Volumes of this tenant alone are deleted as resources. Their folders stay."""

    volumes: tuple[str, ...]


class SitesFollow(Reason):
    """Sites that are for the tenant are for another one instead."""

    sites: tuple[str, ...]
    receiver: str


class SitesShared(Reason):
    """Sites that are for the tenant and others are then for the others only."""

    sites: tuple[str, ...]


class ReservationsMove(Reason):
    """Reservations go to another owner or tenant."""

    reservations: tuple[str, ...]
    receiver: str


class ReservationsCancelled(Reason):
    """Reservations are cancelled."""

    reservations: tuple[str, ...]


class ImagesMove(Reason):
    """Images get another owner or tenant. They keep their names and their place in the registry."""

    images: tuple[str, ...]
    receiver: str


class ImagesStay(Reason):
    """Images that the user pushed stay with their tenant."""

    images: tuple[str, ...]


class ImagesRemoved(Reason):
    """Images are removed from the catalogue. The registry deletes them when it collects."""

    images: tuple[str, ...]


class TokensRevoked(Reason):
    """All API tokens of the user are revoked at the hub."""

    count: int


class TokensStay(Reason):
    """API tokens of the user stay valid, under the new name."""

    count: int


class AccountRenamed(Reason):
    """The hub's user, or its group of the tenant, gets the new name. An external directory is changed separately."""

    subject: str
    name: str
    to: str


class AccountRemoved(Reason):
    """The hub's user, or its group of the tenant, is removed."""

    subject: str
    name: str


class AccountStays(Reason):
    """The hub keeps its user, or its group of the tenant. The control plane refuses the name."""

    subject: str
    name: str


class JoinTokensStay(Reason):
    """Join tokens of nodes and sites belong to the installation and expire by themselves."""


class UsageStays(Reason):
    """Usage and history stay under the name, for accounting."""

    name: str


class HistoryRenamed(Reason):
    """Usage, ended workloads and events get the new name."""

    name: str
    to: str


class NameRetires(Reason):
    """The name cannot be used afterwards, until an admin releases it."""

    subject: str
    name: str


class ManagedByGit(Reason):
    """A resource that has to change is managed by git, and is read-only here."""

    kind: str
    name: str
    managed_by: str


class NameTaken(Reason):
    """The new name is in use, or has a history of its own."""

    subject: str
    name: str


class FolderTaken(Reason):
    """The destination of a folder exists already."""

    folder: str


class HeirUnknown(Reason):
    """The hub has no such user, or there is no such tenant."""

    subject: str
    name: str


class HeirNotMember(Reason):
    """The user who is to get the workloads may not submit to their tenants."""

    name: str
    tenants: tuple[str, ...]


class HeirHasCronJob(Reason):
    """The user who is to get the cron jobs has others of the same names."""

    name: str
    cron_jobs: tuple[str, ...]


class SiteOfTenantOnly(Reason):
    """A site is for the tenant alone, and would be open to all tenants without it."""

    site: str
    tenant: str


class OffboardingStarted(Reason):
    """A user or a tenant is being renamed (`to` is the new name) or removed."""

    by: str
    subject: str
    name: str
    to: str


class OffboardingStep(Reason):
    """A step of a renaming or removal is done."""

    subject: str
    name: str
    step: str


class OffboardingDone(Reason):
    """A user or a tenant was renamed (`to` is the new name) or removed."""

    by: str
    subject: str
    name: str
    to: str


class NameReleased(Reason):
    """An admin permits others to take a retired name."""

    by: str
    subject: str
    name: str


class HandedOver(Reason):
    """A workload that waits got another owner or tenant."""

    before: str
    after: str


class StoppedByOffboarding(Reason):
    """Stopped because its owner or tenant is renamed or removed."""

    by: str
    subject: str
    name: str


class NameRetired(Reason):
    """The name of a user or tenant was given up, or is being changed."""

    subject: str
    name: str
    to: str
    pending: bool


class WaitsForNewName(Reason):
    """Held until its owner or tenant is renamed or its work is handed over."""

    subject: str
    name: str
    receiver: str


class ClassesChange(Reason):
    """Classes get the new name of a student, tenant or group, or lose it."""

    classes: tuple[str, ...]


class ClassesDeleted(Reason):
    """The classes of the tenant are deleted, with their reservations."""

    classes: tuple[str, ...]


class TenantNotEmpty(Reason):
    """The resource of a tenant with work, folders or members cannot be deleted alone. Each number counts one kind.

    `managed_by`: the source that manages the resource, if one does.
    """

    tenant: str
    workloads: int
    cron_jobs: int
    reservations: int
    images: int
    folders: int
    members: int
    managed_by: str = ""
