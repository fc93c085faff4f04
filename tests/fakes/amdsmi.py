"""AMD's Python module `amdsmi`, without a GPU: the calls that we make, with the shapes and units of amdsmi 7.

`FakeAmdSmi(gpus)` stands in for the module. A call that a GPU has no answer for raises what the module raises.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

NOT_SUPPORTED, NOT_INIT, NO_PERM, TIMEOUT = 2, 32, 10, 9
FIGURES: dict[str, Any] = {
    "amdsmi_get_gpu_device_uuid": "04ff74a1-0000-1000-80b8-7e9c2a1d5f30",
    "amdsmi_get_gpu_enumeration_info": {
        "drm_render": 128,
        "drm_card": 1,
        "hsa_id": 1,
        "hip_id": 0,
        "hip_uuid": "GPU-b87e9c2a1d5f3004",
    },
    "amdsmi_get_gpu_asic_info": {
        "market_name": "AMD Instinct MI300X",
        "target_graphics_version": "gfx942",
        "num_compute_units": 304,
    },
    "amdsmi_get_gpu_driver_info": {
        "driver_name": "amdgpu",
        "driver_version": "6.12.12",
        "driver_date": "2025/05/01 00:00",
    },
    "amdsmi_get_gpu_device_bdf": "0000:05:00.0",
    "amdsmi_get_gpu_vram_usage": {"vram_total": 196592, "vram_used": 4096},
    "amdsmi_get_gpu_activity": {"gfx_activity": 37, "umc_activity": 2, "mm_activity": "N/A"},
    "amdsmi_get_power_info": {
        "socket_power": 312,
        "current_socket_power": 312,
        "average_socket_power": "N/A",
        "power_limit": 750,
    },
    "amdsmi_get_power_cap_info": {"power_cap": 750_000_000, "default_power_cap": 750_000_000},
    "amdsmi_get_temp_metric": {"HOTSPOT": 52},
    "amdsmi_get_energy_count": {"energy_accumulator": 1_000_000, "counter_resolution": 15.3, "timestamp": 1},
    "amdsmi_get_clock_info": {"GFX": {"clk": 2100, "max_clk": 2100}, "MEM": {"clk": 1300, "max_clk": 1300}},
    "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 3, "uncorrectable_count": 0, "deferred_count": 0},
    "amdsmi_get_gpu_bad_page_info": [],
    "amdsmi_topo_get_numa_node_number": 1,
    "amdsmi_get_gpu_process_list": [
        {
            "name": "python3",
            "pid": 4711,
            "mem": 2 << 30,
            "memory_usage": {"gtt_mem": 0, "cpu_mem": 0, "vram_mem": 2 << 30},
        },
        {"name": "N/A", "pid": 4712, "mem": 0, "memory_usage": {"gtt_mem": 0, "cpu_mem": 0, "vram_mem": "N/A"}},
    ],
}


class AmdSmiException(Exception):
    """Base of the module's errors."""


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, err_code: int) -> None:
        super().__init__(err_code)
        self.err_code = err_code
        self.err_info = f"AMDSMI_STATUS_{err_code} - some error"


class AmdSmiTemperatureType(IntEnum):
    EDGE = 0
    HOTSPOT = 1


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0


class AmdSmiClkType(IntEnum):
    GFX = 0
    MEM = 4


class AmdSmiLinkType(IntEnum):
    AMDSMI_LINK_TYPE_XGMI = 1
    AMDSMI_LINK_TYPE_PCIE = 2


@dataclass
class Gpu:
    """A GPU: `says` over FIGURES; None for what it does not support. `dead`: every call about it fails with that."""

    says: dict[str, Any] = field(default_factory=dict)
    dead: int = 0


class FakeAmdSmi:
    """The module. `init`: what amdsmi_init fails with."""

    AmdSmiException = AmdSmiException
    AmdSmiTemperatureType = AmdSmiTemperatureType
    AmdSmiTemperatureMetric = AmdSmiTemperatureMetric
    AmdSmiClkType = AmdSmiClkType
    AmdSmiLinkType = AmdSmiLinkType

    def __init__(self, *gpus: Gpu, init: int = 0) -> None:
        self.gpus, self.init, self.is_open = list(gpus), init, False

    def amdsmi_init(self) -> None:
        if self.init:
            raise AmdSmiLibraryException(self.init)
        self.is_open = True

    def amdsmi_shut_down(self) -> None:
        self.is_open = False

    def amdsmi_get_processor_handles(self) -> list[Gpu]:
        if not self.is_open or self.init:
            raise AmdSmiLibraryException(self.init or NOT_INIT)
        return list(self.gpus)

    def amdsmi_topo_get_link_type(self, one: Gpu, other: Gpu) -> dict[str, int]:
        return {"hops": 1, "type": AmdSmiLinkType.AMDSMI_LINK_TYPE_XGMI}

    def __getattr__(self, name: str) -> Any:
        if name not in FIGURES:
            raise AttributeError(name)

        def call(handle: Gpu, *which: IntEnum) -> Any:
            found = handle.says.get(name, FIGURES[name])
            if name in ("amdsmi_get_temp_metric", "amdsmi_get_clock_info") and found is not None:
                found = found.get(which[0].name)
            if handle.dead or found is None:
                raise AmdSmiLibraryException(handle.dead or NOT_SUPPORTED)
            return found

        return call
