"""The device port's contract, on simulated GPUs and on NVML with a fake driver; and what is NVML's alone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.nvml.harness import FakeDriver, NvmlProcess, build_library

from commonage.domain.nodes import Device
from commonage.domain.reasons.devices import GpuDriverFailed, GpuMemoryUnknown, GpuNotListed, MigWithoutInstances
from commonage.gpu.detect import share_devices
from commonage.gpu.isolation.devices import Sharing
from commonage.gpu.simulated import SimulatedDevices, parse_simulated
from commonage.gpu.slots import parse_slots
from commonage.ports.devices import Devices, DevicesUnavailable, ProcessMemory
from commonage.testing.devices_contract import DevicesContract, hold_of, share_of
from commonage.testing.fakes.clock import FakeClock

VERSIONS = {"driver": "615.10", "cuda": "13.1"}
NODE = ("driver 615.10", "nvml 13.615.10", "cuda 13010")
A100 = (
    "device",
    "uuid GPU-aaaaaaaa-0000-0000-0000-000000000000",
    "name NVIDIA A100-SXM4-80GB",
    "memory 81920 600 10240",
    "utilisation 37",
    "power 250500",
    "temperature 61",
    "mig 0",
    "process 4711 2048 c",
    "process 4711 2100 g",
    "process 4712 -1 c",
    "process 4713 64 g",
)
T4 = ("device", "uuid GPU-bbbbbbbb-0000-0000-0000-000000000000", "name Tesla T4", "memory 15360 440 0", "utilisation 0")


class TestSimulated(DevicesContract):
    @pytest.fixture
    def devices(self) -> Devices:
        gpus = parse_simulated("simulated:1x80GiB:A100,2x24GiB")
        return SimulatedDevices(gpus, node_name="here", now=lambda: 1000.0)


class TestSimulatedAndShared(DevicesContract):
    """As the server opens them: with levels of isolation, slots, and files."""

    @pytest.fixture
    def devices(self, tmp_path: Path) -> Devices:
        sharing = Sharing(tmp_path / "gpus", slots=parse_slots("A100=3"))
        return share_devices("simulated:1x80GiB:A100,2x24GiB", sharing, node_name="here", clock=FakeClock()).devices

    def test_slots_are_by_model(self, devices: Devices) -> None:
        assert [gpu.slots for gpu in devices.inventory()] == [3, 0, 0]

    def test_what_is_held_outlives_the_process(self, devices: Devices, tmp_path: Path) -> None:
        devices.enforce(hold_of("a-1", devices))
        later = share_devices("simulated", Sharing(tmp_path / "gpus"), node_name="here", clock=FakeClock()).devices
        assert list(later.enforced()) == ["a-1"]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml")).parent


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    driver = FakeDriver(tmp_path / "nvml.state")
    driver.says(*NODE, *A100, *T4)
    return driver


@pytest.fixture
def nvml(library: Path, driver: FakeDriver) -> Iterator[NvmlProcess]:
    process = NvmlProcess(library, driver.path)
    yield process
    process.end()


@pytest.mark.needs("gcc")
class TestNvml(DevicesContract):
    @pytest.fixture
    def devices(self, nvml: NvmlProcess) -> Devices:
        return nvml


@pytest.mark.needs("gcc")
class TestNvmlWithALostGpu(DevicesContract):
    """One GPU lost before we look, one in the middle: the other keeps the contract."""

    @pytest.fixture
    def devices(self, nvml: NvmlProcess, driver: FakeDriver) -> Devices:
        driver.says(*NODE, *A100, *T4, "lost 15", "device", "lost 15")
        return nvml


needs_gcc = pytest.mark.needs("gcc")


def named(devices: Devices) -> dict[str, Device]:
    return {device.model: device for device in devices.inventory()}


@needs_gcc
def test_nvml_inventory(nvml: NvmlProcess) -> None:
    assert list(nvml.inventory()) == [
        Device("GPU-aaaaaaaa-0000-0000-0000-000000000000", 0, "NVIDIA A100-SXM4-80GB", 81320, **VERSIONS),
        Device("GPU-bbbbbbbb-0000-0000-0000-000000000000", 1, "Tesla T4", 14920, **VERSIONS),
    ]
    assert nvml.versions == "driver 615.10, CUDA 13.1"


@needs_gcc
def test_nvml_measures(nvml: NvmlProcess) -> None:
    a100, t4 = nvml.measure()
    assert (a100.memory_used_mib, a100.utilisation, a100.power_w, a100.temperature_c) == (10240, 0.37, 250.5, 61.0)
    # Listed twice, counted once; what the driver does not tell stays unknown.
    assert a100.processes == (ProcessMemory(4711, 2100), ProcessMemory(4712, None), ProcessMemory(4713, 64))
    assert (t4.memory_used_mib, t4.utilisation, t4.power_w, t4.temperature_c) == (0, 0.0, None, None)
    assert t4.processes == ()


@needs_gcc
def test_nvml_sees_change_without_a_restart(nvml: NvmlProcess, driver: FakeDriver) -> None:
    driver.says(*NODE, *T4, "process 9 100 c")
    driver.says(*NODE, *(line.replace("utilisation 0", "utilisation 99") for line in T4))
    assert [sample.utilisation for sample in nvml.measure()] == [0.99]


@needs_gcc
def test_nvml_gpu_without_figures(nvml: NvmlProcess, driver: FakeDriver) -> None:
    driver.says(*NODE, "device", "uuid GPU-cccc")
    (sample,) = nvml.measure()
    assert sample.uuid == "GPU-cccc"
    assert (sample.memory_used_mib, sample.utilisation, sample.power_w, sample.temperature_c) == (None,) * 4
    (gpu,) = nvml.inventory()
    assert (gpu.model, gpu.memory_mib) == ("unnamed GPU", 0)
    assert gpu.faults == (GpuMemoryUnknown(),)


@needs_gcc
def test_nvml_older_driver_counts_by_the_older_calls(nvml: NvmlProcess, driver: FakeDriver) -> None:
    driver.says("fail nvmlDeviceGetMemoryInfo_v2 13", "fail nvmlDeviceGetTemperatureV 13", *NODE[:1], *A100)
    (sample,) = nvml.measure()
    assert (sample.memory_used_mib, sample.temperature_c) == (10840, 61.0)
    assert nvml.inventory()[0].memory_mib == 81920


@needs_gcc
def test_nvml_gpu_in_mig_mode_takes_no_work(nvml: NvmlProcess, driver: FakeDriver) -> None:
    driver.says(*NODE, *(line.replace("mig 0", "mig 1") for line in A100), *T4)
    a100, t4 = nvml.inventory()
    assert a100.faults == (MigWithoutInstances(index=a100.index),)
    assert not t4.faults


@needs_gcc
@pytest.mark.parametrize("code", [15, 16, 999])
def test_nvml_gpu_that_is_lost_in_the_middle(nvml: NvmlProcess, driver: FakeDriver, code: int) -> None:
    healthy = named(nvml)["Tesla T4"]
    driver.says(*NODE, *A100, *T4, f"lost {code}")
    assert [sample.uuid for sample in nvml.measure()] == ["GPU-aaaaaaaa-0000-0000-0000-000000000000"]
    lost = named(nvml)["Tesla T4"]
    assert (lost.uuid, lost.memory_mib, len(lost.faults)) == (healthy.uuid, healthy.memory_mib, 1)
    assert not named(nvml)["NVIDIA A100-SXM4-80GB"].faults
    driver.says(*NODE, *A100, *T4)
    assert named(nvml)["Tesla T4"] == healthy


@needs_gcc
def test_nvml_gpu_that_is_no_longer_listed(nvml: NvmlProcess, driver: FakeDriver) -> None:
    nvml.inventory()
    driver.says(*NODE, *T4)
    gone = named(nvml)["NVIDIA A100-SXM4-80GB"]
    assert gone.faults == (GpuNotListed(search="Xid"),)
    assert not named(nvml)["Tesla T4"].faults
    driver.says(*NODE, *A100, *T4)
    assert not named(nvml)["NVIDIA A100-SXM4-80GB"].faults


def driver_error(gpu: Device) -> str:
    (fault,) = gpu.faults
    assert isinstance(fault, GpuDriverFailed)
    return fault.error


@needs_gcc
def test_nvml_driver_that_goes_in_the_middle_and_comes_back(nvml: NvmlProcess, driver: FakeDriver) -> None:
    before = list(nvml.inventory())
    driver.path.unlink()
    assert list(nvml.measure()) == []
    assert all(driver_error(gpu).startswith("the NVIDIA driver is installed but not") for gpu in nvml.inventory())
    driver.says(*NODE, "fail nvmlInitWithFlags 18", "fail nvmlDeviceGetCount_v2 1", *A100, *T4)
    assert all("version mismatch" in driver_error(gpu) for gpu in nvml.inventory())
    driver.says(*NODE, *A100, *T4)
    assert list(nvml.inventory()) == before


@needs_gcc
@pytest.mark.parametrize(
    ("code", "what_to_do", "retryable"),
    [
        (18, "reboot, or end everything that uses a GPU and reload it", False),
        (9, "modprobe nvidia", False),
        (4, "/dev/nvidiactl", False),
        (17, "cgroup", False),
        (10, "try `nvidia-smi`", True),
        (999, "try `nvidia-smi`", False),
    ],
)
def test_nvml_that_cannot_be_used(
    library: Path, driver: FakeDriver, code: int, what_to_do: str, retryable: bool
) -> None:
    driver.says(f"fail nvmlInitWithFlags {code}")
    with pytest.raises(DevicesUnavailable, match=what_to_do) as raised:
        NvmlProcess(library, driver.path)
    assert raised.value.is_retryable is retryable
    assert raised.value.problem_code == "devices-unavailable"


@needs_gcc
def test_nvml_that_breaks_before_a_gpu_was_seen(nvml: NvmlProcess, driver: FakeDriver) -> None:
    driver.says("fail nvmlDeviceGetCount_v2 999")
    with pytest.raises(DevicesUnavailable):
        nvml.inventory()


def test_nvml_without_a_library(tmp_path: Path) -> None:
    # Not a library, but first on the path: it hides a real one, so that this holds on a node with GPUs
    # too.
    (tmp_path / "libnvidia-ml.so.1").write_text("nothing")
    with pytest.raises(DevicesUnavailable, match="install the NVIDIA driver"):
        NvmlProcess(tmp_path, tmp_path / "none")


@needs_gcc
def test_nvml_takes_off_a_measured_context(library: Path, driver: FakeDriver) -> None:
    uuid = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
    nvml = NvmlProcess(library, driver.path, context_mib={uuid: 300})
    a100 = nvml.inventory()[0]
    assert nvml.environment([share_of(a100, 4396)])["CUPY_GPU_MEMORY_LIMIT"] == str(4096 * 1024**2)
    nvml.end()


@needs_gcc
def test_nvml_is_what_a_node_with_gpus_opens(library: Path, driver: FakeDriver) -> None:
    assert said_by(library, driver, "auto") == (
        "GPUs found by NVML (driver 615.10, CUDA 13.1): 1 x NVIDIA A100-SXM4-80GB (79.4 GiB), 1 x Tesla T4 (14.5 GiB)."
    )


@needs_gcc
def test_nvml_that_is_broken_is_said_where_a_gpu_is_simulated_instead(library: Path, driver: FakeDriver) -> None:
    driver.says("fail nvmlInitWithFlags 18")
    said = said_by(library, driver, "auto")
    assert said.startswith("No real GPU can be used, so one is simulated")
    assert "Driver/library version mismatch" in said


def said_by(library: Path, driver: FakeDriver, wanted: str) -> str:
    program = """
import sys
from commonage.gpu.detect import open_devices
from commonage.testing.fakes.clock import FakeClock
opened = open_devices(sys.argv[1], node_name="here", clock=FakeClock())
print(opened.said)
opened.devices.close()
"""
    variables = {**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML_STATE": str(driver.path)}
    run = subprocess.run(
        [sys.executable, "-c", program, wanted], env=variables, check=True, capture_output=True, text=True
    )
    return run.stdout.strip()
