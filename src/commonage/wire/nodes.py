"""Nodes, their GPUs, node pools, the queries of node operations, and how machines join as nodes."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from commonage.wire.reasons import ReasonOut
from commonage.wire.types import Name, PlainText, Strength, Strict

LOCAL_SITE = "local"
"""The site of the control plane's own engine. Its nodes are shown without their site."""


class UnavailableOut(BaseModel):
    """An isolation level that is not available on a GPU, and how to make it available."""

    isolation: str
    reason: ReasonOut


class PeerOut(BaseModel):
    """Another GPU that is connected by NVLink."""

    uuid: str
    links: int


class MeasuredOut(BaseModel):
    """The last sample of a GPU; null if the GPU or its driver does not report the value."""

    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None = Field(description="Energy used since the driver was loaded.")
    temperature_c: float | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    throttle: list[str] = Field(description="Reasons for reduced clocks.")
    ecc_corrected: int | None = Field(description="Corrected memory errors since the driver was loaded.")
    ecc_uncorrected: int | None
    remapped_corrected: int | None = Field(description="Memory rows that were permanently replaced.")
    remapped_uncorrected: int | None
    xid: int | None = Field(description="Number of the driver's last error (Xid) for this GPU.")


class UnattributedProcessOut(BaseModel):
    """A process that uses VRAM of a GPU, but belongs to no workload."""

    pid: int | None
    memory_mib: int | None
    name: str = Field(description="Its command; empty if it cannot be read.")


class DeviceOut(BaseModel):
    """A GPU or MIG instance. `free_*` is not allocated, `used_*` is measured."""

    uuid: str
    index: int
    label: str = Field("", description="Its index; for a MIG instance `device:place`.")
    model: str
    memory_mib: int
    free_mib: int
    free_compute_milli: int
    used_mib: int | None
    utilisation: float | None
    simulated: bool
    isolation: str = Field(description="The strongest isolation level that is available on it.")
    strength: Strength = ""
    unavailable: list[UnavailableOut] = Field(
        default_factory=list, description="Isolation levels that are not available, with the reason."
    )
    faults: list[ReasonOut] = Field(description="Why it accepts no new workloads.")
    notices: list[ReasonOut] = Field(default_factory=list, description="Further remarks; it accepts workloads.")
    unattributed: list[UnattributedProcessOut] = Field(
        default_factory=list, description="Processes that use its VRAM, but belong to no workload."
    )
    driver: str = ""
    cuda: str = ""
    compute_capability: str = ""
    pci: str = ""
    numa: int | None = None
    slots: int = Field(0, description="Number of equal parts in which it is shared; 0: shares of any size.")
    mig_profile: str = ""
    parent_uuid: str | None = Field(None, description="For a MIG instance: the GPU that contains it.")
    peers: list[PeerOut] = Field(default_factory=list)
    measured: MeasuredOut | None = None


class NodeUsageOut(BaseModel):
    """Measured use of a node, by workloads and everything else on it; null: unknown."""

    cpu_cores: float | None = Field(description="Busy cores, since the previous measurement.")
    memory_mib: int | None = Field(description="Without caches that the kernel can free at once.")
    disk_used_mib: int | None = Field(description="Of the fullest disk with data of the platform.")
    disk_total_mib: int | None
    disk_read_bytes_per_s: float | None = Field(description="All physical disks.")
    disk_written_bytes_per_s: float | None
    network_received_bytes_per_s: float | None = Field(description="All physical interfaces.")
    network_sent_bytes_per_s: float | None
    temperature_c: float | None = Field(description="The hottest sensor of the processor.")
    load: float | None = Field(description="Load average of one minute.")


class NodeOut(BaseModel):
    """A node with its resources."""

    name: str
    site: str
    engine: str
    state: str
    reasons: list[ReasonOut] = Field(description="Why it is in this state; empty for one that is ready.")
    observed_at: float
    cpus_milli: int
    free_cpus_milli: int
    memory_mib: int
    free_memory_mib: int
    devices: list[DeviceOut]
    workloads: int = Field(description="Number of attempts with an allocation on it.")
    labels: dict[str, str] = Field(
        default_factory=dict, description="Its labels, which the field `on` of a workload can require."
    )
    usage: NodeUsageOut | None = Field(None, description="Measured use; null if nobody measures there.")
    notes: list[ReasonOut]
    leave_by: float | None = Field(
        None, description="For a drained node: when all remaining workloads must leave, in unix seconds."
    )


class NodeList(BaseModel):
    """All nodes."""

    items: list[NodeOut]


class DrainQuery(Strict):
    """Treatment of the workloads on a drained node."""

    requeue: bool = Field(
        False,
        description="Requeue jobs and services now, and restart sessions elsewhere, if they allow it; others continue.",
    )
    by: Annotated[PlainText, Field(min_length=1, max_length=64)] | None = Field(
        None, description="When all remaining workloads must leave: `2h`, `18:00`, `2026-11-24 14:00`."
    )
    time_zone: Annotated[PlainText, Field(max_length=64)] = Field(
        "UTC", description="Time zone of `by`, if it contains none: `Europe/Berlin`, `UTC`, `+01:00`."
    )


class RemoveQuery(Strict):
    """Confirmation for the removal of a lost node."""

    force: bool = Field(
        False, description="You confirm that the workloads that still count as running on it no longer run."
    )


class ResumeQuery(Strict):
    """Resumes the whole node, or clears the faults of one GPU."""

    gpu: Name | None = Field(
        None, description="Index, `device:place` of a MIG instance, or UUID: clear only the faults of this GPU."
    )


class PoolNodeOut(BaseModel):
    """A rented node."""

    name: str
    state: str = Field(description="Text for people: on its way, ready, idle for 5 min, leaving, lost, failed, ….")


class NodePoolOut(BaseModel):
    """A node pool, the next steps of its policy, and its cost per hour before and after them."""

    name: str
    provider: str
    min: int
    max: int
    idle_s: int
    cpus: float
    memory_mib: int
    gpus: int
    gpu_model: str
    gpu_memory_mib: int
    nodes: list[PoolNodeOut]
    adding: int = Field(description="Number of nodes that the policy adds next.")
    removing: list[str] = Field(description="Names of the nodes that the policy removes next.")
    reason: ReasonOut
    price_per_h: float = Field(description="Price of one node per hour; 0 if unknown.")
    cost_per_h: float
    cost_after_per_h: float
    currency: str
    last_error: str = Field(description="The cloud's last error message; empty if there is none.")


class NodePoolList(BaseModel):
    """All node pools."""

    items: list[NodePoolOut]


class JoiningQuery(Strict):
    """The site that nodes join."""

    site: PlainText = Field("local", max_length=60, description="Name of the site; default: the control plane's own.")


class JoinTokenIn(Strict):
    """Properties of the new join token."""

    site: Annotated[
        PlainText, Field(max_length=60, description="Site that the machines join; default: the control plane's own.")
    ] = "local"
    for_s: Annotated[int, Field(ge=60, le=604_800, description="Lifetime in seconds.")] = 3600
    cloud_init: Annotated[bool, Field(description="Also return user data (cloud-init) for machines of a cloud.")] = (
        False
    )
    options: Annotated[
        list[Annotated[PlainText, Field(max_length=1000)]],
        Field(default_factory=list, max_length=40, description="Options of the join script in that user data."),
    ]


class JoinTokenOut(BaseModel):
    """A join token; it is shown only once."""

    token: str
    expires_at: float
    url: str = Field(description="URL of the join script.")
    script_sha256: str = Field(description="SHA-256 of the join script, as `sha256sum` prints it.")
    command: str = Field(
        description="Command that downloads the script, verifies its SHA-256 and runs it. The script asks for the "
        "token; you can append options."
    )
    user_data: str | None = None


class JoinKitOut(BaseModel):
    """The files that a machine needs to join over SSH."""

    script: str
    script_sha256: str
    bundle: str = Field(description="The packed program, in base64.")


class DoneOut(BaseModel):
    """The steps that were taken, one sentence each."""

    done: list[str]
