"""Texts of `commonage.domain.reasons.devices`. `XIDS` has a short description of each error number of NVIDIA's driver.

Source of the Xids: NVIDIA, "Analyzing Xid Errors with the Xid Catalog".
"""

from __future__ import annotations

from collections.abc import Mapping

from commonage.domain.reasons import devices as r
from commonage.domain.time_zones import utc
from commonage.messages.template import Say, Texts, sentence

_COPY, _VIDEO = "fault of a copy engine", "fault of a video or image engine"
XIDS: Mapping[int, str] = {
    8: "GPU stopped processing",
    11: "invalid commands",
    13: "graphics engine exception, often an access out of bounds",
    25: "invalid commands",
    31: "memory page fault, an access to an address that is not its own",
    32: "invalid or corrupted commands",
    37: "driver firmware error",
    38: "driver firmware error",
    43: "GPU stopped processing for it",
    44: "fault during a context switch",
    45: "cleaned up after an earlier error",
    46: "GPU stopped processing",
    48: "uncorrectable memory error",
    54: "auxiliary power is not connected",
    60: _VIDEO,
    61: "its micro-controller stopped",
    62: "its micro-controller halted",
    63: "a broken row or page of memory is replaced at the next reset",
    64: "a broken row or page of memory could not be replaced",
    66: "illegal access by the driver",
    67: "illegal access by the driver",
    68: _VIDEO,
    69: "graphics engine class error",
    74: "NVLink error",
    79: "fell off the bus",
    80: "corrupted data sent to the GPU",
    92: "many corrected memory errors",
    93: "its infoROM is worn",
    94: "contained memory error that hit only this application",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "its system processor (GSP) does not answer",
    120: "its system processor (GSP) failed",
    121: "error on the link to the CPU",
    136: "NVLink training failed",
    137: "forbidden NVLink access",
    140: "unrecovered memory error",
    141: "CUDA fast path error",
    143: "initialisation failed",
    151: "key rotation failed",
    154: "the driver asks for another way to recover",
    155: "NVLink error",
    156: "a broken part is retired",
    157: "a broken part could not be retired",
    158: "fatal timeout",
    160: "a channel was retired",
    161: "a channel could not be retired",
    167: "fatal timeout of PCI Express",
    169: "its security processor halted",
    171: "uncorrectable error of its memory",
    172: "uncorrectable error of its caches",
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), _COPY),
    **dict.fromkeys((82, 83, 84, 86, 88, 89, *range(96, 106), 139), _VIDEO),
    **dict.fromkeys(range(144, 151), "NVLink error"),
}

_RESET = "End its workloads and reset it (`nvidia-smi --gpu-reset -i {index}`), or reboot the node."
_RECOVERS = {
    r.Remedy.RESET: _RESET,
    r.Remedy.REBOOT: "Reboot the node. If it happens again, have the GPU checked.",
    r.Remedy.POWER: "Check its power cables, then reboot the node.",
}
_SEARCH = "Look for `Xid` in `dmesg`. A reboot often brings it back."


def _meaning(number: int) -> str:
    return XIDS.get(number, "not known here; see NVIDIA's Xid catalogue")


def _fatal_xid(reason: r.FatalXid, _say: Say) -> str:
    advice = _RECOVERS[reason.remedy].format(index=reason.index)
    return (
        f"It had Xid {reason.number} ({_meaning(reason.number)}). {advice} It then takes work again by itself, or "
        f"after `commonage node resume NODE --gpu {reason.index}`."
    )


def _xid(reason: r.XidReported, _say: Say) -> str:
    reporter = "An application had" if reason.by_application else "The driver reported"
    clock = utc(reason.seen_at).strftime("%H:%M UTC")
    return f"{reporter} Xid {reason.number} ({_meaning(reason.number)}) at {clock}."


def _needs_reset(reason: r.GpuNeedsReset, _say: Say) -> str:
    when = " once its workloads have ended" if reason.when_idle else ""
    return f"The driver says that it needs a reset{when}. {_RESET.format(index=reason.index)}"


def _level(reason: r.IsolationLost | r.IsolationNotAvailable, say: Say) -> str:
    if isinstance(reason, r.IsolationLost):
        state = f"It takes work again once its present shares have ended: {reason.level} does not hold."
    else:
        state = f"It is not shared: gpu_isolation is {reason.level}, which is not available here."
    return f"{state} {say(reason.cause)}"


def _too_old(reason: r.DriverTooOld | r.ComputeCapabilityTooLow, _say: Say) -> str:
    what = "driver" if isinstance(reason, r.DriverTooOld) else "compute capability"
    present = f"the GPU has {reason.present}" if reason.present else "the GPU does not report one"
    if isinstance(reason, r.DriverTooOld) and reason.present:
        present = f"{reason.present} is installed"
    return f"It needs {what} {reason.required} or newer; {present}."


TEXTS: Texts = {
    r.FatalXid: _fatal_xid,
    r.GpuNeedsReset: _needs_reset,
    r.GpuNeedsReboot: "The driver says that it needs a reboot. Reboot the node.",
    r.GpuMemoryBroken: "It has broken memory that spare rows could not replace. Have the GPU exchanged.",
    r.GpuMemoryErrors: "It had {count} uncorrectable memory errors since the driver was loaded. " + _RESET,
    r.ComputeModeProhibited: (
        "Its compute mode is Prohibited. Allow work with `nvidia-smi -i {index} -c DEFAULT` on the node."
    ),
    r.GpuMemoryUnknown: "The driver does not say how much memory it has, so that no share of it can be given.",
    r.MigWithoutInstances: (
        "It is in MIG mode and has no instance. Create some (`commonage node mig`, or `nvidia-smi mig -i {index} -cgi "
        "PROFILES -C`), or switch MIG off (`nvidia-smi -i {index} -mig 0`)."
    ),
    r.MigInstanceRemoved: "It no longer exists: the MIG instances of its GPU were changed while it was in use.",
    r.MigChangedInUse: (
        "The MIG instances of its GPU were changed while workloads used it. It takes work once they have ended."
    ),
    r.GpuNotReachable: f"It fell off the bus or cannot be reached. {_SEARCH}",
    r.GpuNotListed: "The driver no longer lists it. Look for `{search}` in `dmesg`. A reboot often brings it back.",
    r.GpuWithoutPower: "It has no external power. Check its power cables.",
    r.GpuWithoutInterrupts: "It gets no interrupts. Look into `dmesg` and the BIOS settings.",
    r.GpuNotAccessible: "This user may not use it. Check the permissions of /dev/nvidia*.",
    r.GpuInfoRomCorrupted: "Its infoROM is corrupted. Its vendor has to repair it.",
    r.GpuNotAnswering: lambda reason, _: f"It does not answer: {reason.error}. {sentence(reason.advice)}",
    r.GpuDriverFailed: lambda reason, _: f"Its driver cannot be used: {sentence(reason.error)}",
    r.GpuDriverSilent: "The driver of the GPUs does not answer.",
    r.GpuTakenByOtherServer: lambda reason, _: (
        "Another Commonage server on this node allocates it "
        f"({reason.holder or 'its lock file does not name the process'}). End that server and its workloads first."
    ),
    r.GpuLockFailed: "It cannot be claimed for this server: {path} cannot be opened ({error}).",
    r.IsolationLost: _level,
    r.IsolationNotAvailable: _level,
    r.GpuNotDeclared: (
        "It cannot be reserved: Docker on the node declares {declared_mib} of VRAM for GPUs of {present_mib}. Run "
        "`commonage node join` for the node again."
    ),
    r.ContainersWithoutGpus: (
        "Docker on the node does not give it to containers: their runtime is {runtime}, not NVIDIA's. Run `commonage "
        "node join` for the node again."
    ),
    r.XidReported: _xid,
    r.GpuPeersUnreachable: "The driver says that it does not reach its peers until it is reset.",
    r.GpuFabricBroken: "The driver says that it is cut off from other nodes. Recover its IMEX domain.",
    r.GpuMemoryErrorsSeen: "It had {count} uncorrectable memory errors since the driver was loaded.",
    r.MemoryRowsPending: "Spare rows replace its broken memory at the next reset. " + _RESET,
    r.MemoryPagesPending: "Its broken pages of memory are retired at the next reset. " + _RESET,
    r.MemoryPagesRetired: "{count} bad pages of its memory are retired, or will be at the next reset.",
    r.ModeChangesAtReset: lambda reason, _: (
        f"{reason.mode} is switched {'on' if reason.is_on else 'off'} at the next reset."
    ),
    r.PersistenceModeOff: (
        "Persistence mode is off, so that its first use is slow. Switch it on with `nvidia-smi -i {index} -pm 1`."
    ),
    r.ExclusiveProcessMode: (
        "Its compute mode is Exclusive Process: only one process at a time can use it, except through MPS."
    ),
    r.ClocksLow: "Its clocks are low: {causes}.",
    r.SharedByMps: "It is shared by MPS: a fatal fault of one program ends the programs of all workloads on it.",
    r.MpsNotExclusive: (
        "It is not in exclusive-process mode: {error}. A program that clears its variables leaves MPS and its limits."
    ),
    r.MpsDaemonEnded: lambda reason, _: (
        f"Its MPS daemon ended at {utc(reason.ended_at):%H:%M} UTC. Programs that used it have to be started again."
    ),
    r.GpuSimulated: "The GPU is simulated.",
    r.NvidiaOnly: "Only NVIDIA's driver for Linux has it.",
    r.NotSplit: "The GPU is not split into MIG instances. Those that can be are split with `commonage node mig`.",
    r.MigInstanceIsIsolated: "The hardware already isolates a MIG instance.",
    r.MigInstanceHasNoLimits: "The driver has no memory limits for MIG instances.",
    r.ProgramMissing: "{program} is not on PATH. It comes with the driver ({package}).",
    r.ComputeCapabilityTooLow: _too_old,
    r.DriverTooOld: _too_old,
    r.SocketPathTooLong: "The path {path} is too long for sockets. Use a data folder with a shorter path.",
    r.MpsNotStarting: lambda reason, _: sentence(reason.error),
    r.MpsNotForContainers: (
        "With most drivers, clients of MPS in containers must share the node's /dev/shm. Containers of Commonage do "
        "not. MPS is used only where gpu_isolation names it."
    ),
    r.PreloadNotConfigured: (
        "No interposer is set. Install HAMi-core's libvgpu.so on the node, and set gpu_preload to its path."
    ),
    r.PreloadOnlyInContainers: (
        "Programs outside containers need not load an interposer. It is used with the engines docker and swarm only."
    ),
    r.PreloadLibraryUnusable: lambda reason, _: (
        f"{reason.path}, which gpu_preload names, cannot be used: {reason.error}. Install HAMi-core's libvgpu.so there."
    ),
    r.CgroupsMissing: (
        "It needs cgroups version 2 at {folder}. Boot the node with systemd.unified_cgroup_hierarchy=1."
    ),
    r.CgroupsReadOnly: "The control groups at {folder} are read-only here, as in most containers.",
    r.RootRequired: "Only root may set it. Start the server as root.",
    r.ContainerToolkitTooOld: (
        "NVIDIA's container toolkit does not limit the VRAM of containers: `nvidia-cdi-hook --help` does not name "
        "{hook}. Upgrade the toolkit."
    ),
    r.DriverRefusesLimits: lambda reason, _: sentence(reason.error),
    r.GpuTimeSliced: (
        "The cluster's device plugin hands out each GPU of the node {replicas} times, and nothing bounds a program's "
        "part. Commonage does not use such GPUs: remove the replicas from the plugin's configuration."
    ),
    r.GpuHeldByOthers: "A Pod that Commonage did not start holds the GPU. It is used again when that Pod ends.",
    r.GpuTainted: "The cluster's GPU driver has tainted the GPU: {key} ({effect}). See the driver's log on the node.",
    r.GpuReportedUnhealthy: "The cluster's device plugin reports the GPU as unhealthy. See its log on the node.",
    r.ClusterObjectMissing: lambda reason, _: (
        f"The cluster has no {reason.kind}{f' {reason.name}' if reason.name else ''}, or Commonage may not read it."
    ),
    r.FractioningNotReady: lambda reason, _: (
        "The cluster's GPU fractioning is not ready"
        f"{f': {reason.error}' if reason.error else ''}. See `kubectl get gpufractioningconfigs -o yaml`."
    ),
    r.GpuSharesOwnedByScheduler: (
        "The webhook {webhook} lets only KAI's scheduler write the annotations of shares. Install GPU fractioning "
        "without the KAI scheduler."
    ),
    r.GpuDevicesNotShared: (
        "GPUs are given whole: the driver does not publish them for several claims. Enable its feature gate "
        "ConsumableShares with consumableShares=memory."
    ),
}
