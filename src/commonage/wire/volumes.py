"""Volumes that workloads may mount, and the disk space of the user's home."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class VolumeOut(BaseModel):
    """A volume that the caller may mount."""

    name: str
    title: str
    description: str
    kind: Literal["folder", "docker", "scratch"] = Field(
        description="`folder`: the same on all nodes; `docker`: separate on each node; `scratch`: deleted with the "
        "attempt that uses it."
    )
    writable: bool = Field(description="It may be mounted read-write (`rw`).")
    always: bool = Field(description="It is mounted in every workload without a request.")
    size_mib: int | None = Field(description="Its size limit; null for no limit.")
    in_memory: bool = Field(description="Its content is in memory and counts as memory of the workload.")
    tenants: list[str] = Field(description="The caller's tenants that may use it.")
    place: str = Field(description="Mount path in the workload.")
    bounded_on: list[str] = Field(
        default_factory=list, description="Nodes that enforce its size; empty if it has no size limit."
    )
    unbounded_on: list[str] = Field(default_factory=list, description="Nodes that do not enforce its size.")
    notes: list[str] = Field(description="Limitations on this installation.")


class HomeOut(BaseModel):
    """The caller's home folder, which all of the caller's workloads share."""

    used_mib: int
    quota_mib: int | None = Field(description="Quota; null for none.")
    over: bool = Field(description="It exceeds its quota.")
    measured_at: float
    text: str


class VolumeList(BaseModel):
    """The volumes that the caller may mount."""

    items: list[VolumeOut]
    home: HomeOut | None = Field(None, description="Null until the first measurement; measured every ten minutes.")
