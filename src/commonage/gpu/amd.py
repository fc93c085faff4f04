"""The AMD GPUs of this node, through AMD's management library (amdsmi), as far as it has the data.

Opened by `detect.open_devices` where it is requested, or where there is no NVIDIA GPU. Shares are cooperative here: the
library cannot set limits. Units as amdsmi 6.4 to 7 gives them: VRAM of GPUs in MiB and of processes in bytes, power in
watts and its cap in microwatts, energy in steps of microjoules, clocks in MHz. Not available: throttle reasons, the
utilisation of single processes. Source: AMD SMI Python API reference.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from commonage.domain.nodes import Device, Share
from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import (
    GpuDriverFailed,
    GpuMemoryErrorsSeen,
    GpuMemoryUnknown,
    GpuNotAnswering,
    GpuNotListed,
    MemoryPagesRetired,
)
from commonage.gpu.environment import MIB, share_environment
from commonage.ports.devices import Devices, DeviceSample, DevicesUnavailable, ProcessMemory

_ADVICE = "look for `amdgpu` in `dmesg`, and reset it with `amd-smi reset -G` or reboot"
_HIDDEN = "-1"  # an invalid index ends the list; an empty list would count as unset


@dataclass(frozen=True, slots=True)
class _Gpu:
    """A GPU that answers. `number` is its HIP index."""

    handle: Any
    number: int
    uuid: str
    by_uuid: bool


class AmdDevices(Devices):
    """GPUs by amdsmi. `api` replaces the module in tests. Raises DevicesUnavailable if it cannot be used."""

    def __init__(self, *, api: Any = None) -> None:
        self._lock = threading.Lock()  # the library does not document thread safety
        self._api = api if api is not None else load_library()
        self._known: dict[str, Device] = {}
        self._by_uuid = True
        self._open = False
        self._whole("amdsmi_init")
        self._open = True

    @property
    def versions(self) -> str:
        """For people: `amdgpu 6.12.12`, as far as the driver reports it."""
        with self._lock:
            return next((self._driver(handle) for handle in self._ask("amdsmi_get_processor_handles") or ()), "")

    def inventory(self) -> Sequence[Device]:
        with self._lock:
            try:
                handles = self._whole("amdsmi_get_processor_handles")
            except DevicesUnavailable as error:
                if not self._known:
                    raise
                faults = (GpuDriverFailed(error=error.message),)
                return tuple(replace(device, faults=faults) for device in self._known.values())
            gpus = {number: self._gpu(handle, number) for number, handle in enumerate(handles)}
            answering = [gpu for gpu in gpus.values() if isinstance(gpu, _Gpu)]
            self._by_uuid = all(gpu.by_uuid for gpu in answering)
            seen = [
                self._device(gpu, answering) if isinstance(gpu, _Gpu) else self._at_fault(number, gpu)
                for number, gpu in gpus.items()
            ]
            uuids = {device.uuid for device in seen}
            taken = {device.index for device in seen}
            for device in [old for uuid, old in self._known.items() if uuid not in uuids]:
                index = device.index if device.index not in taken else max(taken) + 1
                taken.add(index)
                seen.append(replace(device, index=index, faults=(GpuNotListed(search="amdgpu"),)))
            return tuple(sorted(seen, key=lambda device: device.index))

    def measure(self) -> Sequence[DeviceSample]:
        with self._lock:
            handles = self._ask("amdsmi_get_processor_handles") or ()
            gpus = (self._gpu(handle, number) for number, handle in enumerate(handles))
            return tuple(self._sample(gpu) for gpu in gpus if isinstance(gpu, _Gpu))

    def environment(self, shares: Sequence[Share]) -> Mapping[str, str]:
        """The variables of `share_environment`, plus those that ROCm reads.

        ROCR_VISIBLE_DEVICES is applied first and takes uuids; HIP_VISIBLE_DEVICES counts among the devices that remain.
        """
        variables = share_environment(shares)
        indices = dict.fromkeys(share.device_index for share in shares)
        if not shares:
            return variables | {"ROCR_VISIBLE_DEVICES": _HIDDEN, "HIP_VISIBLE_DEVICES": _HIDDEN}
        if not self._by_uuid:
            return variables | {"HIP_VISIBLE_DEVICES": ",".join(str(index) for index in indices)}
        uuids = dict.fromkeys(share.device_uuid for share in shares)
        left = ",".join(str(place) for place in range(len(uuids)))
        return variables | {"ROCR_VISIBLE_DEVICES": ",".join(uuids), "HIP_VISIBLE_DEVICES": left}

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open = False
                self._ask("amdsmi_shut_down")

    # --- under the lock ---------------------------------------------------------------------------------------------

    def _whole(self, name: str, *args: Any) -> Any:
        """A call that concerns the driver as a whole. Raises DevicesUnavailable."""
        try:
            return getattr(self._api, name)(*args)
        except self._api.AmdSmiException as error:
            raise DevicesUnavailable(
                f"AMD's management library answers {_short(error)}: load the driver with `modprobe amdgpu`, give this "
                "user the groups `render` and `video`, and try `amd-smi list`"
            ) from error

    def _ask(self, name: str, *args: Any) -> Any:
        """The library's answer; None if the GPU, the driver or this version of the library does not give the value."""
        function = getattr(self._api, name, None)
        if function is None:
            return None
        try:
            return function(*args)
        except self._api.AmdSmiException:
            return None

    def _figure(self, name: str, handle: Any, field: str, *args: Any) -> float | None:
        found = self._ask(name, handle, *args)
        return _number(found.get(field)) if isinstance(found, dict) else _number(found)

    def _driver(self, handle: Any) -> str:
        found = self._ask("amdsmi_get_gpu_driver_info", handle) or {}
        version = _text(found.get("driver_version"))
        return f"{_text(found.get('driver_name')) or 'amdgpu'} {version}".strip()

    def _gpu(self, handle: Any, number: int) -> _Gpu | str:
        """The GPU, or its error. HIP knows its uuid as `GPU-` and sixteen digits, if it has one."""
        try:
            own = str(self._api.amdsmi_get_gpu_device_uuid(handle))
        except self._api.AmdSmiException as error:
            return _short(error)
        hip = self._ask("amdsmi_get_gpu_enumeration_info", handle) or {}
        uuid = _text(hip.get("hip_uuid"))
        known = uuid.startswith("GPU-") and uuid != "GPU-XX"
        place = _number(hip.get("hip_id"))
        return _Gpu(handle, number if place is None else int(place), uuid if known else f"AMD-{own}", known)

    def _at_fault(self, number: int, why: str) -> Device:
        faults = (GpuNotAnswering(error=why, advice=_ADVICE),)
        known = next((device for device in self._known.values() if device.index == number), None)
        return replace(known or Device(f"AMD-UNREADABLE-{number}", number, "unreadable GPU", 0), faults=faults)

    def _device(self, gpu: _Gpu, gpus: Sequence[_Gpu]) -> Device:
        asic = self._ask("amdsmi_get_gpu_asic_info", gpu.handle) or {}
        memory = self._figure("amdsmi_get_gpu_vram_usage", gpu.handle, "vram_total")
        device = Device(
            uuid=gpu.uuid,
            index=gpu.number,
            model=_text(asic.get("market_name")) or "unnamed GPU",
            memory_mib=int(memory or 0),
            faults=() if memory else (GpuMemoryUnknown(),),
            driver=self._driver(gpu.handle),
            compute_capability=_text(asic.get("target_graphics_version")),
            pci=_text(self._ask("amdsmi_get_gpu_device_bdf", gpu.handle)).lower(),
            numa=self._numa(gpu.handle),
            peers=tuple((other.uuid, 1) for other in gpus if other is not gpu and self._linked(gpu, other)),
            notices=self._notices(gpu.handle),
        )
        self._known[device.uuid] = device
        return device

    def _numa(self, handle: Any) -> int | None:
        node = self._figure("amdsmi_topo_get_numa_node_number", handle, "")
        return int(node) if node is not None and node < 1 << 16 else None

    def _linked(self, gpu: _Gpu, other: _Gpu) -> bool:
        """Whether XGMI, AMD's link between GPUs, connects them."""
        link = self._ask("amdsmi_topo_get_link_type", gpu.handle, other.handle)
        kinds = getattr(self._api, "AmdSmiLinkType", None)
        return bool(link) and kinds is not None and link["type"] == int(kinds.AMDSMI_LINK_TYPE_XGMI)

    def _notices(self, handle: Any) -> tuple[Reason, ...]:
        notices: list[Reason] = []
        count = self._figure("amdsmi_get_gpu_total_ecc_count", handle, "uncorrectable_count")
        if count:
            notices.append(GpuMemoryErrorsSeen(count=int(count)))
        pages = self._ask("amdsmi_get_gpu_bad_page_info", handle)
        if isinstance(pages, list) and pages:
            notices.append(MemoryPagesRetired(count=len(pages)))
        return tuple(notices)

    def _sample(self, gpu: _Gpu) -> DeviceSample:
        handle = gpu.handle
        used = self._figure("amdsmi_get_gpu_vram_usage", handle, "vram_used")
        busy = self._figure("amdsmi_get_gpu_activity", handle, "gfx_activity")
        cap_uw = self._figure("amdsmi_get_power_cap_info", handle, "power_cap")
        return DeviceSample(
            uuid=gpu.uuid,
            memory_used_mib=None if used is None else int(used),
            utilisation=None if busy is None else min(100.0, busy) / 100,
            power_w=self._power_w(handle),
            temperature_c=self._temperature_c(handle),
            processes=self._processes(handle),
            energy_j=self._energy_j(handle),
            power_limit_w=None if not cap_uw else cap_uw / 1e6,
            sm_clock_mhz=self._clock_mhz(handle, "GFX"),
            memory_clock_mhz=self._clock_mhz(handle, "MEM"),
            ecc_corrected=_whole(self._figure("amdsmi_get_gpu_total_ecc_count", handle, "correctable_count")),
            ecc_uncorrected=_whole(self._figure("amdsmi_get_gpu_total_ecc_count", handle, "uncorrectable_count")),
        )

    def _power_w(self, handle: Any) -> float | None:
        """Current power; older GPUs give only an average."""
        found = self._ask("amdsmi_get_power_info", handle) or {}
        figures = (_number(found.get(f"{which}socket_power")) for which in ("current_", "average_", ""))
        return next((watts for watts in figures if watts), None)

    def _temperature_c(self, handle: Any) -> float | None:
        """The edge temperature, or that of the hotspot on newer GPUs, which have no edge sensor."""
        current = self._api.AmdSmiTemperatureMetric.CURRENT
        for sensor in ("EDGE", "HOTSPOT"):
            celsius = _number(
                self._ask("amdsmi_get_temp_metric", handle, self._api.AmdSmiTemperatureType[sensor], current)
            )
            if celsius:
                return celsius
        return None

    def _energy_j(self, handle: Any) -> float | None:
        found = self._ask("amdsmi_get_energy_count", handle) or {}
        steps, microjoules = _number(found.get("energy_accumulator")), _number(found.get("counter_resolution"))
        return None if steps is None or not microjoules else steps * microjoules / 1e6

    def _clock_mhz(self, handle: Any, domain: str) -> int | None:
        return _whole(self._figure("amdsmi_get_clock_info", handle, "clk", self._api.AmdSmiClkType[domain]))

    def _processes(self, handle: Any) -> tuple[ProcessMemory, ...]:
        held: dict[int, int | None] = {}
        for one in self._ask("amdsmi_get_gpu_process_list", handle) or ():
            size = _number((one.get("memory_usage") or {}).get("vram_mem"))
            held[int(one["pid"])] = None if size is None else int(size) // MIB
        return tuple(ProcessMemory(pid, mib) for pid, mib in sorted(held.items()))


def load_library() -> Any:
    """The module amdsmi. Raises DevicesUnavailable with what to do if it is not installed."""
    try:
        # Not at the top: it is an extra, and loads AMD's library on import. It prints its errors, which must not get
        # into a command's output.
        with contextlib.redirect_stdout(io.StringIO()):
            return importlib.import_module("amdsmi")
    except ImportError as error:
        raise DevicesUnavailable(
            "AMD GPUs need Python's amdsmi: install Commonage with its extra `amd`", retryable=False
        ) from error
    except (KeyError, OSError, AttributeError) as error:  # how it fails without AMD's library
        raise DevicesUnavailable(
            "AMD's management library (libamd_smi.so) cannot be loaded here: install ROCm's amd-smi-lib, and set "
            "ROCM_PATH if it is not in /opt/rocm",
            retryable=False,
        ) from error


def _short(error: Any) -> str:
    told = getattr(error, "err_info", None) or str(error)
    return repr(" ".join(str(told).split()))


def _number(value: Any) -> float | None:
    """A number; amdsmi returns N/A for a missing value."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _text(value: Any) -> str:
    return "" if value in (None, "N/A") else str(value).strip()
