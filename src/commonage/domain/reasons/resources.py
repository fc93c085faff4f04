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
    """The tenant may no longer use the site. What runs there continues."""

    tenant: str
    site: str


class EnvironmentNotAllowed(Reason):
    """The tenant may no longer use the environment. What was submitted continues."""

    tenant: str
    environment: str


class QuotaBelowAllocation(Reason):
    """The new quota is lower than what the tenant holds. What runs continues, new work waits."""

    tenant: str
    resource: str
    quota: int
    allocated: int


class EnvironmentGone(Reason):
    """The environment is deleted. What runs in it continues, what waits for it cannot start."""

    environment: str


class EnvironmentDiffers(Reason):
    """The environment is changed. What runs continues, what starts later gets the new one."""

    environment: str


class VolumeGone(Reason):
    """The volume is deleted. What has it continues, what waits with it fails to start."""

    volume: str


class VolumeDiffers(Reason):
    """The volume is changed. What runs continues, what starts later gets the new one."""

    volume: str


class NodePoolGone(Reason):
    """The node pool is deleted: its nodes are removed when they are idle."""

    node_pool: str


class SiteGone(Reason):
    """The site is no longer declared. What runs there continues."""

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
