"""Whose turn it is, as the site rules it: tenants with weights and quotas, reservations, classes of priority.

Declared by the admin; the planner reads them from its snapshot. What is measured and charged is not kept here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from commonage.domain.fleet import Lease
from commonage.domain.quantities import format_cpus, format_memory
from commonage.domain.requests import Request


@dataclass(frozen=True, slots=True)
class Amounts:
    """Resources in all, over any number of machines. cpus in thousandths, cards in thousandths, memory in MiB."""

    cpus_milli: int = 0
    memory_mib: int = 0
    gpu_milli: int = 0
    vram_mib: int = 0

    @classmethod
    def of(cls, lease: Lease) -> Self:
        """What a lease holds."""
        return cls(
            lease.cpus_milli,
            lease.memory_mib,
            sum(share.compute_milli for share in lease.shares),
            sum(share.memory_mib for share in lease.shares),
        )

    def plus(self, other: Amounts, sign: int = 1) -> Self:
        """The sum, or with sign -1 the difference, of each."""
        return type(self)(*(getattr(self, one.name) + sign * getattr(other, one.name) for one in fields(self)))

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
    """A bound on each resource, in the units of Amounts; None: no bound."""

    cpus_milli: int | None = None
    memory_mib: int | None = None
    gpu_milli: int | None = None
    vram_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may hold at once, in the words of the field.

    `nominal` is its own: what it holds within that, nobody takes away, and what others borrowed of it comes back by
    reclaim. Beyond it the tenant borrows what others leave unused, at most `borrowing`. Of its own unused nominal it
    lends at most `lending`. A resource without nominal bound is not counted. `per_user` bounds each member.
    """

    nominal: Bounds = Bounds()
    borrowing: Bounds = Bounds()
    lending: Bounds = Bounds()
    per_user: Bounds = Bounds()


@dataclass(frozen=True, slots=True)
class Tenant:
    """A lab, course or customer. `weight` is its part of a crowded fleet, beside those of the others.

    Members are the hub's group of the same name; the default tenant has everybody. `sites` and `environments`, where
    not empty, are those its members may use. `max_workloads` bounds its live jobs and services in place of the limit
    that holds for every tenant.
    """

    name: str
    title: str = ""
    weight: float = 1.0
    quota: Quota = Quota()
    sites: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    max_workloads: int | None = None


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A name for a priority. `for_admins`: nobody else may ask for it. `preemptible`: others may take its place."""

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
    """From `starts_at` until `ends_at` there is room for `count` times `request` for a tenant alone, or one `owner`.

    Nothing is placed into it that would not have ended by then. Whoever it is for gets the room by submitting.
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


@dataclass(frozen=True, slots=True)
class Rules:
    """All that the planner goes by. Durations in seconds.

    `half_life_s`: after so long past usage counts half. `entry_penalty_s`: whoever starts something is charged for so
    long at once. `age_credit`: how much of the whole fleet, held for an hour, an hour of waiting is worth.
    `guaranteed_s`: no attempt is preempted before it ran so long. `patience_s`: after so long the first that waits, and
    of which nobody can say when it starts, has a machine kept for it. `sites`: names in the order of preference, each
    with what a GPU costs there for an hour; `site_policy`: which of several sites that could start something does.
    """

    tenants: tuple[Tenant, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    policy: str = ""
    half_life_s: float = 7 * 86400.0
    entry_penalty_s: float = 600.0
    age_credit: float = 0.01
    guaranteed_s: float = 600.0
    patience_s: float = 600.0
    sites: tuple[tuple[str, float], ...] = ()
    site_policy: str = "first-free"

    def tenant(self, name: str) -> Tenant:
        """The tenant of that name; one without bounds where none was declared."""
        return next((one for one in self.tenants if one.name == name), Tenant(name))
