"""Texts of `commonage.domain.reasons.refusals`."""

from __future__ import annotations

from commonage.domain.reasons import refusals as r
from commonage.domain.reasons.waiting import Resource
from commonage.domain.requests import format_duration, format_memory
from commonage.messages.template import Say, Texts, count, moment
from commonage.messages.waiting import amount, number, scoped


def _user_quota(reason: r.UserQuotaTooSmall, _say: Say) -> str:
    return (
        f"Quota too small: {number(reason.resource, reason.requested)} requested, and one member of tenant "
        f"{reason.tenant} may use {amount(reason.resource, reason.limit)}. Request less."
    )


def _quota(reason: r.QuotaTooSmall, _say: Say) -> str:
    borrowed = f", {number(reason.resource, reason.borrowed)} of them borrowed" if reason.borrowed else ""
    return (
        f"Quota too small: {number(reason.resource, reason.requested)} requested, and tenant {reason.tenant} may use "
        f"{amount(reason.resource, reason.limit)}{borrowed}. Request less."
    )


def _limit(reason: r.QuotaLimitTooSmall, _say: Say) -> str:
    requested = f"{number(reason.resource, reason.requested)} requested, and " if reason.requested else ""
    return (
        f"Quota too small: {requested}{scoped(reason.scope, reason.name, reason.tenant)} may use "
        f"{amount(reason.resource, reason.limit)}. Request less, or ask an admin for a larger quota."
    )


def _queued(reason: r.TooManyQueued, _say: Say) -> str:
    return (
        f"Too many queued workloads: {scoped(reason.scope, reason.name, reason.tenant)} has {reason.queued}, "
        f"{reason.submitted} more submitted, at most {reason.limit} allowed. Wait until some have started, stop some, "
        "or submit fewer at once."
    )


def _storage(reason: r.StorageQuotaExceeded, _say: Say) -> str:
    return (
        f"Storage quota exceeded: {scoped(reason.scope, reason.name, reason.tenant)} uses "
        f"{number(Resource.STORAGE, reason.used_mib)} of {amount(Resource.STORAGE, reason.limit_mib)} (measured at "
        f"{moment(reason.measured_at)}). Start a session to delete files, then submit again."
    )


def _too_many(reason: r.TooManyWorkloads, _say: Say) -> str:
    if reason.of is r.LimitOf.EVERYBODY:
        has = f"all users together have {reason.live} live workloads"
    else:
        has = (
            f"{reason.of} {reason.name} has {reason.live} live {'sessions' if reason.sessions else 'jobs and services'}"
        )
    return (
        f"Too many workloads: {has}, {reason.submitted} more submitted, at most {reason.limit} allowed. "
        "Wait until some have ended, stop some, or submit fewer at once."
    )


def _blocked(reason: r.ReservationBlocked, _say: Say) -> str:
    rest = "Other reservations hold the rest. Reserve fewer, or choose another time."
    if reason.workloads:
        rest = (
            f"{count(reason.workloads, 'workload')} may still run then, {reason.endless} without a time limit. "
            "Reserve fewer, choose another time, or stop some of them."
        )
    return f"Room for {reason.places} of {reason.count} times {reason.request} then. {rest}"


def _environment(reason: r.EnvironmentNotOffered, say: Say) -> str:
    if reason.removed is not None:
        why = say(reason.removed)
    elif reason.exists:
        why = f"A {reason.kind} of tenant {reason.tenant} cannot run in environment {reason.environment}."
    else:
        why = f"Environment {reason.environment} not found."
    return f"{why} Available for a {reason.kind}: {', '.join(reason.offered) or 'none'}."


def _files(reason: r.FilesNotHere, _say: Say) -> str:
    why = {
        r.FilesGap.SCRATCH: "it is scratch space, which is deleted when its attempt ends",
        r.FilesGap.DOCKER: "each node's Docker keeps its own content of it",
        r.FilesGap.ELSEWHERE: f"it is only at {', '.join(reason.sites) or 'sites elsewhere'}",
        r.FilesGap.POD: "it is part of each session and job, and is deleted when they end",
        r.FilesGap.NOT_MADE: "the cluster makes the storage when a session or job first needs it",
        r.FilesGap.NO_IMAGE: "the admin has not set kubernetes_files_image",
    }[reason.gap]
    what, next_step = (
        (f"the volume {reason.volume}", "Open a session that mounts it, and use its file browser.")
        if reason.volume
        else ("your home", "Start a session.")
    )
    return f"The files of {what} cannot be used here: {why}. {next_step}"


def _upload(reason: r.UploadTooLarge, _say: Say) -> str:
    where = f"the volume {reason.volume}" if reason.volume else "your home"
    return (
        f"No room: {format_memory(reason.requested_mib)} are to be stored in {where}, and the limits leave "
        f"{format_memory(reason.left_mib) if reason.left_mib else 'nothing'}. Delete files that you do not need; the "
        "space is counted again within ten minutes."
    )


TEXTS: Texts = {
    r.FilesNotHere: _files,
    r.UploadTooLarge: _upload,
    r.EnvironmentNotOffered: _environment,
    r.NoSuchAttempt: lambda reason, _: (
        f"{reason.workload_id} has no attempt{' yet' if reason.attempt is None else f' {reason.attempt}'}."
    ),
    r.NoGpus: "No node has a GPU that takes work. Request none.",
    r.GpuModelNotFound: "No GPU of the model {model} here. Available: {models}.",
    r.TooManyGpus: "Too many GPUs: {requested} requested, and no node has more than {most}. Request {most} or fewer.",
    r.TooMuchGpuMemory: (
        "Not enough GPU memory: {requested_mib} requested, and the largest GPU has {max_mib}. Request {max_mib} or "
        "less."
    ),
    r.RequestTooLarge: lambda reason, say: (
        f"Request too large: {reason.request}. With everything free: "
        f"{' '.join(say(one) for one in reason.shortfalls)} Request less."
    ),
    r.SiteNotFound: "No site {site} has nodes for members of {tenant}. Choose one of {sites}.",
    r.VolumeAtNoSite: lambda reason, _: (
        f"No site has the volume{'s' if len(reason.volumes) > 1 else ''} {', '.join(reason.volumes)}, of those that "
        f"were requested and that members of {reason.tenant} may use. Choose another volume or site."
    ),
    r.NoSiteForTenant: (
        "No site with nodes is open to members of {tenant}. Ask an admin to open a site to the tenant."
    ),
    r.TooFewNodes: (
        "Too few nodes: {requested} requested at once, and {nodes} could run {request}. Request fewer nodes."
    ),
    r.UserQuotaTooSmall: _user_quota,
    r.QuotaTooSmall: _quota,
    r.QuotaLimitTooSmall: _limit,
    r.TooManyQueued: _queued,
    r.StorageQuotaExceeded: _storage,
    r.TooManyWorkloads: _too_many,
    r.MountsNotSupported: (
        "{volume}: nothing is mounted here, as workloads are processes of this machine. Leave @{target} out and use "
        "~/volumes/{name}."
    ),
    r.ReservationTooLarge: (
        "All nodes together have room for {room} of {count} times {request}. Reserve fewer, or less for each."
    ),
    r.ReservationBlocked: _blocked,
    r.ReservationCollides: "No room would be left for reservations that were made before. Choose another time.",
    r.TimeLimitBeyondMaxAge: (
        "Time limit too long: {requested_s} requested, and sessions here may run for {max_age_s}. Request less time."
    ),
    r.MaxAgeReached: "A session here may run for {max_age_s}. Save your work and start a new one afterwards.",
    r.RoomReserved: "Its room is reserved for others from {starts_at} on.",
    r.GpuHoursLimit: lambda reason, _: (
        f"The quota of GPU-hours leaves {format_duration(reason.left_s)} for it this month."
        if reason.left_s
        else "The quota of GPU-hours of this month is used up. Release its GPU to continue without one."
    ),
    r.NothingToExtend: "It has no time limit, so there is nothing to extend.",
    r.NoGpuToRelease: lambda reason, _: (
        "It has no GPU." if reason.is_session else "Only sessions can continue without their GPU. Stop it instead."
    ),
    r.EnvironmentNeedsGpu: "Environment {environment} needs a GPU. Stop the session instead.",
    r.ReservationRefused: "From {starts_at} until {ends_at}: {cause}",
}
