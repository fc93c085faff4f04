"""Texts of `commonage.domain.reasons.notes`."""

from __future__ import annotations

from commonage.domain.reasons import notes as r
from commonage.domain.reasons.nodes import SiteUnreachable
from commonage.domain.requests import format_duration, format_memory
from commonage.messages.template import Say, Texts, count, moment
from commonage.messages.waiting import amount, number, scoped

_IF_LOST = {
    r.Fate.SESSION_RESTARTS: "If the node is lost, the session is started again elsewhere.",
    r.Fate.SESSION_ENDS: "If the node is lost, the session ends.",
    r.Fate.REQUEUED: "If the node is lost, it queues again.",
    r.Fate.ENDS: "If the node is lost, it is lost too.",
}
_AT_DEADLINE = {
    r.Fate.SESSION_RESTARTS: "Then the session is started again elsewhere. Save your work: its kernels end.",
    r.Fate.SESSION_ENDS: "Then the session ends. Save your work, and start it again elsewhere.",
    r.Fate.REQUEUED: "Then it queues again and starts elsewhere.",
    r.Fate.ENDS: "Then it is stopped, as it was submitted without requeue.",
}
STORAGE_GAPS = {
    r.StorageGap.NO_PROJECT_QUOTAS: "the file system has no project quotas, or is mounted without them",
    r.StorageGap.NOT_PERMITTED: "the server may not set them, because it does not run as root",
}
_SAVE = "Results computed there may be wrong: save what you can."


def _session(name: str) -> str:
    return f"Your session {name}" if name else "Your session"


def _submitted(reason: r.Submitted, _say: Say) -> str:
    many = f"{reason.count} workloads, each with " if reason.count > 1 else ""
    return f"Submitted: {many}{reason.request}."


def _quota(reason: r.QuotaUse, _say: Say) -> str:
    who, limit = scoped(reason.scope, reason.name, reason.tenant), amount(reason.resource, reason.limit)
    used, left = number(reason.resource, reason.used), number(reason.resource, reason.remains)
    borrow = ", and more may be borrowed" if reason.may_borrow else ""
    resets = "" if reason.resets_at is None else f" until {moment(reason.resets_at)}"
    return f"{who[0].upper()}{who[1:]} uses {used} of {limit}: {left} left{resets}{borrow}."


def _home(reason: r.HomeUsed, _say: Say) -> str:
    where = f" at site {reason.site}" if reason.site else ""
    used = f"Your home{where} uses {format_memory(reason.used_mib)}"
    if reason.quota_mib is None:
        return f"{used}."
    how = "enforced by the file system" if reason.is_enforced else "measured, not enforced"
    limit = f"the limit is {format_memory(reason.quota_mib)} ({how})"
    if reason.used_mib > reason.quota_mib:
        return f"{used}, {limit}. Delete files that you do not need."
    return f"{used}; {limit}."


def _not_enforced(reason: r.StorageNotEnforced, _say: Say) -> str:
    return (
        f"Storage quotas are not enforced on its disk: {STORAGE_GAPS[reason.gap]}. Above a quota, new work is refused."
    )


def _over_share(reason: r.OverGpuShareWarning, _say: Say) -> str:
    used = f"{format_memory(reason.used_mib)} of GPU memory on GPU {reason.gpu}"
    share = (
        f"more than its share of {format_memory(reason.share_mib)}" if reason.share_mib else "of which it has no share"
    )
    follows = {
        r.OverGpuShareFollows.STOP: f"It is stopped in {format_duration(reason.left_s)} unless it frees that memory.",
        r.OverGpuShareFollows.STOP_WHEN_NEEDED: "It is stopped as soon as another workload needs the memory.",
        r.OverGpuShareFollows.NOTHING: "It is not stopped, but other workloads on the GPU may run out of memory.",
    }[reason.follows]
    return f"It has held {used}, {share}, for {format_duration(reason.lasted_s)}. {follows}"


def _gpu_unused(reason: r.GpuUnused, _say: Say) -> str:
    others = count(reason.others, "other user") if reason.waiting else count(reason.others, "user")
    names = [*reason.waiting, *([others] if reason.others else [])]
    who = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    verb = "waits" if len(names) == 1 and reason.others <= 1 else "wait"
    return (
        f"Its GPU {reason.gpu} has been unused for {format_duration(reason.unused_s)}, and {who} {verb} for one. "
        "Release the GPU if you do not need it: the session starts again without it, with the same files."
    )


def _node_state(reason: r.NodeStateChanged, say: Say) -> str:
    return " ".join([f"Node {reason.node} is {reason.state}.", *map(say, reason.causes)])


def _undecided(reason: r.NodeUndecided, say: Say) -> str:
    if isinstance(reason.cause, SiteUnreachable):
        return say(reason.cause)
    since = "" if reason.silent_s is None else f" for {format_duration(reason.silent_s)}"
    runs = "" if reason.workloads is None else f" and may still run {count(reason.workloads, 'workload')}"
    return f"Node {reason.node} has not answered{since}{runs}. {say(reason.cause)}"


def _must_be_empty(reason: r.NodeMustBeEmpty, _say: Say) -> str:
    by = "" if reason.leave_by_at is None else f" by {moment(reason.leave_by_at)}"
    fate = "" if reason.fate is None else f" {_AT_DEADLINE[reason.fate]}"
    left = format_duration(reason.left_s)
    return f"Node {reason.node} is drained by {reason.by} and must be empty{by}, in {left}.{fate}"


def _price(reason: r.PoolNodeAdded | r.PoolNodeRemoved) -> str:
    if not (reason.price_per_h or reason.price_before_per_h):
        return ""
    return f" The pool costs {reason.price_per_h:.2f} an hour; before it was {reason.price_before_per_h:.2f}."


def _serves(reason: r.PoolServesQueue, _say: Say) -> str:
    return f"{count(reason.workloads, 'queued workload')} would start on {count(reason.nodes, 'more node')}."


def _coming(reason: r.PoolNodesPending, _say: Say) -> str:
    return f"{count(reason.nodes, 'node')} for queued workloads {'is' if reason.nodes == 1 else 'are'} being added."


def _at_maximum(reason: r.PoolAtMaximum, _say: Say) -> str:
    still = (
        f", and {reason.leaving} of them {'is' if reason.leaving == 1 else 'are'} being removed"
        if reason.leaving
        else ""
    )
    return f"Workloads wait, but the pool has its maximum of {count(reason.maximum, 'node')}{still}."


def _gpu(reason: r.GpuFault | r.GpuRecovered | r.GpuMissing) -> str:
    held = ", which it holds," if reason.is_held else ""
    return f"GPU {reason.gpu} ({reason.model}) of {reason.node}{held}"


def unattributed(reason: r.UnattributedGpuMemory) -> str:
    """`2 GiB of VRAM are held by python3 (process 4711), which no workload started`."""
    named = [f"{one.name or 'a process'}{f' (process {one.pid})' if one.pid else ''}" for one in reason.processes]
    more = [f"{reason.more} more"] if reason.more else []
    held = f"{format_memory(reason.used_mib)} of VRAM are" if reason.used_mib is not None else "VRAM is"
    return f"{held} held by {', '.join([*named, *more])}, which no workload started"


def _reservation(one: r.ReservationInfo) -> str:
    whom = f"{one.user} of {one.tenant}" if one.user else one.tenant
    title = f" ({one.title})" if one.title else ""
    return (
        f"{one.count} times {one.request} for {whom}, from {moment(one.starts_at)} until {moment(one.ends_at)}{title}"
    )


TEXTS: Texts = {
    r.Submitted: _submitted,
    r.CommandStarted: lambda reason, _: (
        f"{reason.by} runs {repr(reason.program) if reason.program else 'a shell'} in {reason.workload}."
    ),
    r.SessionOpened: lambda reason, _: f"{reason.by} opened this session in the browser.",
    r.ServiceOpened: lambda reason, _: f"{reason.by} opened this service in the browser.",
    r.ServiceAnswers: lambda reason, _: f"The service answers at {reason.path}.",
    r.ServiceNotAnswering: lambda reason, _: (
        f"The service does not answer at {reason.path}: {reason.why}. It keeps running. See its log, or stop it."
    ),
    r.OverGpuShareWarning: _over_share,
    r.GpuUnused: _gpu_unused,
    r.ActivityUnknown: "Its activity cannot be measured, so it counts as active.",
    r.HomeUsed: _home,
    r.StorageNotEnforced: _not_enforced,
    r.QuotaUse: _quota,
    r.NewerReason: lambda reason, _: (
        f"{reason.reason}: a site agent of a newer version reports this. Upgrade the server to read it."
    ),
    r.GpuWarning: lambda reason, _: f"{reason.detail[:1].upper()}{reason.detail[1:].rstrip('.')}.",
    r.RestartedAs: "Started again as {workload_id}.",
    r.RestartOf: (
        "Started again to replace {workload_id}. {cause} Saved files are kept; kernels and their variables are lost."
    ),
    r.RestartFailed: "It could not be started again. {cause}",
    r.RestartedTooOften: "It is not started again: it ended with its node {times} times in a row.",
    r.SessionNodeFaulty: lambda reason, say: f"{_session(reason.name)}: {say(reason.cause)}",
    r.SessionWarned: lambda reason, say: f"{_session(reason.name)}: {say(reason.cause)}",
    r.SessionRestarted: lambda reason, say: (
        f"{_session(reason.name)} was started again. {say(reason.cause)} Unsaved work is lost."
    ),
    r.SessionEnded: lambda reason, say: (
        f"{_session(reason.name)} ended. {say(reason.cause)}"
        f"{' It is being started again.' if reason.is_restarting else ''}"
    ),
    r.NodeStateChanged: _node_state,
    r.NodeNotResponding: lambda reason, _: (
        f"Node {reason.node} has not answered for {format_duration(reason.silent_s)}. {_IF_LOST[reason.fate]}"
    ),
    r.NodeUndecided: _undecided,
    r.NodeHasFault: lambda reason, _: (
        f"Node {reason.node} is faulty, and an admin has to repair it. {_IF_LOST[reason.fate]}"
    ),
    r.NodeMustBeEmpty: _must_be_empty,
    r.SiteTokenCreated: "{by} created a token to join as site {site}, valid until {expires_at}.",
    r.SiteJoined: "A machine joined as site {site}.",
    r.SiteRevoked: "{by} revoked site {site}. It can join again with a new token.",
    r.SiteRemoved: "{by} removed site {site}.",
    r.NodeTokenCreated: "{by} created a token for nodes to join site {site}, valid until {expires_at}.",
    r.NodeTokensRevoked: "{by} revoked all tokens for nodes to join site {site}.",
    r.PoolNodeAdded: lambda reason, say: f"Node {reason.node} was requested. {say(reason.cause)}{_price(reason)}",
    r.PoolNodeRemoved: lambda reason, say: f"Node {reason.node} was given back. {say(reason.cause)}{_price(reason)}",
    r.PoolBelowMinimum: "The pool has fewer nodes than its minimum of {minimum}.",
    r.PoolAboveMaximum: "The pool has more nodes than its maximum of {maximum}.",
    r.PoolServesQueue: _serves,
    r.PoolNodesPending: _coming,
    r.PoolAtMaximum: _at_maximum,
    r.PoolNodesLackGpus: (
        "No node is added: {node}, the newest of the pool, has none of the {gpus} GPUs that the pool declares. Install "
        "the GPU driver and the device plugin or DRA driver on its nodes, or correct `gpus` of the pool."
    ),
    r.PoolWaits: "Workloads wait, but not for {wait_s} yet.",
    r.PoolNodesIdle: "Idle for {idle_s}.",
    r.PoolIdle: "No workload waits for the pool.",
    r.PoolNodeFailed: "It failed at the cloud.",
    r.PoolNodeDidNotJoin: "It did not join within {join_s}.",
    r.PoolNodeLost: lambda reason, say: " ".join(["It was lost.", *map(say, reason.causes)]),
    r.PoolNodeForgotten: "It was removed from the site.",
    r.PoolNodeEmpty: "It was drained by {by}, and is empty.",
    r.GpuFault: lambda reason, say: (
        f"{_gpu(reason)} has a fault. {' '.join(map(say, reason.faults))} {_SAVE}"
        if reason.is_held
        else f"{_gpu(reason)} takes no new work. {' '.join(map(say, reason.faults))}"
    ),
    r.GpuRecovered: lambda reason, _: (
        f"{_gpu(reason)} has no fault any more." if reason.is_held else f"{_gpu(reason)} takes work again."
    ),
    r.GpuMissing: lambda reason, _: f"{_gpu(reason)} is missing.{f' {_SAVE}' if reason.is_held else ''}",
    r.UnattributedGpuMemory: lambda reason, _: f"GPU {reason.gpu} ({reason.model}): {unattributed(reason)}.",
    r.UnattributedGpuMemoryFreed: "GPU {gpu} ({model}): no unattributed process holds VRAM any more.",
    r.ReservationMade: lambda reason, _: (
        f"{reason.by} reserved {_reservation(reason.reservation)}"
        f"{f', and {reason.more} more like it' if reason.more else ''}."
    ),
    r.ReservationRemoved: lambda reason, _: (
        f"{reason.by} removed reservation {reason.reservation.id}: {_reservation(reason.reservation)}."
    ),
    r.ReservationReassigned: lambda reason, _: (
        f"{reason.by} handed over reservation {reason.reservation.id}: {_reservation(reason.reservation)}."
    ),
    r.ReservationOver: lambda reason, _: (
        f"Reservation {reason.reservation.id} is over: {_reservation(reason.reservation)}."
    ),
    r.EnvironmentBuilt: lambda reason, _: f"Environment {reason.environment} was built for {reason.by}.",
    r.EnvironmentNotRegistered: lambda reason, _: (
        f"Environment {reason.environment} was built, but cannot be registered: {reason.error.rstrip('.')}. "
        "Fix the cause, and build it again."
    ),
    r.ImageRegistered: lambda reason, _: (
        f"{reason.by} {'replaced' if reason.is_replacement else 'registered'} image {reason.image}: {reason.digest}."
    ),
    r.ImageReassigned: lambda reason, _: (
        f"{reason.by} handed over image {reason.image} to {reason.owner}"
        f"{f' in tenant {reason.tenant}' if reason.tenant else ''}."
    ),
    r.ImageUnregistered: "{by} removed image {image}.",
}
