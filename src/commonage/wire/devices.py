"""GPUs: what they are, how full, what they measure, and what is wrong with them."""

from __future__ import annotations

from pydantic import BaseModel, Field

from commonage.wire.usage_reports import UnattributedProcessOut


class UnavailableOut(BaseModel):
    """A level of isolation that does not hold on a GPU, and what would change that."""

    isolation: str
    why: str


class PeerOut(BaseModel):
    """Another GPU that is reached by NVLink."""

    uuid: str
    links: int


class MeasuredOut(BaseModel):
    """The last sample of a GPU; null where the GPU or its driver does not give a figure."""

    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None = Field(description="What it drew since its driver was loaded.")
    temperature_c: float | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    throttle: list[str] = Field(description="Why its clocks are low.")
    ecc_corrected: int | None = Field(description="Memory errors since the driver was loaded.")
    ecc_uncorrected: int | None
    remapped_corrected: int | None = Field(description="Rows of memory that were replaced for good.")
    remapped_uncorrected: int | None
    xid: int | None = Field(description="Number of the driver's last error message about it.")


class DeviceOut(BaseModel):
    """A GPU or MIG instance, and how full: `free_*` is what could still be given, `used_*` what was measured."""

    uuid: str
    index: int
    label: str = Field("", description="How people call it: its index, of a MIG instance `device:place`.")
    model: str
    memory_mib: int
    free_mib: int
    free_compute_milli: int
    used_mib: int | None
    utilisation: float | None
    simulated: bool
    isolation: str = Field(description="The strongest level of isolation that holds on it.")
    unavailable: list[UnavailableOut] = Field(default_factory=list, description="Why other levels do not hold.")
    faults: list[str] = Field(description="Why it takes no new work.")
    notices: list[str] = Field(default_factory=list, description="Worth knowing; it takes work.")
    unattributed: list[UnattributedProcessOut] = Field(
        default_factory=list, description="Processes of no workload that hold VRAM of it."
    )
    driver: str = ""
    cuda: str = ""
    compute_capability: str = ""
    pci: str = ""
    numa: int | None = None
    slots: int = Field(0, description="Shared in so many equal parts only; 0: in any.")
    mig_profile: str = ""
    parent_uuid: str | None = Field(None, description="Of a MIG instance: the GPU that it is a part of.")
    peers: list[PeerOut] = Field(default_factory=list)
    measured: MeasuredOut | None = None
