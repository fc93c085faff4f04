"""The tables of whose turn it is: tenants with their quotas, priority classes; and labels of nodes.

Fields of `settings`' table; `rules` makes of them what control and the planner go by.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from commonage.domain.errors import InvalidInput
from commonage.domain.requests import parse_labels
from commonage.domain.tenants import Bounds, PriorityClass, Quota, Tenant
from commonage.scheduler.policies import registry
from commonage.server.settings.types import MibOrNone, MilliOrNone

_OWN_LABELS = ("node", "site", "engine")  # those that every node has of itself


def _devices(value: object) -> object:
    """Thousandths of GPUs from a number of GPUs, 2.5 included."""
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


class BoundsEntry(BaseModel):
    """A bound on each resource; what is left out has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpus: MilliOrNone | None = None
    memory: MibOrNone | None = None
    gpus: DevicesMilli | None = None
    vram: MibOrNone | None = None

    def bounds(self) -> Bounds:
        """The same as the domain has it."""
        return Bounds(self.cpus, self.memory, self.gpus, self.vram)


class TenantEntry(BaseModel):
    """One `[[tenants]]` table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._:/@+-]{0,127}$")]
    title: Annotated[str, Field(max_length=128)] = ""
    weight: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] = 1.0
    nominal: BoundsEntry = BoundsEntry()
    borrowing: BoundsEntry = BoundsEntry()
    lending: BoundsEntry = BoundsEntry()
    per_user: BoundsEntry = BoundsEntry()
    sites: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    max_workloads: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _is_of_something(self) -> TenantEntry:
        """What is borrowed or lent is counted from the nominal quota, so there must be one."""
        for what in ("borrowing", "lending"):
            for resource, bound in getattr(self, what):
                own = getattr(self.nominal, resource)
                if bound is not None and own is None:
                    raise ValueError(f"{what}.{resource} is counted from nominal.{resource}, which is not there")
                if what == "lending" and bound is not None and bound > own:
                    raise ValueError(f"lending.{resource} is more than nominal.{resource}")
        return self

    def tenant(self) -> Tenant:
        """The same as the domain has it."""
        bounds = (self.nominal.bounds(), self.borrowing.bounds(), self.lending.bounds(), self.per_user.bounds())
        quota = Quota(*bounds)
        return Tenant(self.name, self.title, self.weight, quota, self.sites, self.environments, self.max_workloads)


class PriorityClassEntry(BaseModel):
    """One `[[priority_classes]]` table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$")]
    priority: Annotated[int, Field(ge=-100, le=100)]
    preemptible: bool = False
    for_admins: bool | None = None

    def priority_class(self) -> PriorityClass:
        """The same as the domain has it; what raises above 0 is for admins unless it says otherwise."""
        for_admins = self.priority > 0 if self.for_admins is None else self.for_admins
        return PriorityClass(self.name, self.priority, self.preemptible, for_admins)


Entry = TypeVar("Entry", TenantEntry, PriorityClassEntry)


def _once(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    names = [one.name for one in entries]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise ValueError(f"{doubled!r} stands there twice")
    return entries


def _labels(value: object) -> object:
    """`zone=basement,rack=7` of a variable as names with values; a file has a table."""
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=") for part in value.split(",") if part.strip()]
    if not all(equals for _, equals, _ in pairs):
        raise ValueError("not of the form zone=basement,rack=7")
    return {name.strip(): text.strip() for name, _, text in pairs}


def _known_labels(labels: dict[str, str]) -> dict[str, str]:
    try:
        found = dict(parse_labels(labels.items(), field="it"))
    except InvalidInput as error:
        raise ValueError(error.message) from error
    own = next((name for name in _OWN_LABELS if name in found), None)
    if own is not None:
        raise ValueError(f"{own} is a label that every node has of itself")
    return found


def _policy(name: str) -> str:
    if name not in registry.POLICIES:
        raise ValueError("there is no such policy")
    return name


Tenants = Annotated[tuple[TenantEntry, ...], AfterValidator(_once)]
PriorityClasses = Annotated[tuple[PriorityClassEntry, ...], AfterValidator(_once)]
Labels = Annotated[dict[str, str], BeforeValidator(_labels), AfterValidator(_known_labels)]
PolicyName = Annotated[str, AfterValidator(_policy)]
