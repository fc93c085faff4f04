"""Texts of `commonage.domain.reasons.offboarding`."""

from __future__ import annotations

from commonage.domain.reasons import offboarding as r
from commonage.messages.template import Say, Texts, count

_NAMED = 8


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _workloads(names: tuple[str, ...]) -> str:
    return f"{count(len(names), 'workload')} ({_some(names)})"


def _cron_jobs(names: tuple[str, ...]) -> str:
    return f"{count(len(names), 'cron job')} ({_some(names)})"


def _elsewhere(reason: r.FolderElsewhere, _say: Say) -> str:
    after = f"rename it to {reason.to}" if reason.to else "archive or delete it"
    return (
        f"Files on site {reason.site} stay there. If that site has the folder {reason.folder}, {after} on its machine."
    )


def _docker_volume(reason: r.DockerVolumeStays, _say: Say) -> str:
    after = (
        f"To keep its data, copy it there into the volume whose name contains {reason.to}."
        if reason.to
        else "Remove it there with `docker volume rm`."
    )
    return (
        f"Data of volume {reason.volume} stays on each node, in the Docker volume that `docker volume ls --filter "
        f"name={reason.source}` finds. {after}"
    )


def _changed(reason: r.OffboardingStarted | r.OffboardingDone, during: str) -> str:
    how = f"renamed to {reason.to}" if reason.to else "removed"
    return f"{reason.subject.capitalize()} {reason.name} {during} {how} by {reason.by}."


def _retired(reason: r.NameRetired, _say: Say) -> str:
    what = f"{reason.subject} {reason.name}"
    if reason.pending and reason.to == reason.name:
        return f"Another {reason.subject} is being renamed to {reason.name}. Wait until that is done, or ask an admin."
    if reason.pending:
        return f"The {what} is being {'renamed' if reason.to else 'removed'}. Wait until that is done, or ask an admin."
    how = f"was renamed to {reason.to}: use that name" if reason.to else "was removed"
    return f"The {what} {how}. An admin can release the name for others."


def _waits(reason: r.WaitsForNewName, _say: Say) -> str:
    return f"Held until {reason.receiver} has taken over the work of {reason.subject} {reason.name}."


def _not_empty(reason: r.TenantNotEmpty, _say: Say) -> str:
    nouns = {
        "workload": reason.workloads,
        "cron job": reason.cron_jobs,
        "reservation": reason.reservations,
        "image": reason.images,
        "folder": reason.folders,
        "member": reason.members,
    }
    left = [count(number, noun) for noun, number in nouns.items() if number]
    managed = (
        f" {reason.managed_by} manages the tenant: before that, run `commonage apply --take-over FILE` with a file "
        "that declares it."
        if reason.managed_by
        else ""
    )
    return (
        f"Tenant {reason.tenant} cannot be deleted yet, because it has {', '.join(left)}. First make a plan for "
        f"them: open Platform, Users and tenants, or run `commonage tenant remove {reason.tenant} --plan`." + managed
    )


def _claims(reason: r.ClaimsStay, _say: Say) -> str:
    after = (
        f"What starts for {reason.to} gets new, empty claims: copy the data with a Pod that mounts both."
        if reason.to
        else "Delete them with `kubectl delete pvc -n NAMESPACE NAME` when their data is not needed any more."
    )
    return f"Data in {count(len(reason.claims), 'claim')} of the cluster stays ({_some(reason.claims)}). {after}"


TEXTS: Texts = {
    r.SessionsStop: lambda reason, _: f"Stop {count(len(reason.workloads), 'session')} ({_some(reason.workloads)}).",
    r.WorkloadsStop: lambda reason, _: f"Stop {_workloads(reason.workloads)}.",
    r.WorkloadsFinish: lambda reason, _: f"Wait until these end by themselves: {_workloads(reason.workloads)}.",
    r.WorkloadsRequeued: lambda reason, _: f"Requeue {_workloads(reason.workloads)} for {reason.receiver}.",
    r.WorkloadsMove: lambda reason, _: f"Hand over to {reason.receiver}, in the queue: {_workloads(reason.workloads)}.",
    r.FolderMoves: "Move {folder} to {to}.",
    r.FolderArchived: "Pack {folder} into an archive in {archive}, then delete the folder.",
    r.FolderKept: "Keep {folder}. It cannot be used while the name is retired.",
    r.FolderDeleted: "Delete {folder}.",
    r.FolderElsewhere: _elsewhere,
    r.DockerVolumeStays: _docker_volume,
    r.ClaimsStay: _claims,
    r.CronJobsMove: lambda reason, _: f"Hand over to {reason.receiver}: {_cron_jobs(reason.cron_jobs)}.",
    r.CronJobsRemoved: lambda reason, _: (
        f"Remove {_cron_jobs(reason.cron_jobs)}. To keep them, hand the workloads over to an heir."
    ),
    r.RolesMove: lambda reason, _: f"Give the roles in {_some(reason.tenants)} to {reason.receiver}.",
    r.RolesEnd: lambda reason, _: f"Remove the roles in {_some(reason.tenants)}.",
    r.PlatformRolesMove: lambda reason, _: (
        f"Give the roles {_some(reason.roles)} on the platform to {reason.receiver}."
    ),
    r.PlatformRolesEnd: lambda reason, _: f"Remove the roles {_some(reason.roles)} on the platform.",
    r.TenantRenamed: "Declare tenant {name} as {to}, with its quota, roles and limits.",
    r.TenantRemoved: "Delete tenant {name}, with its quota and roles.",
    r.VolumesFollow: lambda reason, _: f"Give the volumes {_some(reason.volumes)} to {reason.receiver}.",
    r.VolumesShared: lambda reason, _: f"Take the tenant off the volumes {_some(reason.volumes)}.",
    r.ClassesChange: lambda reason, _: f"Change the classes {_some(reason.classes)}.",
    r.ClassesDeleted: lambda reason, _: f"Delete the classes {_some(reason.classes)}, with their reservations.",
    r.VolumesDeleted: lambda reason, _: (
        f"Delete the volumes {_some(reason.volumes)}, which no other tenant may use. Their folders stay."
    ),
    r.EnvironmentsFollow: lambda reason, _: f"Give the environments {_some(reason.environments)} to {reason.receiver}.",
    r.EnvironmentsDeleted: lambda reason, _: f"Delete the environments {_some(reason.environments)}.",
    r.SitesFollow: lambda reason, _: f"Give the sites {_some(reason.sites)} to {reason.receiver}.",
    r.SitesShared: lambda reason, _: f"Take the tenant off the sites {_some(reason.sites)}.",
    r.ReservationsMove: lambda reason, _: f"Give the reservations {_some(reason.reservations)} to {reason.receiver}.",
    r.ReservationsCancelled: lambda reason, _: f"Cancel the reservations {_some(reason.reservations)}.",
    r.ImagesMove: lambda reason, _: (
        f"Give the images {_some(reason.images)} to {reason.receiver}. They keep their names in the registry; push new "
        "versions under a name of the new owner."
    ),
    r.ImagesStay: lambda reason, _: f"The images {_some(reason.images)} stay with their tenants.",
    r.ImagesRemoved: lambda reason, _: (
        f"Remove the images {_some(reason.images)} from the catalogue. The registry deletes them when it collects."
    ),
    r.TokensRevoked: lambda reason, _: f"Revoke {count(reason.count, 'API token')} at JupyterHub.",
    r.TokensStay: lambda reason, _: f"{count(reason.count, 'API token')} stay valid under the new name.",
    r.AccountRenamed: lambda reason, _: (
        f"Rename the {'user' if reason.subject == 'user' else 'group'} {reason.name} of JupyterHub to {reason.to}. If "
        "names come from GitHub or a directory, rename it there, too."
    ),
    r.AccountRemoved: lambda reason, _: (
        f"Remove the {'user' if reason.subject == 'user' else 'group'} {reason.name} from JupyterHub."
    ),
    r.AccountStays: lambda reason, _: (
        f"JupyterHub keeps its {'user' if reason.subject == 'user' else 'group'} {reason.name}."
    ),
    r.JoinTokensStay: (
        "Join tokens of nodes and sites belong to the installation, not to a user. If the user may have kept one, "
        "revoke it: see `commonage site ls` and `commonage node token`."
    ),
    r.UsageStays: "Usage and history stay under the name {name}.",
    r.HistoryRenamed: "Usage, ended workloads and events of {name} get the name {to}. Texts of events stay as written.",
    r.NameRetires: "Retire the name: no {subject} can be called {name} until an admin releases it.",
    r.ManagedByGit: "{kind} {name} is managed by {managed_by} and read-only here. Change it there first.",
    r.NameTaken: "There is a {subject} {name} already, or there was one. Choose another name.",
    r.FolderTaken: "There is something at {folder} already. Move it away, or choose another name.",
    r.HeirUnknown: "There is no {subject} {name} to hand over to. Choose one that exists.",
    r.HeirNotMember: lambda reason, _: (
        f"{reason.name} may not submit to {_some(reason.tenants)}, and cannot get the workloads. Make {reason.name} a "
        "member, or choose another user."
    ),
    r.HeirHasCronJob: lambda reason, _: (
        f"{reason.name} has cron jobs of the same names: {_some(reason.cron_jobs)}. Remove those of one of the two "
        "users first, or choose another user."
    ),
    r.SiteOfTenantOnly: (
        "Site {site} is for tenant {tenant} only, and would be open to all tenants. Remove the site with `commonage "
        "site rm {site}` and its resource, change its tenants, or name an heir."
    ),
    r.OffboardingStarted: lambda reason, _: _changed(reason, "is being"),
    r.OffboardingStep: "The step {step} for {subject} {name} is done.",
    r.OffboardingDone: lambda reason, _: _changed(reason, "was"),
    r.NameReleased: "{by} released the name of {subject} {name}.",
    r.HandedOver: "Handed over from {before} to {after}.",
    r.StoppedByOffboarding: "Stopped because {by} renames or removes {subject} {name}.",
    r.NameRetired: _retired,
    r.WaitsForNewName: _waits,
    r.TenantNotEmpty: _not_empty,
}
