"""Usage: allocated resources times hours, usage reports of workloads, and suggestions from them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from commonage.wire.types import Instant, Strict


class UsageRow(BaseModel):
    """Allocated resources times hours, and their cost (0 if no prices are set)."""

    subject: str
    workloads: int
    gpu_gib_h: float
    gpu_h: float
    cpu_h: float
    memory_gib_h: float
    cost: float


class UsageOut(BaseModel):
    """Usage in [since, until)."""

    since: float
    until: float
    by: str
    currency: str
    items: list[UsageRow]


class UsageQuery(Strict):
    """Selects a time span and the grouping."""

    since: Instant | None = Field(None, description="Unix seconds. Default: 30 days before `until`.")
    until: Instant | None = Field(None, description="Unix seconds. Default: now.")
    by: Literal["owner", "tenant", "workload", "environment"] = "owner"


class UsageReportOut(BaseModel):
    """Requested and used resources of a workload, over all attempts. null: unknown. CPUs in thousandths of a core."""

    final: bool = Field(description="False while it runs: the values are preliminary.")
    summary: str
    measured_s: float
    cpus_milli: int
    cpu_peak_milli: int
    cpu_s: float
    memory_mib: int
    memory_peak_mib: int
    sufficient_memory_mib: int | None = Field(description="Memory that would have been enough: the peak and a margin.")
    devices: int = Field(description="Number of GPUs with a share; 0 for none.")
    vram_mib: int = Field(description="Its largest share of one GPU.")
    vram_peak_mib: int | None = Field(description="The highest use on any one GPU, including the CUDA context.")
    vram_mean_mib: int | None = Field(description="The mean use, summed over all its GPUs.")
    sufficient_vram_mib: int | None = Field(
        description="VRAM that would have been enough: the peak and a margin, rounded up."
    )
    gpu_utilisation: float | None = Field(description="Mean utilisation of its GPUs, 0 to 1.")
    gpu_idle_share: float | None = Field(description="Fraction of the time in which its GPUs were idle, 0 to 1.")
    first_gpu_s: float | None = Field(description="Seconds from the start to the first use of a GPU.")
    gpu_h: float = Field(description="Allocated GPUs times hours, whether used or not.")
    energy_wh: float | None = Field(description="Its part of the energy that its GPUs used.")
    over_share_s: float = Field(description="Seconds in which it used more VRAM than its share.")
    simulated: bool


class SuggestionOut(BaseModel):
    """A suggested request, from your last runs of the same command in the same environment."""

    summary: str
    gpus: str | None = Field(description="Suggested GPU request; null if no GPU was measured.")
    vram_mib: int | None
    peak_mib: int | None
    memory_mib: int | None
    cpus_milli: int | None
    too_much: bool = Field(description="The request is much larger than the suggestion.")
    runs: int = Field(description="Number of runs on which it is based.")
    workload_id: str
    simulated: bool
