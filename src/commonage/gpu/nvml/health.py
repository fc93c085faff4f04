"""The health that a GPU reports itself: faults (it takes no new work) and notices.

Used by `inventory`. Xids, which a GPU reports only once, are in `device_faults`; a GPU that does not answer at all
in `errors`. Sources: NVIDIA, "GPU Memory Error Management" (row remapping, dynamic page retirement) and the NVML
reference (recovery actions, clocks event reasons).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pynvml

from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import (
    ClocksLow,
    ComputeModeProhibited,
    ExclusiveProcessMode,
    GpuFabricBroken,
    GpuMemoryBroken,
    GpuMemoryErrors,
    GpuMemoryErrorsSeen,
    GpuNeedsReboot,
    GpuNeedsReset,
    GpuPeersUnreachable,
    MemoryPagesPending,
    MemoryRowsPending,
    ModeChangesAtReset,
    PersistenceModeOff,
)
from commonage.gpu.nvml.library import Gpu

_CONTAINS_ERRORS = (8, 0)
"""From this compute capability on, an uncorrectable memory error ends only the application that it hit."""

_NEEDS_REBOOT = (
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT,
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT,
)
_NEEDS_RESET = (
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET,
)
_RECOVERY_NOTICES: dict[int | None, Reason] = {
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: GpuPeersUnreachable(),
    pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: GpuFabricBroken(),
}
_THROTTLE = {
    pynvml.nvmlClocksThrottleReasonSwPowerCap: "power limit",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksThrottleReasonSyncBoost: "synchronised boost",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "temperature",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "temperature, by hardware",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake of the node",
}
_WORTH_A_NOTICE = (
    pynvml.nvmlClocksThrottleReasonHwSlowdown
    | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
)


@dataclass(frozen=True, slots=True)
class MemoryErrors:
    """ECC counts since the driver was loaded, and rows of memory that were replaced permanently.

    None: not available.
    """

    corrected: int | None
    uncorrected: int | None
    remapped_corrected: int | None = None
    remapped_uncorrected: int | None = None
    remap_pending: bool = False
    remap_failed: bool = False


@dataclass(frozen=True, slots=True)
class Health:
    faults: tuple[Reason, ...]
    notices: tuple[Reason, ...]


def health_of(gpu: Gpu, capability: tuple[int, int] | None, recovery: int | None) -> Health:
    """Health from all sources except Xids. `recovery` is the action that the driver requests (`recovery_of`)."""
    errors = memory_errors(gpu)
    return Health(
        tuple(_faults(gpu, errors, capability, recovery)),
        tuple(_notices(gpu, errors, recovery)),
    )


def recovery_of(gpu: Gpu) -> int | None:
    """The driver's recovery action for the GPU: 0 is none; None if not available."""
    values = gpu.ask("nvmlDeviceGetFieldValues", [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def throttle_of(gpu: Gpu) -> int | None:
    """The bits of the throttle reasons; by the older name of the call on older drivers."""
    for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        bits = gpu.ask(name)
        if bits is not None:
            return int(bits)
    return None


def throttle_words(bits: int | None) -> tuple[str, ...]:
    """The throttle reasons in words, without idleness and settings."""
    return tuple(words for bit, words in _THROTTLE.items() if (bits or 0) & bit)


def memory_errors(gpu: Gpu) -> MemoryErrors:
    corrected, uncorrected = (
        gpu.ask("nvmlDeviceGetTotalEccErrors", kind, pynvml.NVML_VOLATILE_ECC)
        for kind in (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    )
    rows = gpu.ask("nvmlDeviceGetRemappedRows")
    if rows is None:
        return MemoryErrors(corrected, uncorrected)
    return MemoryErrors(corrected, uncorrected, int(rows[0]), int(rows[1]), bool(rows[2]), bool(rows[3]))


def _faults(
    gpu: Gpu, errors: MemoryErrors, capability: tuple[int, int] | None, recovery: int | None
) -> Iterator[Reason]:
    if recovery in _NEEDS_RESET:
        yield GpuNeedsReset(index=gpu.index, when_idle=recovery == pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET)
    if recovery in _NEEDS_REBOOT:
        yield GpuNeedsReboot()
    if errors.remap_failed:
        yield GpuMemoryBroken()
    if errors.uncorrected and (capability is None or capability < _CONTAINS_ERRORS):
        yield GpuMemoryErrors(count=errors.uncorrected, index=gpu.index)
    if gpu.ask("nvmlDeviceGetComputeMode") == pynvml.NVML_COMPUTEMODE_PROHIBITED:
        yield ComputeModeProhibited(index=gpu.index)


def _notices(gpu: Gpu, errors: MemoryErrors, recovery: int | None) -> Iterator[Reason]:
    if recovery in _RECOVERY_NOTICES:
        yield _RECOVERY_NOTICES[recovery]
    if errors.uncorrected:
        yield GpuMemoryErrorsSeen(count=errors.uncorrected)
    if errors.remap_pending:
        yield MemoryRowsPending(index=gpu.index)
    if gpu.ask("nvmlDeviceGetRetiredPagesPendingStatus"):
        yield MemoryPagesPending(index=gpu.index)
    for mode, name in (("ECC", "nvmlDeviceGetEccMode"), ("MIG", "nvmlDeviceGetMigMode")):
        state = gpu.ask(name)
        if state is not None and state[0] != state[1]:
            yield ModeChangesAtReset(mode=mode, is_on=bool(state[1]))
    if gpu.ask("nvmlDeviceGetPersistenceMode") == 0:
        yield PersistenceModeOff(index=gpu.index)
    if gpu.ask("nvmlDeviceGetComputeMode") == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS:
        yield ExclusiveProcessMode()
    slow = (throttle_of(gpu) or 0) & _WORTH_A_NOTICE
    if slow:
        yield ClocksLow(causes=throttle_words(slow))
