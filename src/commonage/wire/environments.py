"""Environments of the catalogue, and the options for a new workload."""

from __future__ import annotations

from pydantic import BaseModel, Field

from commonage.wire.reasons import ReasonOut
from commonage.wire.types import Name, Strict
from commonage.wire.volumes import VolumeOut


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
