"""Texts of `commonage.domain.reasons.resources`."""

from __future__ import annotations

from commonage.domain.reasons import resources as r
from commonage.domain.requests import format_cpus, format_memory
from commonage.messages.template import Say, Texts, count, sentence


def _amount(resource: str, amount: int) -> str:
    if resource == "gpu_milli":
        return f"{amount / 1000:g} GPUs"
    if resource == "cpus_milli":
        return f"{format_cpus(amount)} CPUs"
    return f"{format_memory(amount) if amount else '0 MiB'} of {'VRAM' if resource == 'vram_mib' else 'memory'}"


def _quota(reason: r.QuotaBelowAllocation, _say: Say) -> str:
    return (
        f"Tenant {reason.tenant} has {_amount(reason.resource, reason.allocated)} allocated, more than its new quota "
        f"of {_amount(reason.resource, reason.quota)}. Running work continues, and new work waits."
    )


TEXTS: Texts = {
    r.ResourceCreated: "{by} created {kind} {name}.",
    r.ResourceChanged: lambda reason, _: (
        f"{reason.by} changed {reason.kind} {reason.name}: {', '.join(reason.fields)}."
    ),
    r.ResourceDeleted: "{by} deleted {kind} {name}.",
    r.ResourcesImported: lambda reason, _: (
        f"The database took over {count(reason.count, 'resource')} of kind {reason.kind} from the settings file."
    ),
    r.TenantGone: (
        "Tenant {tenant} is deleted. Its workloads continue without a quota, and no workload can be submitted to it."
    ),
    r.RolesDiffer: "Roles in tenant {tenant} change.",
    r.PlatformRoleDiffers: "Other users have the role {role} on the platform.",
    r.SiteNotAllowed: "Tenant {tenant} may no longer use site {site}. Workloads that run there continue.",
    r.EnvironmentNotAllowed: (
        "Tenant {tenant} may no longer use environment {environment}. Submitted workloads continue."
    ),
    r.QuotaBelowAllocation: _quota,
    r.EnvironmentGone: (
        "Environment {environment} is deleted. Workloads that run in it continue, and queued ones cannot start."
    ),
    r.EnvironmentDiffers: (
        "Environment {environment} changes. Workloads that run in it continue, and queued ones start in the new one."
    ),
    r.VolumeGone: "Volume {volume} is deleted. Workloads that have it continue, and queued ones cannot start.",
    r.VolumeDiffers: "Volume {volume} changes. Workloads that have it continue, and queued ones get the new one.",
    r.NodePoolGone: "Node pool {node_pool} is deleted. Its nodes are removed when they are idle.",
    r.GitCommitApplied: lambda reason, _: (
        f"Commit {reason.commit[:12]} of {reason.source} is applied. {sentence(reason.message)}"
    ),
    r.GitCommitRefused: lambda reason, _: (
        f"Commit {reason.commit[:12]} of {reason.source} is refused, and the resources are as before. "
        f"{sentence(reason.message)}"
    ),
    r.GitUnreachable: lambda reason, _: (
        f"The repository of {reason.source} cannot be read, and the resources are as before. {sentence(reason.message)}"
    ),
    r.SiteGone: "Site {site} is no longer declared. Workloads that run there continue.",
}
