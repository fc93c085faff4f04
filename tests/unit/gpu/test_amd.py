"""AMD GPUs, by a fake of AMD's module: reported values are shown, missing ones stay unknown, and faults are named."""

import sys
from pathlib import Path

import pytest
from tests.fakes.amdsmi import NO_PERM, TIMEOUT, FakeAmdSmi, Gpu

from commonage.domain.nodes import Device
from commonage.domain.reasons.devices import (
    GpuDriverFailed,
    GpuMemoryErrorsSeen,
    GpuNotAnswering,
    GpuNotListed,
    MemoryPagesRetired,
)
from commonage.gpu import amd, detect
from commonage.gpu.amd import AmdDevices, load_library
from commonage.gpu.simulated import SimulatedDevices
from commonage.ports.devices import DeviceSample, DevicesUnavailable, ProcessMemory
from commonage.testing.devices_contract import DevicesContract, share_of
from commonage.testing.fakes.clock import FakeClock

FIRST = Gpu()
SECOND = Gpu(
    {
        "amdsmi_get_gpu_device_uuid": "04ff74a1-0000-1000-80b8-7e9c2a1d5f31",
        "amdsmi_get_gpu_enumeration_info": {"hip_id": 1, "hip_uuid": "GPU-b87e9c2a1d5f3105"},
    }
)
BARE = Gpu(
    {
        "amdsmi_get_gpu_enumeration_info": None,
        "amdsmi_get_gpu_activity": {"gfx_activity": "N/A"},
        "amdsmi_get_power_info": None,
        "amdsmi_get_power_cap_info": None,
        "amdsmi_get_temp_metric": None,
        "amdsmi_get_energy_count": None,
        "amdsmi_get_clock_info": None,
        "amdsmi_get_gpu_total_ecc_count": None,
        "amdsmi_get_gpu_bad_page_info": None,
        "amdsmi_get_gpu_process_list": None,
        "amdsmi_topo_get_numa_node_number": None,
    }
)


def opened(*gpus: Gpu, init: int = 0) -> AmdDevices:
    return AmdDevices(api=FakeAmdSmi(*gpus, init=init))


class TestAmd(DevicesContract):
    @pytest.fixture
    def devices(self) -> AmdDevices:
        return opened(FIRST, SECOND)


class TestAmdWithADeadAndABareGpu(DevicesContract):
    @pytest.fixture
    def devices(self) -> AmdDevices:
        return opened(BARE, Gpu(dead=TIMEOUT))


def test_inventory() -> None:
    first, second = opened(FIRST, SECOND).inventory()
    assert first == Device(
        "GPU-b87e9c2a1d5f3004",
        0,
        "AMD Instinct MI300X",
        196592,
        driver="amdgpu 6.12.12",
        compute_capability="gfx942",
        pci="0000:05:00.0",
        numa=1,
        peers=(("GPU-b87e9c2a1d5f3105", 1),),
    )
    assert (second.index, second.uuid) == (1, "GPU-b87e9c2a1d5f3105")


def test_measures() -> None:
    (sample,) = opened(FIRST).measure()
    assert sample == DeviceSample(
        "GPU-b87e9c2a1d5f3004",
        4096,
        0.37,
        power_w=312,
        temperature_c=52,
        processes=(ProcessMemory(4711, 2048), ProcessMemory(4712, None)),
        energy_j=pytest.approx(15.3),
        power_limit_w=750,
        sm_clock_mhz=2100,
        memory_clock_mhz=1300,
        ecc_corrected=3,
        ecc_uncorrected=0,
    )


def test_what_is_not_told_stays_unknown() -> None:
    devices = opened(BARE)
    (gpu,), (sample,) = devices.inventory(), devices.measure()
    assert sample == DeviceSample("AMD-04ff74a1-0000-1000-80b8-7e9c2a1d5f30", 4096, None)
    assert (gpu.faults, gpu.notices, gpu.numa) == ((), (), None)


def test_rocm_is_told_the_share_by_uuid_and_counts_anew() -> None:
    devices = opened(FIRST, SECOND)
    _, second = devices.inventory()
    variables = devices.environment([share_of(second)])
    assert (variables["ROCR_VISIBLE_DEVICES"], variables["HIP_VISIBLE_DEVICES"]) == (second.uuid, "0")
    hidden = devices.environment([])
    assert (hidden["ROCR_VISIBLE_DEVICES"], hidden["HIP_VISIBLE_DEVICES"]) == ("-1", "-1")


def test_a_gpu_without_a_uuid_of_rocm_is_told_by_its_index() -> None:
    devices = opened(FIRST, BARE)
    _, bare = devices.inventory()
    variables = devices.environment([share_of(bare)])
    assert "ROCR_VISIBLE_DEVICES" not in variables
    assert variables["HIP_VISIBLE_DEVICES"] == "1"


def test_a_gpu_that_dies_goes_and_comes_back() -> None:
    api = FakeAmdSmi(Gpu(), SECOND)
    devices = AmdDevices(api=api)
    before = list(devices.inventory())
    api.gpus[0].dead = TIMEOUT
    first, second = devices.inventory()
    assert isinstance(first.faults[0], GpuNotAnswering)
    assert (first.uuid, second.faults) == (before[0].uuid, ())
    assert [sample.uuid for sample in devices.measure()] == [second.uuid]
    gone = api.gpus.pop(0)
    missing = next(gpu for gpu in devices.inventory() if gpu.uuid == first.uuid)
    assert missing.faults == (GpuNotListed(search="amdgpu"),)
    gone.dead = 0
    api.gpus.insert(0, gone)
    assert list(devices.inventory()) == before


def test_a_driver_that_goes_in_the_middle() -> None:
    api = FakeAmdSmi(Gpu())
    devices = AmdDevices(api=api)
    devices.inventory()
    api.init = TIMEOUT
    (fault,) = devices.inventory()[0].faults
    assert isinstance(fault, GpuDriverFailed)
    assert "modprobe amdgpu" in fault.error
    assert devices.measure() == ()


def test_memory_errors_are_worth_knowing() -> None:
    counts = {"correctable_count": 0, "uncorrectable_count": 2}
    says = {"amdsmi_get_gpu_total_ecc_count": counts, "amdsmi_get_gpu_bad_page_info": [{"value": 0}]}
    (gpu,) = opened(Gpu(says)).inventory()
    assert gpu.notices == (GpuMemoryErrorsSeen(count=2), MemoryPagesRetired(count=1))


def test_a_driver_that_cannot_be_used_says_what_to_do() -> None:
    with pytest.raises(DevicesUnavailable, match="groups `render` and `video`"):
        opened(init=NO_PERM)


@pytest.mark.parametrize(
    ("source", "words"),
    [("raise KeyError('libamd_smi.so')", "install ROCm's amd-smi-lib"), ("import no_such_module", "extra `amd`")],
)
def test_a_module_that_cannot_be_imported_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: str, words: str
) -> None:
    (tmp_path / "amdsmi.py").write_text(f"print('Unable to find libamd_smi.so')\n{source}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    with pytest.raises(DevicesUnavailable, match=words):
        load_library()
    assert not capsys.readouterr().out


def no_nvidia(**_settings: object) -> None:
    raise DevicesUnavailable("install the NVIDIA driver")


@pytest.fixture
def no_nvml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(detect, "NvmlDevices", no_nvidia)
    monkeypatch.setattr(detect, "AMD_DRIVER", tmp_path)
    monkeypatch.setattr(amd, "load_library", lambda: FakeAmdSmi(FIRST))


def found(wanted: str) -> detect.Opened:
    return detect.open_devices(wanted, node_name="here", clock=FakeClock())


@pytest.mark.parametrize("wanted", ["auto", "amd"])
def test_amd_gpus_are_found_where_there_are_no_others(no_nvml: None, wanted: str) -> None:
    devices, said = found(wanted)
    assert isinstance(devices, AmdDevices)
    assert said == "GPUs found by AMD SMI (amdgpu 6.12.12): 1 x AMD Instinct MI300X (191.9 GiB)."


def test_without_amds_driver_its_module_is_not_even_loaded(no_nvml: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "AMD_DRIVER", Path("/nowhere"))
    devices, said = found("auto")
    assert isinstance(devices, SimulatedDevices)
    assert "install the NVIDIA driver" in said
