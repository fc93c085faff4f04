"""Tenants with their quotas, and reservations."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from commonage.wire.reasons import ReasonOut
from commonage.wire.types import Cpus, Gpus, Instant, LabelName, LabelValue, Mib, Name, PlainText, Strict
from commonage.wire.workloads import RequestOut

TimeOrText = Instant | Annotated[PlainText, Field(min_length=1, max_length=64)]


class BoundsOut(BaseModel):
    """A limit for each resource; null: no limit."""

    cpus_milli: int | None
    memory_mib: int | None
    gpu_milli: int | None = Field(description="Thousandths of GPUs.")
    vram_mib: int | None
    running: int | None = Field(description="Workloads with an allocation.")
    queued: int | None = Field(description="Workloads that are queued or held.")
    storage_mib: int | None
    gpu_s_month: int | None = Field(description="GPU-seconds in a calendar month.")


class AmountsOut(BaseModel):
    """An amount of each resource."""

    cpus_milli: int
    memory_mib: int
    gpu_milli: int = Field(description="Thousandths of GPUs.")
    vram_mib: int


class TenantOut(BaseModel):
    """A tenant with its quotas, allocated resources and queue."""

    name: str
    title: str
    weight: float = Field(description="Its fair share of a full cluster, relative to the weights of other tenants.")
    member: bool = Field(description="Whether you are one of its members.")
    sites: list[str] = Field(description="Sites that its members may use; all if empty.")
    site_policy: str | None = Field(
        None, description="Chooses among several free sites; null: the setting `site_policy`."
    )
    environments: list[str] = Field(description="Environments that its members may use; all if empty.")
    nominal: BoundsOut = Field(
        description="Its nominal quota: workloads within it are not preempted for other tenants."
    )
    borrowing: BoundsOut = Field(description="How much it may borrow from the unused quota of other tenants.")
    lending: BoundsOut = Field(description="How much of its unused quota other tenants may borrow.")
    per_user: BoundsOut = Field(description="Limit for each member.")
    per_environment: list[tuple[str, BoundsOut]] = Field(description="Limits for all members together, by environment.")
    per_model: list[tuple[str, BoundsOut]] = Field(
        description="Limits for all members together on GPUs whose model contains the name."
    )
    quotas: list[ReasonOut] = Field(description="Room that each bound leaves to you, as `QuotaUse`.")
    allocated: AmountsOut
    borrowed: AmountsOut
    lent: AmountsOut
    running: int = Field(description="Number of workloads with an allocation.")
    waiting: int = Field(description="Number of queued workloads.")
    debt_s: float = Field(
        description="Recent usage with decay, in seconds of the whole cluster. Tenants with less are served first."
    )


class QuotaOut(BaseModel):
    """The room that one bound of a quota leaves. CPUs, GPUs in thousandths, memory in MiB, GPU-hours in GPU-seconds."""

    tenant: str
    scope: Literal["tenant", "user", "environment", "model"]
    name: str = Field(description="The tenant, user, environment or GPU model.")
    resource: str = Field(
        description="`cpu`, `memory`, `gpu`, `gpu-memory`, `running`, `queued`, `storage` or `gpu-hours`."
    )
    used: int
    limit: int
    remains: int
    percent: int = Field(description="The used part of the limit, at most 100. A notice is given at 80 and 100.")
    may_borrow: bool = Field(description="Whether more may be borrowed of what other tenants leave unused.")
    resets_at: float | None = Field(description="When counting begins again; null if it does not.")
    text: str


class QuotaList(BaseModel):
    """Bounds with their use, by tenant."""

    items: list[QuotaOut]


class QuotaQuery(Strict):
    tenant: Name | None = Field(None, description="Only of this tenant.")
    user: Name | None = Field(None, description="The quotas of this user. For admins.")


class TenantList(BaseModel):
    """Tenants, in the order of the settings."""

    items: list[TenantOut]


class ReservationIn(Strict):
    """A reservation for a tenant in a window of time. Resources have the syntax of a workload's.

    A time is unix seconds or text: `2026-11-24 14:00` in `time_zone`, `16:00` on the same day, `now`, or with its own
    time zone, `2026-11-24T14:00+01:00`.
    """

    tenant: Name
    starts_at: TimeOrText
    ends_at: TimeOrText
    time_zone: Annotated[PlainText, Field(min_length=1, max_length=64)] = Field(
        "UTC", description="Time zone of times that contain none: `Europe/Berlin`, `UTC`, `+01:00`."
    )
    every: Literal["day", "week"] | None = Field(None, description="Repeat every day or week, until `last_day`.")
    last_day: Annotated[PlainText, Field(max_length=10)] | None = Field(
        None, description="The last day on which a repetition may start.", examples=["2027-02-12"]
    )
    count: int = Field(1, ge=1, le=10_000, description="Number of concurrent workloads.")
    cpus: Cpus | None = Field(None, description="CPUs (cores) for each workload.")
    memory_mib: Mib | None = Field(None, description="Memory for each workload, in MiB.")
    gpus: Gpus | None = Field(
        None, description="GPU request for each workload: GPUs, a fraction of one, or VRAM.", examples=["4GiB"]
    )
    on: dict[LabelName, LabelValue] = Field(default_factory=dict, max_length=16)
    title: Annotated[PlainText, Field(max_length=128)] = ""
    owner: Name | None = Field(None, description="Only for this member of the tenant.")


class ReservationOut(BaseModel):
    """A current or future reservation. Instants are unix seconds."""

    id: str
    tenant: str
    title: str
    starts_at: float
    ends_at: float
    count: int
    request: RequestOut
    owner: str | None
    by: str = Field(description="The user who created it.")
    class_name: str = Field("", description="The class that it belongs to; empty: none.")
    reason: ReasonOut | None = Field(
        None, description="Why a part of it cannot be provided at present; null if all can."
    )


class ReservationList(BaseModel):
    """Reservations, by their start."""

    items: list[ReservationOut]


class ReservedOut(BaseModel):
    """The created reservations. `reason`: why a part cannot be provided at present; null if all can."""

    items: list[ReservationOut]
    reason: ReasonOut | None
