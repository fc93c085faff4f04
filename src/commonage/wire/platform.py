"""Nodes, environments, usage, and what this installation is."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from commonage.wire.devices import DeviceOut
from commonage.wire.volumes import VolumeOut
from commonage.wire.workloads import PlainText, ReasonOut, Strict

ScopeName = Literal[
    "custom:commonage:read", "custom:commonage:submit", "custom:commonage:admin", "custom:commonage:tokens"
]


class NodeOut(BaseModel):
    """A node."""

    name: str
    site: str
    engine: str
    state: str
    reason: str
    observed_at: float
    cpus_milli: int
    free_cpus_milli: int
    memory_mib: int
    free_memory_mib: int
    devices: list[DeviceOut]
    workloads: int = Field(description="Attempts that hold an allocation here.")
    labels: dict[str, str] = Field(default_factory=dict, description="What `on` of a workload may ask for.")
    notes: list[str]
    leave_by: float | None = Field(None, description="When all that still runs on it, as it is drained, must leave.")


class NodeList(BaseModel):
    """All nodes."""

    items: list[NodeOut]


class EnvironmentOut(BaseModel):
    """A catalogue entry and where it stands."""

    name: str
    title: str
    description: str
    kinds: list[str]
    requirements: list[str]
    state: str
    reason: ReasonOut | None
    progress: float | None
    image: str | None = Field(None, description="The image that is run, where it is one.")
    tenant: str | None = Field(None, description="Whose members may use it; null: everybody.")
    needs_gpu: bool = Field(False, description="Nothing runs in it without a GPU.")
    vram_mib: int = Field(0, description="The least VRAM it runs with.")


class EnvironmentList(BaseModel):
    """The catalogue."""

    items: list[EnvironmentOut]


class UsageRow(BaseModel):
    """Held resources times hours, and what they cost (0 where no prices are set)."""

    subject: str
    workloads: int
    gpu_gib_h: float
    gpu_h: float
    cpu_h: float
    memory_gib_h: float
    cost: float


class UsageOut(BaseModel):
    """Usage within [since, until)."""

    since: float
    until: float
    by: str
    currency: str
    items: list[UsageRow]


class SizeChoice(BaseModel):
    """A share of a GPU on offer, and whether it could start now."""

    gpus: str
    title: str
    free_now: bool
    why_not: ReasonOut | None


class TenantChoice(BaseModel):
    """A tenant on whose account work may be."""

    name: str
    title: str


class LaunchOptions(BaseModel):
    """What the caller may have, and what is free now."""

    environments: list[EnvironmentOut]
    gpu_choices: list[SizeChoice]
    models: list[str]
    max_cpus_milli: int
    max_memory_mib: int
    max_vram_mib: int
    free_cpus_milli: int
    free_memory_mib: int
    simulated_gpus: bool
    tenants: list[TenantChoice] = Field(default_factory=list, description="On whose account it may be.")
    volumes: list[VolumeOut] = Field(default_factory=list, description="Data that one may ask for.")
    priorities: list[str] = Field(default_factory=list, description="Names of the priority classes one may ask for.")
    notices: list[ReasonOut] = Field(
        default_factory=list, description="What became of one's sessions whose node went away."
    )


class InfoOut(BaseModel):
    """This installation, and who you are to it."""

    name: str
    version: str
    user: str
    admin: bool
    scopes: list[str]
    simulated_gpus: bool
    engines: list[str]
    counts: dict[str, int] = Field(description="Workloads that have not ended, by state.")
    queue_length: int
    notes: list[str]


class TokenIn(Strict):
    """A token for yourself (or, for admins, for a user)."""

    note: Annotated[PlainText, Field(max_length=200)] = "made by the API"
    expires_s: int | None = Field(
        None, gt=0, le=2**31 - 1, description="Seconds; as many as are allowed if left out, see `expires_at`."
    )
    scopes: list[ScopeName] | None = Field(
        None, max_length=10, description="Of those you hold; to see and to submit if left out."
    )
    user: Annotated[PlainText, Field(min_length=1, max_length=128)] | None = Field(
        None, description="Whose; for admins only. Yourself if left out."
    )


class TokenOut(BaseModel):
    """The token; shown this once."""

    token: str
    user: str
    scopes: list[str]
    expires_at: float = Field(
        description="Unix seconds: no later than the token it was made with, nor than `token_lifetime` from now."
    )


class HealthOut(BaseModel):
    """Whether the control plane does its work."""

    status: str = Field(description="`ok`, or `stuck` when a turn of a loop takes too long.")
    version: str
    since_iteration_s: dict[str, float | None] = Field(
        description="Seconds since the last turn of each loop ended; null before its first."
    )
    stuck: list[str] = Field(description="The loops whose present turn takes too long.")
