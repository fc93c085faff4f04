"""The settings of scheduling: tenants and quotas, priorities, fair share, placement; and prices."""

from __future__ import annotations

from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from commonage.domain.permissions import Role, RoleBinding, SubjectKind
from commonage.domain.tenants import Bounds, PriorityClass, Quota, Tenant
from commonage.domain.usage import Prices
from commonage.scheduler.policies import registry
from commonage.scheduler.queue.sites import SitePolicy
from commonage.server.settings.fields import (
    UNIQUE_NAMES,
    Entry,
    MibOrZero,
    MilliOrZero,
    NotNegative,
    Seconds,
    SecondsOrZero,
    setting,
)
from commonage.wire.hub import docs_page


def _devices(value: object) -> object:
    """Thousandths of GPUs for a number of GPUs, such as 2.5."""
    if value is None or isinstance(value, bool):
        return value
    try:
        devices = float(str(value))
    except ValueError:
        raise ValueError("not a number of GPUs; write it like 4 or 2.5") from None
    if not 0 <= devices <= 1_000_000:
        raise ValueError("not a number of GPUs from 0 to a million")
    return round(devices * 1000)


DevicesMilli = Annotated[int, BeforeValidator(_devices)]


Count = Annotated[int, Field(ge=0, le=1_000_000_000)]
Hours = Annotated[float, Field(ge=0, le=1_000_000_000, allow_inf_nan=False)]


class BoundsEntry(Entry):
    """A bound on each resource; None is unbounded."""

    cpus: MilliOrZero | None = None
    memory: MibOrZero | None = None
    gpus: DevicesMilli | None = None
    vram: MibOrZero | None = None
    running: Count | None = None
    queued: Count | None = None
    storage: MibOrZero | None = None
    gpu_hours_month: Hours | None = None

    def bounds(self) -> Bounds:
        gpu_s = None if self.gpu_hours_month is None else round(self.gpu_hours_month * 3600)
        return Bounds(self.cpus, self.memory, self.gpus, self.vram, self.running, self.queued, self.storage, gpu_s)

    def only(self, *allowed: str) -> str | None:
        """The first bound that is set and not allowed."""
        return next((name for name, bound in self if bound is not None and name not in allowed), None)


BoundsByName = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=128)], BoundsEntry],
    Field(default_factory=dict, max_length=1000),
]
_LENDABLE = ("cpus", "memory", "gpus", "vram")
_OF_MODEL = ("gpus", "vram", "running", "gpu_hours_month")
_OF_ENVIRONMENT = (*_LENDABLE, "running", "queued", "gpu_hours_month")


SubjectName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._:/@+-]{0,127}$")]


class _BindingEntry(Entry):
    """A role for one user, or for all users of one group, of JupyterHub."""

    user: SubjectName | None = None
    group: SubjectName | None = None
    role: str

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.user is None) == (self.group is None):
            raise ValueError("a role is for a user or for a group: set one of `user` and `group`")
        return self

    def binding(self) -> RoleBinding:
        kind = SubjectKind.USER if self.user is not None else SubjectKind.GROUP
        return RoleBinding(kind, self.user or self.group or "", Role(self.role))


class MemberEntry(_BindingEntry):
    role: Literal["viewer", "member", "teacher", "manager"]


class PlatformRoleEntry(_BindingEntry):
    role: Literal["operator", "admin"]


class TenantEntry(Entry):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._:/@+-]{0,127}$")]
    title: Annotated[str, Field(max_length=128)] = ""
    weight: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] = 1.0
    nominal: BoundsEntry = BoundsEntry()
    borrowing: BoundsEntry = BoundsEntry()
    lending: BoundsEntry = BoundsEntry()
    per_user: BoundsEntry = BoundsEntry()
    per_environment: Annotated[dict[str, BoundsEntry], Field(default_factory=dict, max_length=1000)]
    per_model: Annotated[
        dict[Annotated[str, Field(min_length=1)], BoundsEntry], Field(default_factory=dict, max_length=1000)
    ]
    sites: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    max_workloads: Annotated[int, Field(ge=0)] | None = None
    members: tuple[MemberEntry, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> TenantEntry:
        """Borrowing and lending are relative to the nominal quota, so it must be set."""
        for what in ("borrowing", "lending"):
            fixed = getattr(self, what).only(*_LENDABLE)
            if fixed is not None:
                raise ValueError(f"{what}.{fixed}: only {', '.join(_LENDABLE)} are lent")
            for resource, bound in getattr(self, what):
                own = getattr(self.nominal, resource)
                if bound is not None and own is None:
                    raise ValueError(f"{what}.{resource} is relative to nominal.{resource}, which is not set")
                if what == "lending" and bound is not None and bound > own:
                    raise ValueError(f"lending.{resource} is more than nominal.{resource}")
        for what, several, allowed in (
            ("per_environment", self.per_environment, _OF_ENVIRONMENT),
            ("per_model", self.per_model, _OF_MODEL),
        ):
            for name, entry in several.items():
                other = entry.only(*allowed)
                if other is not None:
                    raise ValueError(f"{what}.{name}.{other}: it bounds {', '.join(allowed)}")
        return self

    def tenant(self) -> Tenant:
        quota = Quota(
            self.nominal.bounds(),
            self.borrowing.bounds(),
            self.lending.bounds(),
            self.per_user.bounds(),
            tuple((name, entry.bounds()) for name, entry in self.per_environment.items()),
            tuple((name, entry.bounds()) for name, entry in self.per_model.items()),
        )
        members = tuple(entry.binding() for entry in self.members)
        return Tenant(
            self.name, self.title, self.weight, quota, self.sites, self.environments, self.max_workloads, members
        )


class PriorityClassEntry(Entry):
    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$")]
    priority: Annotated[int, Field(ge=-100, le=100)]
    preemptible: bool = False
    for_admins: bool | None = None

    def priority_class(self) -> PriorityClass:
        """The class in the form of the domain. A priority above 0 is for admins by default."""
        for_admins = self.priority > 0 if self.for_admins is None else self.for_admins
        return PriorityClass(self.name, self.priority, self.preemptible, for_admins)


def _time_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("no such time zone; write it like Europe/Berlin or UTC") from None
    return name


def _policy(name: str) -> str:
    if name not in registry.POLICIES:
        raise ValueError("no such policy")
    return name


class SchedulingSettings(BaseModel):
    tenants: Annotated[tuple[TenantEntry, ...], UNIQUE_NAMES] = setting(
        (), f"Tenants that share the nodes, each with a weight and a quota ({docs_page('operate/tenants')})."
    )
    quota_time_zone: Annotated[str, AfterValidator(_time_zone)] = setting(
        "UTC",
        "Time zone in which the calendar months of GPU-hour quotas begin.",
        "a name of the IANA database, like Europe/Berlin",
    )
    platform_roles: tuple[PlatformRoleEntry, ...] = setting(
        (),
        "Roles in all tenants, `operator` or `admin`, each for a `user` or a `group` of JupyterHub "
        f"({docs_page('operate/roles')}). Admins of JupyterHub are admins without an entry.",
    )
    priority_classes: Annotated[tuple[PriorityClassEntry, ...], UNIQUE_NAMES] = setting(
        (),
        "Priority classes in addition to `scavenger`, `low`, `normal`, `high` and `urgent`. A class with one of these "
        "names replaces it.",
    )
    policy: Annotated[str, AfterValidator(_policy)] = setting(
        registry.DEFAULT,
        "Placement policy: chooses among several places in which a workload fits.",
        ", ".join(registry.POLICIES),
    )
    site_policy: SitePolicy = setting(
        SitePolicy.FIRST_FREE,
        "Chooses among several sites that could start a workload now.",
        "first-free, least-used or cheapest",
    )
    half_life: Seconds = setting(
        7 * 86400,
        "Fair share: time after which past usage counts half. A shorter time forgets past usage sooner.",
        "a duration, like 7d",
    )
    entry_penalty: SecondsOrZero = setting(
        600,
        "Fair share: run time that is charged when a workload starts, so that many short workloads gain no advantage.",
    )
    age_credit: Annotated[NotNegative, Field(le=1000)] = setting(
        0.01,
        "Fair share: credit for an hour of waiting, in hours of usage of the whole cluster. Larger favours workloads "
        "that wait longer.",
        "a number from 0 to 1000",
    )
    guaranteed_runtime: SecondsOrZero = setting(600, "Time that a workload runs before it can be preempted.")
    head_of_queue_timeout: SecondsOrZero = setting(
        600,
        "How long the head of the queue may wait without a start estimate before a node is reserved for it.",
    )


class PriceSettings(BaseModel):
    """Prices for the usage of workloads. With 0 no cost is shown."""

    price_gpu_gib_hour: NotNegative = setting(0.0, "Price of 1 GiB of VRAM, allocated for an hour.")
    price_cpu_hour: NotNegative = setting(0.0, "Price of a core, allocated for an hour.")
    price_memory_gib_hour: NotNegative = setting(0.0, "Price of 1 GiB of memory, allocated for an hour.")
    currency: Annotated[str, Field(max_length=12)] = setting(
        "", "Currency of the prices, as it is shown.", "at most 12 characters, like EUR"
    )

    @property
    def prices(self) -> Prices:
        return Prices(
            gpu_gib_h=self.price_gpu_gib_hour,
            cpu_h=self.price_cpu_hour,
            memory_gib_h=self.price_memory_gib_hour,
            currency=self.currency,
        )
