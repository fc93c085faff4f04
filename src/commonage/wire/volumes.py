"""Volumes: what data there is to have, and how much room one's home takes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class VolumeOut(BaseModel):
    """A volume that the caller may have."""

    name: str
    title: str
    description: str
    kind: Literal["folder", "docker", "scratch"] = Field(
        description="`folder`: the same on all nodes; `docker`: kept on each node; `scratch`: until the end of "
        "what uses it."
    )
    writable: bool = Field(description="It may be asked for `rw`.")
    always: bool = Field(description="Workloads get it unasked.")
    size_mib: int | None = Field(description="How much goes into it; null where nothing bounds it.")
    in_memory: bool = Field(description="What is in it counts as the workload's memory.")
    tenants: list[str] = Field(description="On whose account the caller may have it.")
    place: str = Field(description="Where a workload finds it.")
    bounded_on: list[str] = Field(
        default_factory=list, description="The nodes that hold it to its size; empty if it has none."
    )
    unbounded_on: list[str] = Field(
        default_factory=list, description="The nodes where more than its size goes into it."
    )
    notes: list[str] = Field(description="What does not hold on this installation.")


class HomeOut(BaseModel):
    """The caller's home. It is one folder, the same in everything that one runs."""

    used_mib: int
    quota_mib: int | None = Field(description="How much is allowed; null where nothing was set.")
    over: bool = Field(description="It holds more than is allowed.")
    measured_at: float
    text: str


class VolumeList(BaseModel):
    """What there is to have."""

    items: list[VolumeOut]
    home: HomeOut | None = Field(None, description="Null until it was measured, which happens every ten minutes.")
