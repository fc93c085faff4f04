"""Changes of platform resources, and how they affect workloads and people."""

from __future__ import annotations

from commonage.domain.reasons.base import Reason


class ResourceCreated(Reason):
    """A resource was declared. `by` is a person, or the source that manages it."""

    by: str
    kind: str
    name: str


class ResourceChanged(Reason):
    """A resource was changed. `fields` are those that changed."""

    by: str
    kind: str
    name: str
    fields: tuple[str, ...]


class ResourceDeleted(Reason):
    """A resource was deleted."""

    by: str
    kind: str
    name: str


class ResourcesImported(Reason):
    """Resources of the settings file were taken over into the database, which has them from now on."""

    kind: str
    count: int


class TenantGone(Reason):
    """The tenant is deleted: its work continues without quota, and its members submit to other tenants."""

    tenant: str


class PlatformRoleDiffers(Reason):
    """Users or groups get or lose a role on the platform."""

    role: str


class RolesDiffer(Reason):
    """Users or groups get, lose or change roles in the tenant."""

    tenant: str


class SiteNotAllowed(Reason):
    """The tenant may no longer use the site. Workloads that run there continue."""

    tenant: str
    site: str


class EnvironmentNotAllowed(Reason):
    """The tenant may no longer use the environment. Submitted workloads continue."""

    tenant: str
    environment: str


class QuotaBelowAllocation(Reason):
    """The new quota is lower than the tenant's allocations. Running workloads continue, and new ones wait."""

    tenant: str
    resource: str
    quota: int
    allocated: int


class EnvironmentGone(Reason):
    """The environment is deleted. Workloads that run in it continue, and queued ones cannot start."""

    environment: str


class EnvironmentDiffers(Reason):
    """The environment is changed. Running workloads continue, and later ones get the new one."""

    environment: str


class VolumeGone(Reason):
    """The volume is deleted. Workloads that mount it continue, and queued ones fail to start."""

    volume: str


class VolumeDiffers(Reason):
    """The volume is changed. Running workloads continue, and later ones get the new one."""

    volume: str


class NodePoolGone(Reason):
    """The node pool is deleted: its nodes are removed when they are idle."""

    node_pool: str


class SiteGone(Reason):
    """The site is no longer declared. Workloads that run there continue."""

    site: str


class GitCommitApplied(Reason):
    """A commit of a git source is in force. `message` counts the changes."""

    source: str
    commit: str
    message: str


class GitCommitRefused(Reason):
    """A commit of a git source is invalid, and the resources are as before. `message` says why."""

    source: str
    commit: str
    message: str


class GitUnreachable(Reason):
    """The repository of a git source cannot be read. The resources are as before."""

    source: str
    commit: str
    message: str
