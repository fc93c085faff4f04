"""Tenants and reservations."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from commonage.wire.queries import Instant, Name
from commonage.wire.workloads import LabelName, LabelValue, Mib, PlainText, ReasonOut, RequestOut, Strict

When = Instant | Annotated[PlainText, Field(min_length=1, max_length=64)]


class BoundsOut(BaseModel):
    """A bound on each resource; null: none."""

    cpus_milli: int | None
    memory_mib: int | None
    gpu_milli: int | None = Field(description="Thousandths of GPUs.")
    vram_mib: int | None


class AmountsOut(BaseModel):
    """An amount of each resource."""

    cpus_milli: int
    memory_mib: int
    gpu_milli: int = Field(description="Thousandths of GPUs.")
    vram_mib: int


class TenantOut(BaseModel):
    """A tenant, what is its own, what it holds and what waits."""

    name: str
    title: str
    weight: float = Field(description="Its part of a crowded cluster, beside those of the others.")
    member: bool = Field(description="Whether you are one of its members.")
    sites: list[str] = Field(description="Those its members may use; all if empty.")
    environments: list[str] = Field(description="Likewise.")
    nominal: BoundsOut = Field(description="Its own: what it holds within that nobody takes away.")
    borrowing: BoundsOut = Field(description="What it may hold beyond that while others leave theirs unused.")
    lending: BoundsOut = Field(description="What of its own others may borrow at most.")
    per_user: BoundsOut = Field(description="What each member may hold.")
    held: AmountsOut
    borrowed: AmountsOut
    lent: AmountsOut
    running: int = Field(description="Workloads that hold something.")
    waiting: int = Field(description="Workloads in the queue.")
    debt_s: float = Field(
        description="What its members used lately, fading, in seconds of the whole cluster: who owes less comes first."
    )


class TenantList(BaseModel):
    """Tenants, in the order of the settings."""

    items: list[TenantOut]


class ReservationIn(Strict):
    """Room for a tenant in a window of time. Resources are written as for a workload.

    A time is unix seconds or text: `2026-11-24 14:00` in `time_zone`, `16:00` on the same day, `now`, or with a zone of
    its own, `2026-11-24T14:00+01:00`.
    """

    tenant: Name
    starts_at: When
    ends_at: When
    time_zone: Annotated[PlainText, Field(min_length=1, max_length=64)] = Field(
        "UTC", description="Where the times are read off the wall: `Europe/Berlin`, `UTC`, `+01:00`."
    )
    every: Literal["day", "week"] | None = Field(None, description="Again every day or week, up to `last_day`.")
    last_day: Annotated[PlainText, Field(max_length=10)] | None = Field(
        None, description="The last day on which a repetition may begin.", examples=["2027-02-12"]
    )
    count: int = Field(1, ge=1, le=10_000, description="For so many workloads at once.")
    cpus: str | float | None = Field(None, description="Cores for each.")
    memory_mib: Mib | None = Field(None, description="Memory for each, in MiB.")
    gpus: str | float | None = Field(None, description="GPU for each: GPUs, a part of one, or VRAM.", examples=["4GiB"])
    on: dict[LabelName, LabelValue] = Field(default_factory=dict, max_length=16)
    title: Annotated[PlainText, Field(max_length=128)] = ""
    owner: Name | None = Field(None, description="For one member alone.")


class ReservationOut(BaseModel):
    """A reservation that is not over. Instants are unix seconds."""

    id: str
    tenant: str
    title: str
    starts_at: float
    ends_at: float
    count: int
    request: RequestOut
    owner: str | None
    by: str = Field(description="Who made it.")
    reason: ReasonOut | None = Field(None, description="Why not all of it is kept as things stand; null if it is.")


class ReservationList(BaseModel):
    """By their beginning."""

    items: list[ReservationOut]


class ReservedOut(BaseModel):
    """What was made. `reason`: why, as things stand now, not all of it can be kept; null if it can."""

    items: list[ReservationOut]
    reason: ReasonOut | None
