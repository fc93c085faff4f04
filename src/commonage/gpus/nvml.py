"""The real cards of this machine, through NVIDIA's management library (nvidia-ml-py).

Opened by `detect.open_devices`. A figure that a card does not give is None; a card that is lost or broken
stays in the inventory with its fault; only a driver that cannot be used at all is an error. MIG instances,
and isolation stronger than the cooperative one, are not done here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pynvml

from commonage.domain.fleet import Device, Lease, Share
from commonage.gpus import nvml_errors
from commonage.gpus.environment import MIB, share_environment
from commonage.gpus.unconfined import Unconfined
from commonage.ports.devices import DeviceSample, DevicesUnavailable, ProcessMemory

_UNLISTED = "is no longer listed by the driver; look for `Xid` in `dmesg`; a reboot often brings it back"
_NO_MEMORY = "does not say how much memory it has, so no share of it can be given"
_MIG = "is in MIG mode, which hides its memory; switch that off (`nvidia-smi -i INDEX -mig 0`) to have it shared"


class NvmlDevices(Unconfined):
    """Cards by NVML. `context_mib`: measured size of a CUDA context by device uuid, where it is known.

    Raises DevicesUnavailable, with a sentence what to do, where the driver cannot be used.
    """

    def __init__(self, *, context_mib: Mapping[str, int] | None = None) -> None:
        # NVML is safe for threads, but shutting it down and starting it again under another thread's call
        # is not.
        self._lock = threading.Lock()
        self._context_mib = dict(context_mib or {})
        self._known: dict[str, Device] = {}
        self._trouble = False
        self._open = False
        self._start()

    @property
    def versions(self) -> str:
        """For people: `driver 615.10, CUDA 13.1`, as far as the driver says."""
        with self._lock:
            driver, cuda = _optional(pynvml.nvmlSystemGetDriverVersion), _cuda_version()
        return ", ".join(
            part for part in (f"driver {driver}" if driver else "", f"CUDA {cuda}" if cuda else "") if part
        )

    def inventory(self) -> Sequence[Device]:
        """Every card seen since the start, by index; those that do not work now with their fault.

        After trouble the library is started anew first: only so are cards found again that were lost.
        """
        with self._lock:
            try:
                if self._trouble or not self._open:
                    self._restart()
                count = _call(pynvml.nvmlDeviceGetCount)
            except DevicesUnavailable as error:
                return self._all_at_fault(error)
            self._trouble = False
            driver = _optional(pynvml.nvmlSystemGetDriverVersion) or ""
            seen = [self._look(index, driver) for index in range(count)]
            uuids = {device.uuid for device in seen}
            seen += [replace(old, faults=(_UNLISTED,)) for uuid, old in self._known.items() if uuid not in uuids]
            self._trouble = self._trouble or len(seen) > count
            return tuple(sorted(seen, key=lambda device: (device.index, device.uuid)))

    def measure(self) -> Sequence[DeviceSample]:
        """A sample of every card that answers; the others are left out, and `inventory` says why."""
        with self._lock:
            try:
                count = _call(pynvml.nvmlDeviceGetCount)
            except DevicesUnavailable:
                self._trouble = True
                return ()
            samples = []
            for index in range(count):
                try:
                    samples.append(_sample(pynvml.nvmlDeviceGetHandleByIndex(index)))
                except pynvml.NVMLError:
                    self._trouble = True
            return tuple(samples)

    def environment(self, shares: Sequence[Share]) -> Mapping[str, str]:
        """The variables for a workload that holds these shares."""
        return share_environment(shares, self._context_mib)

    def note_held(self, leases: Sequence[Lease]) -> None:
        """Of no effect: real cards measure what is really used."""

    def close(self) -> None:
        """Let go of the driver."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        _call(pynvml.nvmlInit)
        self._open = True

    def _stop(self) -> None:
        if self._open:
            self._open = False
            _optional(pynvml.nvmlShutdown, otherwise_too=True)

    def _restart(self) -> None:
        self._stop()
        self._start()

    def _all_at_fault(self, error: DevicesUnavailable) -> Sequence[Device]:
        self._trouble = True
        if not self._known:
            raise error
        return tuple(replace(device, faults=(f"cannot be used: {error.message}",)) for device in self._known.values())

    def _look(self, index: int, driver: str) -> Device:
        """The card at `index`, also if it does not answer."""
        try:
            device = _device(pynvml.nvmlDeviceGetHandleByIndex(index), index, driver)
        except pynvml.NVMLError as error:
            self._trouble = True
            faults = (nvml_errors.fault(error),)
            for old in self._known.values():
                if old.index == index:
                    return replace(old, faults=faults)
            return Device(f"GPU-UNREADABLE-{index}", index, "unreadable card", 0, faults=faults, driver=driver)
        self._known[device.uuid] = device
        return device


def _call(function: Callable[..., Any], *args: Any) -> Any:
    """A call that concerns the driver as a whole; its errors are DevicesUnavailable."""
    try:
        return function(*args)
    except pynvml.NVMLError as error:
        raise nvml_errors.unavailable(error) from error


def _optional(function: Callable[..., Any], *args: Any, otherwise_too: bool = False) -> Any:
    """The figure, or None where it is not given. Other errors pass, unless `otherwise_too`."""
    try:
        return function(*args)
    except pynvml.NVMLError as error:
        if otherwise_too or nvml_errors.is_absent(error):
            return None
        raise


def _cuda_version() -> str:
    number = _optional(pynvml.nvmlSystemGetCudaDriverVersion_v2, otherwise_too=True)
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def _device(handle: Any, index: int, driver: str) -> Device:
    total_mib, _ = _memory_mib(handle)
    mig = _optional(pynvml.nvmlDeviceGetMigMode, handle)
    faults = []
    if mig and mig[0]:
        faults.append(_MIG)
    elif not total_mib:
        faults.append(_NO_MEMORY)
    return Device(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        index=index,
        model=_optional(pynvml.nvmlDeviceGetName, handle) or "unnamed card",
        memory_mib=total_mib or 0,
        faults=tuple(faults),
        driver=driver,
    )


def _memory_mib(handle: Any) -> tuple[int | None, int | None]:
    """What workloads can have of the card and what is used of that, in MiB.

    The driver keeps a part for itself, which the newer call tells apart: it can be given to nobody, and
    frameworks do not count it as the card's memory either.
    """
    memory = _optional(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    if memory is not None:
        return (memory.total - memory.reserved) // MIB, memory.used // MIB
    memory = _optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return (memory.total // MIB, memory.used // MIB) if memory is not None else (None, None)


def _sample(handle: Any) -> DeviceSample:
    rates = _optional(pynvml.nvmlDeviceGetUtilizationRates, handle)
    milliwatts = _optional(pynvml.nvmlDeviceGetPowerUsage, handle)
    return DeviceSample(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        memory_used_mib=_memory_mib(handle)[1],
        utilisation=None if rates is None else min(100, rates.gpu) / 100,
        power_w=None if milliwatts is None else milliwatts / 1000,
        temperature_c=_temperature_c(handle),
        processes=_processes(handle),
    )


def _temperature_c(handle: Any) -> float | None:
    """By the current call; older drivers know only the one before it."""
    for function in (pynvml.nvmlDeviceGetTemperatureV, pynvml.nvmlDeviceGetTemperature):
        celsius = _optional(function, handle, pynvml.NVML_TEMPERATURE_GPU)
        if celsius is not None:
            return float(celsius)
    return None


def _processes(handle: Any) -> tuple[ProcessMemory, ...]:
    """All processes on the card, each once; the driver may list one as compute and as graphics."""
    listed: Iterable[Any] = [
        *(_optional(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle) or ()),
        *(_optional(pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, handle) or ()),
    ]
    held: dict[int, int | None] = {}
    for process in listed:
        mib = None if process.usedGpuMemory is None else process.usedGpuMemory // MIB
        before = held.get(process.pid)
        held[process.pid] = mib if before is None else max(before, mib or 0)
    return tuple(ProcessMemory(pid, mib) for pid, mib in sorted(held.items()))
