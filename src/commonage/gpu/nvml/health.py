"""The health that a GPU reports itself: faults (it takes no new work) and notices, with what to do.

Used by `inventory`. Xids, which a GPU reports only once, are in `device_faults`; a GPU that does not answer at all
in `errors`. Sources: NVIDIA, "GPU Memory Error Management" (row remapping, dynamic page retirement) and the NVML
reference (recovery actions, clocks event reasons).
"""

from __future__ import annotations

from dataclasses import dataclass

import pynvml

from commonage.gpu.nvml.library import Gpu

_RESET = "end what runs on it and reset it with `nvidia-smi --gpu-reset -i {index}`, or reboot"
_REBOOT = "reboot the node"
_CONTAINS_ERRORS = (8, 0)
"""From this compute capability on, an uncorrectable memory error ends only the application that it hit."""

_RECOVERY_FAULTS = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: f"needs a reset, says the driver: {_RESET}",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: f"needs a reboot, says the driver: {_REBOOT}",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: (
        f"needs a reset once what runs on it has ended, says the driver: {_RESET}"
    ),
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: f"needs a reset of its bus, says the driver: {_REBOOT}",
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: f"needs a reboot, says the driver: {_REBOOT}",
}
_RECOVERY_NOTICES = {
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "does not reach its peers any more, says the driver, until it is reset",
    pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: "is cut off from other nodes: recover its IMEX domain",
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
    """The faults and notices that a GPU reports itself."""

    faults: tuple[str, ...]
    notices: tuple[str, ...]


def health_of(gpu: Gpu, capability: tuple[int, int] | None, recovery: int | None) -> Health:
    """Everything but Xids. `recovery` is the action that the driver asks for (`recovery_of`)."""
    errors = memory_errors(gpu)
    faults = [*_recovery_fault(recovery), *_memory_faults(gpu, errors, capability), *_mode_faults(gpu)]
    notices = [*_recovery_notice(recovery), *_memory_notices(gpu, errors), *_mode_notices(gpu), *_slow(gpu)]
    return Health(
        tuple(words.format(index=gpu.index) for words in faults),
        tuple(words.format(index=gpu.index) for words in notices),
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
    """Its ECC counts and remapped rows."""
    corrected, uncorrected = (
        gpu.ask("nvmlDeviceGetTotalEccErrors", kind, pynvml.NVML_VOLATILE_ECC)
        for kind in (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    )
    rows = gpu.ask("nvmlDeviceGetRemappedRows")
    if rows is None:
        return MemoryErrors(corrected, uncorrected)
    return MemoryErrors(corrected, uncorrected, int(rows[0]), int(rows[1]), bool(rows[2]), bool(rows[3]))


def _recovery_fault(recovery: int | None) -> list[str]:
    return [_RECOVERY_FAULTS[recovery]] if recovery in _RECOVERY_FAULTS else []


def _recovery_notice(recovery: int | None) -> list[str]:
    return [_RECOVERY_NOTICES[recovery]] if recovery in _RECOVERY_NOTICES else []


def _memory_faults(gpu: Gpu, errors: MemoryErrors, capability: tuple[int, int] | None) -> list[str]:
    faults = []
    if errors.remap_failed:
        faults.append("has broken memory that could not be replaced by spare rows: have the GPU exchanged")
    if errors.uncorrected and (capability is None or capability < _CONTAINS_ERRORS):
        faults.append(f"had {errors.uncorrected} uncorrectable memory errors since the driver was loaded: {_RESET}")
    return faults


def _memory_notices(gpu: Gpu, errors: MemoryErrors) -> list[str]:
    notices = []
    if errors.uncorrected:
        notices.append(f"{errors.uncorrected} uncorrectable memory errors since the driver was loaded")
    if errors.remap_pending:
        notices.append(f"broken memory waits to be replaced by spare rows, when nothing runs: {_RESET}")
    if gpu.ask("nvmlDeviceGetRetiredPagesPendingStatus"):
        notices.append(f"broken pages of memory wait to be retired, when nothing runs: {_RESET}")
    return notices


def _mode_faults(gpu: Gpu) -> list[str]:
    if gpu.ask("nvmlDeviceGetComputeMode") == pynvml.NVML_COMPUTEMODE_PROHIBITED:
        return ["is in compute mode Prohibited; allow work with `nvidia-smi -i {index} -c DEFAULT`"]
    return []


def _mode_notices(gpu: Gpu) -> list[str]:
    notices = []
    ecc = gpu.ask("nvmlDeviceGetEccMode")
    if ecc is not None and ecc[0] != ecc[1]:
        notices.append(f"ECC is switched {'on' if ecc[1] else 'off'} at the next reset")
    mig = gpu.ask("nvmlDeviceGetMigMode")
    if mig is not None and mig[0] != mig[1]:
        notices.append(f"MIG is switched {'on' if mig[1] else 'off'} at the next reset")
    if gpu.ask("nvmlDeviceGetPersistenceMode") == 0:
        notices.append("persistence mode is off, so first use is slow; switch it on with `nvidia-smi -i {index} -pm 1`")
    if gpu.ask("nvmlDeviceGetComputeMode") == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS:
        notices.append("compute mode is Exclusive Process: only one process at a time can use it, if not through MPS")
    return notices


def _slow(gpu: Gpu) -> list[str]:
    bits = throttle_of(gpu)
    if bits is None or not bits & _WORTH_A_NOTICE:
        return []
    return [f"its clocks are low: {', '.join(throttle_words(bits & _WORTH_A_NOTICE))}"]
