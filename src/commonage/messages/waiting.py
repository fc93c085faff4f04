"""Texts of `commonage.domain.reasons.waiting`."""

from __future__ import annotations

from commonage.domain.reasons import waiting as r
from commonage.domain.requests import format_cpus, format_duration, format_memory
from commonage.messages.template import Say, Text, Texts, count, moment

_MAX_OTHERS = 3


# --- held ---------------------------------------------------------------------------------------------------------


def _dependencies(reason: r.DependencyNotMet, _say: Say) -> str:
    named = ", ".join(f"{one.id} ({one.name}), which is {one.state}" for one in reason.others[:_MAX_OTHERS])
    more = len(reason.others) - _MAX_OTHERS
    return f"Waiting for {named}{f', and {more} more' if more > 0 else ''}."


def _coming(reason: r.NodeRequested, _say: Say) -> str:
    asked = f"A node of the pool {reason.pool} was requested"
    if reason.expected_in_s is None:
        return f"{asked} {format_duration(reason.requested_s or 0)} ago, and is overdue."
    by = "in about" if reason.is_measured else "within"
    return f"{asked}, expected {by} {format_duration(reason.expected_in_s)}."


# --- quotas -------------------------------------------------------------------------------------------------------


def number(resource: r.Resource, amount: int) -> str:
    """Without its noun: `2` of CPUs, GPUs and workloads, `4 GiB` of memory, `1.5` of GPU-hours."""
    if resource is r.Resource.GPU:
        return f"{amount / 1000:g}"
    if resource is r.Resource.GPU_HOURS:
        return f"{round(amount / 3600, 2):g}"
    if resource in (r.Resource.RUNNING, r.Resource.QUEUED):
        return str(amount)
    return format_cpus(amount) if resource is r.Resource.CPU else format_memory(amount)


_NOUNS = {
    r.Resource.CPU: "CPUs",
    r.Resource.MEMORY: "of memory",
    r.Resource.GPU: "GPUs",
    r.Resource.GPU_MEMORY: "of GPU memory",
    r.Resource.RUNNING: "running workloads",
    r.Resource.QUEUED: "queued workloads",
    r.Resource.STORAGE: "of storage",
    r.Resource.GPU_HOURS: "GPU-hours this month",
}


def amount(resource: r.Resource, value: int) -> str:
    """`8 GPUs`, `2 CPUs`, `4 GiB of memory`, `6 GiB of GPU memory`."""
    return f"{number(resource, value)} {_NOUNS[resource]}"


def _user_quota(reason: r.UserQuotaExceeded, _say: Say) -> str:
    used, limit = number(reason.resource, reason.used), amount(reason.resource, reason.limit)
    return (
        f"Quota exceeded: {reason.user} uses {used} of the {limit} that one member of tenant {reason.tenant} may use. "
        f"It starts when other work of {reason.user} ends."
    )


def _quota(reason: r.QuotaExceeded, _say: Say) -> str:
    used, own = number(reason.resource, reason.used), amount(reason.resource, reason.quota)
    uses = f"Quota exceeded: tenant {reason.tenant} uses {used} of its quota of {own}"
    if reason.borrowing == 0:
        return f"{uses}, and may not borrow. It starts when other work of the tenant ends."
    limit = "" if reason.borrowing is None else f" {number(reason.resource, reason.borrowing)}"
    unused = number(reason.resource, reason.unused)
    return (
        f"{uses}, and may borrow{limit} that other tenants do not use: {unused} unused. It starts when work of the "
        "tenant ends or other tenants use less."
    )


def _lent(reason: r.QuotaLent, _say: Say) -> str:
    used, own = number(reason.resource, reason.used), amount(reason.resource, reason.quota)
    return (
        f"Tenant {reason.tenant} uses {used} of its {own}, and other tenants borrowed the rest: "
        f"{number(reason.resource, reason.left)} left. It gets what they return next."
    )


def scoped(scope: r.QuotaScope, name: str, tenant: str) -> str:
    """`tenant lab`, `user ann in tenant lab`, `tenant lab in environment torch`, `tenant lab on GPUs of model A100`."""
    return {
        r.QuotaScope.TENANT: f"tenant {tenant}",
        r.QuotaScope.USER: f"user {name} in tenant {tenant}",
        r.QuotaScope.ENVIRONMENT: f"tenant {tenant} in environment {name}",
        r.QuotaScope.MODEL: f"tenant {tenant} on GPUs of model {name}",
    }[scope]


def _limit(reason: r.QuotaLimitReached, _say: Say) -> str:
    used, limit = number(reason.resource, reason.used), amount(reason.resource, reason.limit)
    whose = f"of {reason.name}" if reason.scope is r.QuotaScope.USER else "of the tenant"
    where = " there" if reason.scope in (r.QuotaScope.ENVIRONMENT, r.QuotaScope.MODEL) else ""
    return (
        f"Quota exceeded: {scoped(reason.scope, reason.name, reason.tenant)} uses {used} of {limit}. It starts when "
        f"other work {whose}{where} ends."
    )


def _spent(reason: r.GpuHoursSpent, _say: Say) -> str:
    used, limit = number(r.Resource.GPU_HOURS, reason.used_s), amount(r.Resource.GPU_HOURS, reason.limit_s)
    return (
        f"GPU-hours spent: {scoped(reason.scope, reason.name, reason.tenant)} has used {used} of {limit}. Work that "
        f"runs continues. It can start from {moment(reason.resets_at)}, or without a GPU."
    )


# --- what a node lacks --------------------------------------------------------------------------------------------


def _on(reason: r.NodeShortfall) -> str:
    """` on 3 of 8 nodes`; nothing where it is one node, which the sentence names."""
    if reason.nodes == 1:
        return ""
    return (
        f" on all {reason.total} nodes"
        if reason.nodes == reason.total
        else f" on {reason.nodes} of {reason.total} nodes"
    )


def _most(reason: r.NodeShortfall) -> str:
    return "" if reason.nodes == 1 else "at most "


def _model(model: str | None, noun: str = "GPU") -> str:
    return noun if model is None else f"{model.replace('|', ' or ')} {noun}"


def _not_ready(state: str) -> Text:
    def said(reason: r.NodeDraining | r.NodeFaulty | r.NodeUnavailable, _say: Say) -> str:
        why = f" (drained by {reason.by})" if isinstance(reason, r.NodeDraining) and reason.by else ""
        if reason.nodes == 1:
            return f"Node {reason.node} is {state}{why}."
        return f"{reason.nodes} of {reason.total} nodes are {state}: {reason.node}{why} and {reason.nodes - 1} more."

    return said


def _excluded(reason: r.SiteExcluded, _say: Say) -> str:
    if reason.nodes == 1:
        return f"Node {reason.node} is at a site where the workload may not run."
    return f"{reason.nodes} of {reason.total} nodes are at sites where the workload may not run."


def _disk(reason: r.InsufficientDisk, say: Say) -> str:
    return f"Disk nearly full{_on(reason)}, as on {reason.node}. {say(reason.cause)}"


def _labels(reason: r.NodeLabelsMismatch, _say: Say) -> str:
    wanted = ", ".join(f"{key}={value}" for key, value in reason.labels)
    if reason.nodes == 1:
        return f"Node {reason.node} lacks the label{'s' if len(reason.labels) > 1 else ''} {wanted}."
    return f"Requested labels are missing{_on(reason)}; {reason.node} lacks {wanted}."


def _no_gpu(reason: r.NoMatchingGpu, _say: Say) -> str:
    if reason.nodes == 1:
        return f"Node {reason.node} has no healthy {_model(reason.model)}."
    return f"No healthy {_model(reason.model)}{_on(reason)}."


def _gpus(reason: r.InsufficientGpus, _say: Say) -> str:
    return (
        f"Not enough free {_model(reason.model)}s{_on(reason)}: {reason.requested} requested, {_most(reason)}"
        f"{reason.free} of {reason.present} wholly free on {reason.node}."
    )


def _numa(reason: r.InsufficientGpusOnNumaNode, _say: Say) -> str:
    return (
        f"Not enough free {_model(reason.model)}s on one NUMA node{_on(reason)}: {reason.requested} requested, "
        f"{reason.free} free on {reason.node}, at most {reason.together} of them on one NUMA node."
    )


def _gpu_memory(reason: r.InsufficientGpuMemory, _say: Say) -> str:
    of_model = "" if reason.model is None else f" of {_model(reason.model, 'GPUs')}"
    requested, free = format_memory(reason.requested_mib), format_memory(reason.free_mib)
    return (
        f"Not enough GPU memory{of_model}{_on(reason)}: {requested} requested, {_most(reason)}{free} of "
        f"{format_memory(reason.total_mib)} free on GPU {reason.gpu} of {reason.node}."
    )


def _gpu_compute(reason: r.InsufficientGpuCompute, _say: Say) -> str:
    return (
        f"Not enough GPU compute{_on(reason)}: {reason.requested_milli / 10:g}% requested, {_most(reason)}"
        f"{reason.free_milli / 10:g}% free on GPU {reason.gpu} of {reason.node}."
    )


def _cpu(reason: r.InsufficientCpu, _say: Say) -> str:
    return (
        f"Not enough CPUs{_on(reason)}: {format_cpus(reason.requested_cpus_milli)} requested, {_most(reason)}"
        f"{format_cpus(reason.free_cpus_milli)} of {format_cpus(reason.total_cpus_milli)} free on {reason.node}."
    )


def _memory(reason: r.InsufficientMemory, _say: Say) -> str:
    return (
        f"Not enough memory{_on(reason)}: {format_memory(reason.requested_mib)} requested, {_most(reason)}"
        f"{format_memory(reason.free_mib)} of {format_memory(reason.total_mib)} free on {reason.node}."
    )


# --- what is free and yet not available ---------------------------------------------------------------------------


def resources(some: r.Resources) -> str:
    """`2 whole GPUs`, `8 GiB of GPU memory`, `2 CPUs and 4 GiB of memory`."""
    if some.gpus:
        return count(some.gpus, "whole GPU")
    if some.gpu_memory_mib:
        return f"{format_memory(some.gpu_memory_mib)} of GPU memory"
    cpus = "1 CPU" if some.cpus_milli == 1000 else f"{format_cpus(some.cpus_milli)} CPUs"
    return f"{cpus} and {format_memory(some.memory_mib)} of memory"


def _free(reason: r.FreeButKept) -> str:
    """`8 GiB of GPU memory on n1 and 2 more nodes`."""
    what = resources(reason.free)
    more = reason.nodes - 1
    others = f" and {count(more, 'more node')}" if more else ""
    return f"{what} on {reason.node}{others}"


def _tenant_quota(reason: r.TenantQuotaExceededThere, _say: Say) -> str:
    return f"Quota of tenant {reason.tenant} exceeded: {_free(reason)} free, which is more than the quota leaves."


def _reserved(reason: r.ReservedForOthers, _say: Say) -> str:
    whom = reason.user or reason.tenant
    title = f" ({reason.title})" if reason.title else ""
    when = ""
    if reason.begins_in_s is not None:
        when = f"; the reservation begins in {format_duration(reason.begins_in_s)}"
    elif reason.ends_in_s is not None:
        when = f"; the reservation ends in {format_duration(reason.ends_in_s)}"
    return f"{_free(reason)} free, but reserved for {whom or 'another tenant'}{title}{when}."


def _kept(reason: r.KeptForQueue, _say: Say) -> str:
    within = "" if reason.for_s is None else f" within {format_duration(reason.for_s)}"
    return f"{_free(reason)} free, but kept for workloads ahead, except for workloads that end{within or ' in time'}."


# --- when it starts -----------------------------------------------------------------------------------------------


def _starts_now(reason: r.StartsNow, _say: Say) -> str:
    return f"Starts now on {reason.node}{f' with {reason.gpus}' if reason.gpus else ''}."


def _no_limit(reason: r.NoTimeLimitAhead, _say: Say) -> str:
    whose = f"a {reason.kind} of {reason.owner}" if reason.owner else "what it waits for"
    return f"Start unknown: {whose} has no time limit."


TEXTS: Texts = {
    r.DependencyNotMet: _dependencies,
    r.EnvironmentNotFound: (
        "Environment {environment} is not in the catalogue any more. Have it registered again, or use another one."
    ),
    r.EnvironmentNotInImage: (
        "Image {image} has no environment {environment} any more; it has: {environments}. Have it registered again, or "
        "use another one."
    ),
    r.ImageRemoved: "Image {image} was removed by {by} on {removed_at}. Have it pushed again, or use another one.",
    r.RetryScheduled: "Attempt {attempt} {state}. {cause} Retry {retry} of {retries} in {pause_s}.",
    r.InQueue: "Queued.",
    r.Requeued: "Queued again. {cause}",
    r.ResourcesFree: "Resources have just become free. It starts with the next pass of the scheduler.",
    r.NoNodes: "No node has reported yet.",
    r.GangIncomplete: "{size} members start together, and {queued} of them are queued.",
    r.InsufficientNodes: lambda reason, _: (
        f"{reason.size} members start together, and {count(reason.nodes, 'node')} "
        f"{'has' if reason.nodes == 1 else 'have'} room for one."
    ),
    r.NoCandidateSite: (
        "No site is open to this workload: none has nodes, was requested, has its volumes and may be used by members "
        "of {tenant}."
    ),
    r.SiteHasRoom: "Room now.",
    r.SiteUnavailable: "The site cannot be reached.",
    r.SiteWithoutNodes: "No node has reported yet.",
    r.SiteNotRequested: "Not requested.",
    r.VolumeNotAtSite: "The volume {volume} is not there.",
    r.SiteOfOtherTenants: "Not open to members of {tenant}.",
    r.SiteExcluded: _excluded,
    r.InsufficientNodesAtSite: "{size} members start together at one site, and no site has {size} free nodes.",
    r.NodeRequested: _coming,
    r.UserQuotaExceeded: _user_quota,
    r.QuotaExceeded: _quota,
    r.QuotaLent: _lent,
    r.QuotaLimitReached: _limit,
    r.GpuHoursSpent: _spent,
    r.NodeDraining: _not_ready("draining"),
    r.NodeFaulty: _not_ready("faulty"),
    r.NodeUnavailable: _not_ready("lost"),
    r.InsufficientDisk: _disk,
    r.NodeLabelsMismatch: _labels,
    r.NoMatchingGpu: _no_gpu,
    r.GpuIsPartitioned: lambda reason, _: (
        f"The {_model(reason.model)}s on {reason.node} are split into MIG instances. Request a part of a GPU."
    ),
    r.InsufficientGpus: _gpus,
    r.InsufficientGpusOnNumaNode: _numa,
    r.InsufficientGpuMemory: _gpu_memory,
    r.InsufficientGpuCompute: _gpu_compute,
    r.InsufficientCpu: _cpu,
    r.InsufficientMemory: _memory,
    r.TenantQuotaExceededThere: _tenant_quota,
    r.ReservedForOthers: _reserved,
    r.ReservedForHeadOfQueue: lambda reason, _: (
        f"{_free(reason)} free, but kept for a workload ahead until enough has ended there."
    ),
    r.PreemptingForOthers: lambda reason, _: (
        f"{_free(reason)} free, but other work is being preempted there for a workload ahead."
    ),
    r.PromisedToOthers: lambda reason, _: (
        f"{_free(reason)} free, but a workload ahead starts there within {format_duration(reason.starts_in_s)}."
    ),
    r.KeptForQueue: _kept,
    r.StartsNow: _starts_now,
    r.EstimateFromTimeLimits: "Based on the time limits of running workloads and of those ahead.",
    r.EstimateFromHistory: "Based on how long similar workloads usually take.",
    r.EstimateFromFewRuns: "Based on the few similar workloads that ended before.",
    r.EstimateFromQuotaReset: "The GPU-hours of the quota are available again then; others may be ahead.",
    r.EstimateFromTotalWork: "Based on all work ahead, spread over all nodes.",
    r.NoTimeLimitAhead: _no_limit,
    r.NoNodeLargeEnough: "Start unknown: no schedulable node is large enough.",
    r.TooManyAhead: "Start unknown: more than {ahead} workloads are ahead.",
    r.NoRoomFromNextEnds: "Start unknown: the workloads that end next do not make enough room.",
    r.PlacementRetryScheduled: "Queues again in {pause_s}. {cause}",
}
