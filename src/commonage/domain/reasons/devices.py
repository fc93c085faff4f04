"""Faults of GPUs, notices about them, and why a level of isolation is not available.

`index` is the GPU's number in the commands of its driver.
"""

from __future__ import annotations

from enum import StrEnum

from commonage.domain.reasons.base import Reason


class Remedy(StrEnum):
    """The repair that a faulty GPU needs."""

    RESET = "reset"
    REBOOT = "reboot"
    POWER = "power"


# --- faults: the GPU takes no new work ----------------------------------------------------------------------------


class FatalXid(Reason):
    """NVIDIA's driver reported a fatal error of the GPU. `number` is its Xid."""

    number: int
    index: int
    remedy: Remedy


class GpuNeedsReset(Reason):
    """The driver asks for a reset of the GPU. `when_idle`: once its workloads have ended."""

    index: int
    when_idle: bool = False


class GpuNeedsReboot(Reason):
    """The driver asks for a reboot of the node."""


class GpuMemoryBroken(Reason):
    """The GPU has broken memory, and no spare rows to replace it."""


class GpuMemoryErrors(Reason):
    """The GPU had uncorrectable memory errors since the driver was loaded, and its generation cannot contain them."""

    count: int
    index: int


class ComputeModeProhibited(Reason):
    """The compute mode of the GPU lets no program use it."""

    index: int


class GpuMemoryUnknown(Reason):
    """The driver does not say how much memory the GPU has, so that no share of it can be given."""


class MigWithoutInstances(Reason):
    """The GPU is in MIG mode and has no instance."""

    index: int


class MigInstanceRemoved(Reason):
    """A MIG instance was removed while a workload held it."""


class MigChangedInUse(Reason):
    """The MIG instances of the GPU were changed while a workload held one of the former instances."""


class GpuNotReachable(Reason):
    """The GPU fell off the bus or cannot be reached."""


class GpuNotListed(Reason):
    """The driver no longer lists the GPU. `search`: the word to look for in the kernel's log."""

    search: str


class GpuWithoutPower(Reason):
    """The GPU has no external power."""


class GpuWithoutInterrupts(Reason):
    """The GPU gets no interrupts."""


class GpuNotAccessible(Reason):
    """The server or the agent may not use the GPU."""


class GpuInfoRomCorrupted(Reason):
    """The GPU's infoROM is corrupted."""


class GpuNotAnswering(Reason):
    """The GPU does not answer. `error` is what the driver says; `advice` is what to try."""

    error: str
    advice: str


class GpuDriverFailed(Reason):
    """The driver of the GPU cannot be used. `error` says why, and what to do."""

    error: str


class GpuDriverSilent(Reason):
    """A call of the GPU driver has not returned."""


class GpuTakenByOtherServer(Reason):
    """Another Commonage server on the node allocates the GPU. `holder` is what its lock says."""

    holder: str


class GpuLockFailed(Reason):
    """The lock file that claims the GPU for this server cannot be opened."""

    path: str
    error: str


class IsolationLost(Reason):
    """The level of isolation that present shares of the GPU have does not hold any more."""

    level: str
    cause: Reason


class IsolationNotAvailable(Reason):
    """The level of isolation that the setting gpu_isolation names is not available on the GPU."""

    level: str
    cause: Reason


class GpuNotDeclared(Reason):
    """The Swarm node declares too little VRAM, so that Swarm would start no task on the GPU."""

    declared_mib: int
    present_mib: int


class GpuTimeSliced(Reason):
    """A device plugin hands out each GPU of the node several times (time-slicing or MPS). `replicas`: how often."""

    replicas: int


class GpuHeldByOthers(Reason):
    """A Pod that is not Commonage's holds the GPU."""


class GpuTainted(Reason):
    """The driver of the cluster's devices has tainted the GPU."""

    key: str
    effect: str


class GpuReportedUnhealthy(Reason):
    """The cluster's device plugin reports the GPU as unhealthy."""


class ContainersWithoutGpus(Reason):
    """The Docker daemon of the Swarm node gives containers of services no GPU. `runtime`: its default runtime."""

    runtime: str


# --- notices: the GPU takes work ----------------------------------------------------------------------------------


class XidReported(Reason):
    """NVIDIA's driver reported an error that is not fatal to the GPU. `number` is its Xid."""

    number: int
    seen_at: float
    by_application: bool


class GpuPeersUnreachable(Reason):
    """The driver says that the GPU does not reach its peers until it is reset."""


class GpuFabricBroken(Reason):
    """The driver says that the GPU is cut off from other nodes until its IMEX domain is recovered."""


class GpuMemoryErrorsSeen(Reason):
    """The GPU had uncorrectable memory errors since the driver was loaded."""

    count: int


class MemoryRowsPending(Reason):
    """Broken memory is replaced by spare rows at the next reset."""

    index: int


class MemoryPagesPending(Reason):
    """Broken pages of memory are retired at the next reset."""

    index: int


class MemoryPagesRetired(Reason):
    """Bad pages of memory are retired, or wait for it."""

    count: int


class ModeChangesAtReset(Reason):
    """A mode of the GPU (ECC, MIG) changes at the next reset. `is_on`: to which state."""

    mode: str
    is_on: bool


class PersistenceModeOff(Reason):
    """Persistence mode is off, so that the first use of the GPU is slow."""

    index: int


class ExclusiveProcessMode(Reason):
    """The compute mode lets only one process use the GPU at a time, except through MPS."""


class ClocksLow(Reason):
    """The clocks of the GPU are low."""

    causes: tuple[str, ...]


class SharedByMps(Reason):
    """The GPU is shared by MPS, so that a fatal fault of one program ends the programs of all."""


class MpsNotExclusive(Reason):
    """The GPU is not in exclusive-process mode, so that a program can leave MPS and its limits."""

    error: str


class MpsDaemonEnded(Reason):
    """The MPS daemon of the GPU ended, and with it its programs' access to the GPU."""

    ended_at: float


# --- levels of isolation ------------------------------------------------------------------------------------------


class GpuSimulated(Reason):
    """The GPU is simulated."""


class NvidiaOnly(Reason):
    """Only NVIDIA's driver for Linux has this level."""


class NotSplit(Reason):
    """The GPU is not split into MIG instances."""


class MigInstanceIsIsolated(Reason):
    """The hardware already isolates a MIG instance."""


class MigInstanceHasNoLimits(Reason):
    """The driver has no memory limits for MIG instances."""


class ProgramMissing(Reason):
    """A program of the driver is not on PATH."""

    program: str
    package: str


class ComputeCapabilityTooLow(Reason):
    """The GPU's compute capability is too low for this level. `present` is empty if the GPU does not report it."""

    required: str
    present: str


class DriverTooOld(Reason):
    """The driver is too old for this level. `present` is empty if it does not report its version."""

    required: str
    present: str


class SocketPathTooLong(Reason):
    """The path of the MPS sockets is too long."""

    path: str


class MpsNotStarting(Reason):
    """The MPS daemon did not start. `error` is what it says."""

    error: str


class MpsNotForContainers(Reason):
    """MPS is used for containers only where the setting gpu_isolation names it."""


class PreloadNotConfigured(Reason):
    """The setting gpu_preload does not name an interposer."""


class PreloadOnlyInContainers(Reason):
    """The node runs workloads as processes, which need not load an interposer."""


class PreloadLibraryUnusable(Reason):
    """The library that the setting gpu_preload names cannot be used."""

    path: str
    error: str


class CgroupsMissing(Reason):
    """The node has no cgroups version 2."""

    folder: str


class CgroupsReadOnly(Reason):
    """The control groups are read-only here, as in most containers."""

    folder: str


class RootRequired(Reason):
    """Only root may set this level."""


class ContainerToolkitTooOld(Reason):
    """NVIDIA's container toolkit does not limit the VRAM of containers. `hook`: what its help has to name."""

    hook: str


class DriverRefusesLimits(Reason):
    """The driver does not report memory limits. `error` is its answer."""

    error: str


# --- GPU modes of a Kubernetes cluster ----------------------------------------------------------------------------


class ClusterObjectMissing(Reason):
    """The cluster lacks an object that the GPU mode needs, or does not show it. `name` is empty if any would do."""

    kind: str
    name: str


class FractioningNotReady(Reason):
    """No GpuFractioningConfig of the cluster is ready. `error` is what its operator says."""

    error: str


class GpuSharesOwnedByScheduler(Reason):
    """A webhook lets only its own scheduler write the annotations of the GPU mode."""

    webhook: str


class GpuDevicesNotShared(Reason):
    """The driver of the cluster's devices publishes GPUs for one claim each, so that there are no shares."""
