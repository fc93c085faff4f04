"""The current measurements of a GPU as `DeviceSample`s: one for the GPU, or one for each of its MIG instances.

Used by `nvml`. Of an instance only memory and processes are its own; power, energy and utilisation are the GPU's and
cannot be divided, so they are unknown there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pynvml

from commonage.gpu.environment import MIB
from commonage.gpu.nvml.health import memory_errors, throttle_of, throttle_words
from commonage.gpu.nvml.inventory import instances_of, is_split, memory_mib
from commonage.gpu.nvml.library import Gpu, Library
from commonage.ports.devices import DeviceSample, ProcessMemory

_PROCESS_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
)


class Measuring:
    """Remembers for each GPU the time up to which the utilisation of its processes was read."""

    def __init__(self) -> None:
        self._asked_until: dict[str, int] = {}

    def samples(self, gpu: Gpu, xid: int | None) -> list[DeviceSample]:
        """`xid`: the last one of the GPU. Raises pynvml.NVMLError if the GPU fails during this."""
        if is_split(gpu):
            return [_of_instance(gpu, one.uuid, one.handle) for one in instances_of(gpu)]
        rates = gpu.ask("nvmlDeviceGetUtilizationRates")
        energy_mj = gpu.ask("nvmlDeviceGetTotalEnergyConsumption")
        errors = memory_errors(gpu)
        return [
            DeviceSample(
                uuid=gpu.uuid,
                memory_used_mib=memory_mib(gpu.library, gpu.handle)[1],
                utilisation=None if rates is None else min(100, int(rates.gpu)) / 100,
                power_w=_thousandth(gpu.ask("nvmlDeviceGetPowerUsage")),
                temperature_c=temperature_c(gpu),
                processes=_processes(gpu.library, gpu.handle, self._busy(gpu)),
                energy_j=_thousandth(energy_mj),
                power_limit_w=_thousandth(gpu.ask("nvmlDeviceGetEnforcedPowerLimit")),
                sm_clock_mhz=gpu.ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
                memory_clock_mhz=gpu.ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
                throttle=throttle_words(throttle_of(gpu)),
                ecc_corrected=errors.corrected,
                ecc_uncorrected=errors.uncorrected,
                remapped_corrected=errors.remapped_corrected,
                remapped_uncorrected=errors.remapped_uncorrected,
                xid=xid,
            )
        ]

    def _busy(self, gpu: Gpu) -> dict[int, float] | None:
        """The part of the time since the last call in which each process computed; None if not available.

        The driver keeps samples of a second or less, and none for idle processes.
        """
        since = self._asked_until.get(gpu.uuid, 0)
        try:
            found = gpu.library.api.nvmlDeviceGetProcessUtilization(gpu.handle, since)
        except pynvml.NVMLError as error:
            return {} if error.value == pynvml.NVML_ERROR_NOT_FOUND else None
        fresh = [one for one in found if one.timeStamp > since]
        if fresh:
            self._asked_until[gpu.uuid] = max(int(one.timeStamp) for one in fresh)
        percents: dict[int, list[int]] = {}
        for one in fresh:
            percents.setdefault(int(one.pid), []).append(min(100, int(one.smUtil)))
        return {pid: round(sum(each) / len(each) / 100, 3) for pid, each in percents.items()}


def _of_instance(gpu: Gpu, uuid: str, handle: Any) -> DeviceSample:
    return DeviceSample(
        uuid=uuid,
        memory_used_mib=memory_mib(gpu.library, handle)[1],
        utilisation=None,
        temperature_c=temperature_c(gpu),
        processes=_processes(gpu.library, handle, None),
        sm_clock_mhz=gpu.ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=gpu.ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
        throttle=throttle_words(throttle_of(gpu)),
    )


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000


def temperature_c(gpu: Gpu) -> float | None:
    """The GPU's temperature. Older drivers lack nvmlDeviceGetTemperatureV, so the deprecated call is tried too."""
    for name in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"):
        celsius = gpu.ask(name, pynvml.NVML_TEMPERATURE_GPU)
        if celsius is not None:
            return float(celsius)
    return None


def _processes(library: Library, handle: Any, busy: dict[int, float] | None) -> tuple[ProcessMemory, ...]:
    """All processes on the GPU or instance, each once; the driver may list one as compute and as graphics."""
    listed: Iterable[Any] = [one for name in _PROCESS_LISTS for one in library.ask(name, handle) or ()]
    held: dict[int, int | None] = {}
    for process in listed:
        mib = None if process.usedGpuMemory is None else process.usedGpuMemory // MIB
        before = held.get(process.pid)
        held[process.pid] = mib if before is None else max(before, mib or 0)
    return tuple(
        ProcessMemory(pid, mib, utilisation=None if busy is None else busy.get(pid, 0.0))
        for pid, mib in sorted(held.items())
    )
