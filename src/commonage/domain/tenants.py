"""The site's rules of scheduling: tenants with weights and quotas, reservations, priority classes.

Declared by the admin; the scheduler reads them from its snapshot. Measured and charged usage is kept elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Self

from commonage.domain.idle import NO_RULE, IdleRule
from commonage.domain.nodes import Allocation
from commonage.domain.permissions import RoleBinding
from commonage.domain.reasons.waiting import QuotaScope, Resource
from commonage.domain.requests import Request, format_cpus, format_memory
from commonage.domain.sites import Site, SitePolicy, SiteSet, only


@dataclass(frozen=True, slots=True)
class Amounts:
    """Total resources, over any number of nodes. CPUs in thousandths, GPUs in thousandths, memory in MiB."""

    cpus_milli: int = 0
    memory_mib: int = 0
    gpu_milli: int = 0
    vram_mib: int = 0

    @classmethod
    def of(cls, allocation: Allocation) -> Self:
        return cls(
            allocation.cpus_milli,
            allocation.memory_mib,
            sum(share.compute_milli for share in allocation.shares),
            sum(share.memory_mib for share in allocation.shares),
        )

    def plus(self, other: Amounts, sign: int = 1) -> Self:
        """The sum, or with sign -1 the difference, of each."""
        return type(self)(*(getattr(self, field.name) + sign * getattr(other, field.name) for field in fields(self)))

    def __str__(self) -> str:
        words = [
            f"{format_cpus(self.cpus_milli)} CPUs" if self.cpus_milli else "",
            f"{format_memory(self.memory_mib)} of memory" if self.memory_mib else "",
            f"{self.gpu_milli / 1000:g} GPUs" if self.gpu_milli else "",
            f"{format_memory(self.vram_mib)} of VRAM" if self.vram_mib else "",
        ]
        return ", ".join(word for word in words if word) or "nothing"


@dataclass(frozen=True, slots=True)
class Bounds:
    """A bound on each resource, in the units of Amounts; None: no bound.

    `running` and `queued` count workloads: those with an allocation, and those that wait for one or are held.
    `gpu_s_month` are GPU-seconds in a calendar month: the part of a GPU that is allocated, used or not, times seconds.
    """

    cpus_milli: int | None = None
    memory_mib: int | None = None
    gpu_milli: int | None = None
    vram_mib: int | None = None
    running: int | None = None
    queued: int | None = None
    storage_mib: int | None = None
    gpu_s_month: int | None = None


@dataclass(frozen=True, slots=True)
class Quota:
    """The bounds on what a tenant may hold at once.

    `nominal` is its own: allocations within it are never taken away, and borrowed parts are reclaimed from other
    tenants. Beyond it the tenant borrows unused quota of others, at most `borrowing`. Of its own unused nominal it
    lends at most `lending`. A resource without nominal bound is not counted. `per_user` bounds each member.

    Only the resources of `Amounts` are borrowed and lent; the other nominal bounds are fixed. `per_environment` bounds
    the sum of all members in an environment, `per_model` their sum on GPUs whose model contains the name.
    """

    nominal: Bounds = Bounds()
    borrowing: Bounds = Bounds()
    lending: Bounds = Bounds()
    per_user: Bounds = Bounds()
    per_environment: tuple[tuple[str, Bounds], ...] = ()
    per_model: tuple[tuple[str, Bounds], ...] = ()


@dataclass(frozen=True, slots=True)
class Tenant:
    """A lab, course or customer. `weight` is its part of crowded nodes, relative to the weights of the others.

    `members` adds roles to those that all have without a binding: users in the hub's group of the same name are
    members, and all users are members of the default tenant. `sites` and `environments`, if not empty, are those that
    may be used. `site_policy` None: the general one. `idle` is about its sessions. `max_workloads` replaces the general
    limit on live jobs and services. `own_packages`: packages that its members install in sessions are kept in their
    homes.
    """

    name: str
    title: str = ""
    weight: float = 1.0
    quota: Quota = Quota()
    sites: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    max_workloads: int | None = None
    members: tuple[RoleBinding, ...] = ()
    site_policy: SitePolicy | None = None
    idle: IdleRule = NO_RULE
    own_packages: bool = True


@dataclass(frozen=True, slots=True)
class QuotaNotice:
    """The newest notice about one bound: its use reached `level` percent in the period that began at `period_at`."""

    tenant: str
    scope: QuotaScope
    name: str
    resource: Resource
    level: int
    period_at: float
    at: float


def bounds_of(quota: Quota, tenant: str, owner: str, environment: str) -> Iterator[tuple[QuotaScope, str, Bounds]]:
    """(scope, name, bounds) of all bounds of a workload that do not depend on its node."""
    yield QuotaScope.TENANT, tenant, quota.nominal
    yield QuotaScope.USER, owner, quota.per_user
    yield from ((QuotaScope.ENVIRONMENT, name, found) for name, found in quota.per_environment if name == environment)


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """`for_admins`: only admins may request it. `preemptible`: others may evict its workloads."""

    name: str
    priority: int
    preemptible: bool = False
    for_admins: bool = False


PRIORITY_CLASSES = (
    PriorityClass("scavenger", -50, preemptible=True),
    PriorityClass("low", -10),
    PriorityClass("normal", 0),
    PriorityClass("high", 10, for_admins=True),
    PriorityClass("urgent", 50, for_admins=True),
)


@dataclass(frozen=True, slots=True)
class Reservation:
    """From `starts_at` until `ends_at`, room for `count` times `request` for one tenant, or only its member `owner`.

    Only workloads that end before it begins may use the room. Its owner uses the room by submitting. One with a
    `class_name` follows that class.
    """

    id: str
    tenant: str
    starts_at: float
    ends_at: float
    request: Request
    count: int = 1
    title: str = ""
    owner: str | None = None
    by: str = ""
    class_name: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of the scheduler. Durations in seconds.

    `half_life_s`: the time in which past usage decays by half. `entry_penalty_s`: each start is charged for this time
    at once. `age_credit`: the part of the whole cluster, held for an hour, that equals an hour of waiting.
    `guaranteed_s`: no attempt is preempted before it ran this long. `head_of_queue_timeout_s`: how long the head of the
    queue may wait without a start estimate before a node is reserved for it. `sites`: the declared ones, in the order
    of preference; `site_policy`: the choice among several sites that could start something, if the tenant has none.
    `volume_sites`: by volume, the sites where it is; none: all. `time_zone`: where the months of GPU-hours begin.
    """

    tenants: tuple[Tenant, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    policy: str = ""
    half_life_s: float = 7 * 86400.0
    entry_penalty_s: float = 600.0
    age_credit: float = 0.01
    guaranteed_s: float = 600.0
    head_of_queue_timeout_s: float = 600.0
    sites: tuple[Site, ...] = ()
    site_policy: SitePolicy = SitePolicy.FIRST_FREE
    volume_sites: tuple[tuple[str, tuple[str, ...]], ...] = ()
    time_zone: str = "UTC"

    def tenant(self, name: str) -> Tenant:
        """The tenant of that name; one without bounds if none was declared."""
        return next((tenant for tenant in self.tenants if tenant.name == name), Tenant(name))

    def sites_of(self, tenant: str) -> SiteSet:
        """The sites that a tenant may use: its own list, without the sites of other tenants."""
        others = sorted(site.name for site in self.sites if not site.is_for(tenant))
        return only(self.tenant(tenant).sites) & SiteSet(tuple(others), inverted=True)
