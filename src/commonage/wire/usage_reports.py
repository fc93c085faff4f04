"""Usage reports, suggestions and what sits on GPUs without a workload."""

from __future__ import annotations

from pydantic import BaseModel, Field


class UsageReportOut(BaseModel):
    """What a workload used of what it had asked, in all its tries. null: not known. MiB, and thousandths of a core."""

    final: bool = Field(description="False while it runs: then these are the figures so far.")
    summary: str
    measured_s: float
    cpus_milli: int
    cpu_peak_milli: int
    cpu_s: float
    memory_mib: int
    memory_peak_mib: int
    memory_would_do_mib: int | None
    devices: int = Field(description="GPUs of which it held a share; 0 for none.")
    vram_mib: int = Field(description="Its share of one GPU, the largest.")
    vram_peak_mib: int | None = Field(description="The most on any one GPU, the CUDA context included.")
    vram_mean_mib: int | None = Field(description="On all its GPUs.")
    would_do_mib: int | None = Field(description="VRAM that would have done: the peak and a margin, rounded up.")
    gpu_utilisation: float | None = Field(description="0..1, of its GPUs, while it was measured.")
    gpu_idle_share: float | None = Field(description="Part of its time in which it computed nothing on its GPUs.")
    first_gpu_s: float | None = Field(description="Seconds from running to the first use of a GPU.")
    gpu_h: float = Field(description="GPUs times hours, held, used or not.")
    energy_wh: float | None = Field(description="Its part of what its GPUs drew.")
    over_share_s: float = Field(description="How long it held more VRAM than its share.")
    simulated: bool


class SuggestionOut(BaseModel):
    """What your last runs in the same environment with the same command say of the request to make."""

    summary: str
    gpus: str | None = Field(description="As it is written in a request; null without figures of a GPU.")
    vram_mib: int | None
    peak_mib: int | None
    memory_mib: int | None
    cpus_milli: int | None
    too_much: bool = Field(description="What was asked is much more than would do.")
    runs: int = Field(description="How many of them it rests on.")
    workload_id: str
    simulated: bool


class UnattributedProcessOut(BaseModel):
    """A process that no workload started and that holds VRAM of a GPU."""

    pid: int | None
    memory_mib: int | None
    name: str = Field(description="Its command; empty where it cannot be read.")
