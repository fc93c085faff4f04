"""Environments and volumes of the catalogue, and the options for a new workload."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from commonage.wire.reasons import ReasonOut
from commonage.wire.types import Name, Strict


class EnvironmentOut(BaseModel):
    """A catalogue entry and its state."""

    name: str
    title: str
    description: str
    kinds: list[str]
    requirements: list[str]
    state: str
    reason: ReasonOut | None
    progress: float | None
    image: str | None = Field(None, description="Its image, unless it is a Python environment.")
    tenant: str | None = Field(None, description="Only members of this tenant may use it; null: everyone.")
    needs_gpu: bool = Field(False, description="It requires a GPU.")
    vram_mib: int = Field(0, description="The least VRAM it requires, in MiB.")


class EnvironmentList(BaseModel):
    """The environments of the catalogue."""

    items: list[EnvironmentOut]


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
    writers: Literal["everybody", "managers"] = Field(
        "everybody", description="Users who may mount it read-write: all who may use it, or managers of a tenant."
    )
    used_mib: int | None = Field(
        None, description="Disk usage of the caller's folders in it, if it has such; null before it is measured."
    )
    always: bool = Field(description="It is mounted in every workload without a request.")
    size_mib: int | None = Field(description="Its size limit; null for no limit.")
    in_memory: bool = Field(description="Its content is in memory and counts as memory of the workload.")
    tenants: list[str] = Field(description="The caller's tenants that may use it.")
    place: str = Field(description="Mount path in the workload.")
    bounded_on: list[str] = Field(
        default_factory=list, description="Nodes that enforce its size; empty if it has no size limit."
    )
    unbounded_on: list[str] = Field(default_factory=list, description="Nodes that do not enforce its size.")
    sites: list[str] | None = Field(
        None, description="Sites where it is, of those that you may see; null: all. Workloads that use it run there."
    )
    notes: list[ReasonOut] = Field(description="Limitations on this installation.")


class HomeOut(BaseModel):
    """The caller's home folder, which all of the caller's workloads at a site share; of several sites the largest."""

    used_mib: int
    quota_mib: int | None = Field(description="Quota; null for none.")
    over: bool = Field(description="It exceeds its quota.")
    enforced: bool = Field(description="Whether the file system enforces the quota.")
    site: str = Field("", description="Site of the home; empty for the control plane's own.")
    measured_at: float
    text: str


class VolumeList(BaseModel):
    """The volumes that the caller may mount."""

    items: list[VolumeOut]
    home: HomeOut | None = Field(None, description="Null until the first measurement; measured every ten minutes.")


class SizeChoice(BaseModel):
    """A GPU share that can be requested, and whether it could start now."""

    gpus: str
    title: str
    free_now: bool
    why_not: ReasonOut | None


class TenantChoice(BaseModel):
    """A tenant for which the user may submit workloads."""

    name: str
    title: str


class LaunchOptions(BaseModel):
    """The options for a new workload of the user, and the resources that are free now."""

    environments: list[EnvironmentOut]
    gpu_choices: list[SizeChoice]
    models: list[str]
    max_cpus_milli: int
    max_memory_mib: int
    max_vram_mib: int
    free_cpus_milli: int
    free_memory_mib: int
    simulated_gpus: bool
    tenants: list[TenantChoice] = Field(
        default_factory=list, description="Tenants for which the user may submit workloads."
    )
    volumes: list[VolumeOut] = Field(default_factory=list, description="Volumes that the user may mount.")
    priorities: list[str] = Field(
        default_factory=list, description="Names of the priority classes that the user may request."
    )
    notices: list[ReasonOut] = Field(
        default_factory=list, description="Sessions of the user that ended with their node, and similar notices."
    )


class LaunchQuery(Strict):
    """Selects the user."""

    user: Name | None = Field(None, description="The options of this user; for admins and the hub. Default: yourself.")
    group: list[Name] = Field(default_factory=list, description="Groups of that user; repeat the parameter.")
