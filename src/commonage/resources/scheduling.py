"""The forms of tenants, roles on the platform, priority classes, sites and prices."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from commonage.domain.permissions import Role, RoleBinding, SubjectKind
from commonage.domain.sites import Site, SitePolicy
from commonage.domain.tenants import Bounds, PriorityClass, Quota, Tenant
from commonage.domain.usage import Prices
from commonage.resources.fields import DevicesMilli, Entry, Form, MibOrZero, MilliOrZero, NotNegative, SecondsOrZero
from commonage.resources.idle import MAX_AGE, IdleEntry, idle_rule

Count = Annotated[int, Field(ge=0, le=1_000_000_000)]
Hours = Annotated[float, Field(ge=0, le=1_000_000_000, allow_inf_nan=False)]


class BoundsEntry(Entry):
    """A bound on each resource; a missing one is unbounded."""

    cpus: MilliOrZero | None = Field(None, description="CPU cores, like 64.")
    memory: MibOrZero | None = Field(None, description="Memory, like 256GiB.")
    gpus: DevicesMilli | None = Field(None, description="GPUs, like 4 or 2.5.")
    vram: MibOrZero | None = Field(None, description="VRAM, like 96GiB.")
    running: Count | None = Field(None, description="Workloads with an allocation.")
    queued: Count | None = Field(None, description="Workloads that wait for an allocation or are held.")
    storage: MibOrZero | None = Field(None, description="Disk space of homes and volumes, like 2TiB.")
    gpu_hours_month: Hours | None = Field(None, description="GPU hours in a calendar month.")

    def bounds(self) -> Bounds:
        gpu_s = None if self.gpu_hours_month is None else round(self.gpu_hours_month * 3600)
        return Bounds(self.cpus, self.memory, self.gpus, self.vram, self.running, self.queued, self.storage, gpu_s)

    def only(self, *allowed: str) -> str | None:
        """The first bound that is set and not allowed."""
        return next((name for name, bound in self if bound is not None and name not in allowed), None)


BoundsByName = dict[Annotated[str, Field(min_length=1, max_length=128)], BoundsEntry]
_LENDABLE = ("cpus", "memory", "gpus", "vram")
_OF_MODEL = ("gpus", "vram", "running", "gpu_hours_month")
_OF_ENVIRONMENT = (*_LENDABLE, "running", "queued", "gpu_hours_month")
SubjectName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._:/@+-]{0,127}$")]


class BindingEntry(Entry):
    """A role for one user, or for all users of one group, of JupyterHub."""

    user: SubjectName | None = Field(None, description="A user. Give either a user or a group.")
    group: SubjectName | None = Field(None, description="A group of JupyterHub.")
    role: str

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.user is None) == (self.group is None):
            raise ValueError("a role is for a user or for a group: set one of `user` and `group`")
        return self

    def binding(self) -> RoleBinding:
        kind = SubjectKind.USER if self.user is not None else SubjectKind.GROUP
        return RoleBinding(kind, self.user or self.group or "", Role(self.role))


class MemberEntry(BindingEntry):
    """A role in a tenant, for one user or for all users of one group, of JupyterHub."""

    role: Literal["viewer", "member", "teacher", "manager"] = Field(description="The role in the tenant.")


class TenantEntry(Form):
    """A lab, course or customer that shares the nodes."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._:/@+-]{0,127}$")] = Field(
        description="Name of the tenant, and of its group in JupyterHub."
    )
    title: Annotated[str, Field(max_length=128)] = Field("", description="Name as it is shown.")
    weight: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] = Field(
        1.0, description="Fair share of busy nodes, relative to the weights of other tenants."
    )
    nominal: BoundsEntry = Field(BoundsEntry(), description="The tenant's own quota.")
    borrowing: BoundsEntry = Field(BoundsEntry(), description="Maximum that it may borrow beyond its quota.")
    lending: BoundsEntry = Field(
        BoundsEntry(), description="Maximum of its unused quota that other tenants may borrow."
    )
    per_user: BoundsEntry = Field(BoundsEntry(), description="Maximum that one member may use.")
    per_environment: BoundsByName = Field(
        default_factory=dict,
        max_length=1000,
        description="Maximum that all members may use in an environment, by name.",
    )
    per_model: BoundsByName = Field(
        default_factory=dict, max_length=1000, description="Maximum that all members may use of a GPU model, by name."
    )
    sites: tuple[str, ...] = Field(
        (), description="Sites that its members may use. Empty: all, except those of other tenants."
    )
    site_policy: SitePolicy | None = Field(
        None, description="Chooses among several sites that could start a workload. Default: the setting `site_policy`."
    )
    environments: tuple[str, ...] = Field((), description="Environments that its members may use. Empty: all.")
    max_workloads: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Maximum number of live jobs and services. Default: the setting `max_workloads_per_tenant`."
    )
    own_packages: bool = Field(
        True, description="Whether packages that members install in a session are kept in their homes, and come back."
    )
    members: tuple[MemberEntry, ...] = Field((), description="Roles in the tenant, each with `user` or `group`.")
    idle: IdleEntry = Field(
        IdleEntry(), description="Rule for its idle sessions. The rule of an environment comes first."
    )
    max_age: SecondsOrZero | None = Field(None, description=MAX_AGE)

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
            self.name,
            self.title,
            self.weight,
            quota,
            self.sites,
            self.environments,
            self.max_workloads,
            members,
            self.site_policy,
            idle_rule(self.idle, self.max_age),
            self.own_packages,
        )


class PlatformRoleEntry(Form):
    """A role in all tenants and on the platform. Admins of JupyterHub are admins without it."""

    name: Annotated[str, Field(pattern="^(operator|admin)$")] = Field(description="The role: `operator` or `admin`.")
    users: tuple[SubjectName, ...] = Field((), max_length=10_000, description="Users that have it.")
    groups: tuple[SubjectName, ...] = Field((), max_length=10_000, description="Groups of JupyterHub that have it.")

    def bindings(self) -> tuple[RoleBinding, ...]:
        role = Role(self.name)
        return (
            *(RoleBinding(SubjectKind.USER, one, role) for one in self.users),
            *(RoleBinding(SubjectKind.GROUP, one, role) for one in self.groups),
        )


class PriorityClassEntry(Form):
    """A named priority that workloads may request."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$")] = Field(
        description="Name of the class. The name of a built-in class replaces it."
    )
    priority: Annotated[int, Field(ge=-100, le=100)] = Field(description="Higher is scheduled first.")
    preemptible: bool = Field(False, description="Whether workloads of other classes may evict its workloads.")
    for_admins: bool | None = Field(
        None, description="Whether only admins may request it. Default: true for a priority above 0."
    )

    def priority_class(self) -> PriorityClass:
        """The class in the form of the domain. A priority above 0 is for admins by default."""
        for_admins = self.priority > 0 if self.for_admins is None else self.for_admins
        return PriorityClass(self.name, self.priority, self.preemptible, for_admins)


class SiteEntry(Form):
    """A place with one local engine."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")] = Field(description="Name of the site.")
    title: Annotated[str, Field(max_length=128)] = Field("", description="Name as it is shown.")
    price_per_gpu_h: NotNegative = Field(
        0.0, description="Price of a GPU hour, compared by the site policy `cheapest`."
    )
    order: Annotated[int, Field(ge=-1000, le=1000)] = Field(0, description="Sites with a lower number are preferred.")
    tenants: tuple[str, ...] = Field((), description="Tenants whose members may use it. Empty: all, it is shared.")

    def site(self) -> Site:
        return Site(self.name, self.title, self.price_per_gpu_h, self.order, self.tenants)


class PricesEntry(Form):
    """Prices for the usage of workloads. With 0 no cost is shown."""

    name: Annotated[str, Field(pattern="^default$")] = Field("default", description="Always `default`.")
    gpu_gib_hour: NotNegative = Field(0.0, description="Price of 1 GiB of VRAM, allocated for an hour.")
    cpu_hour: NotNegative = Field(0.0, description="Price of a core, allocated for an hour.")
    memory_gib_hour: NotNegative = Field(0.0, description="Price of 1 GiB of memory, allocated for an hour.")
    currency: Annotated[str, Field(max_length=12)] = Field("", description="Currency as it is shown, like EUR.")

    def prices(self) -> Prices:
        return Prices(self.gpu_gib_hour, self.cpu_hour, self.memory_gib_hour, self.currency)
