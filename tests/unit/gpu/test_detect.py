"""GPUs that a node offers. NVML is replaced here; the real path is in tests/contract/gpu/test_devices.py."""

import pytest

from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Device
from commonage.domain.reasons.devices import GpuNotReachable
from commonage.gpu import detect
from commonage.gpu.detect import check_wanted, describe, open_devices
from commonage.gpu.none import NoDevices
from commonage.gpu.simulated import SimulatedDevices
from commonage.ports.devices import DevicesUnavailable
from commonage.testing.fakes.clock import FakeClock


class Driver:
    """In the place of NvmlDevices: `finds` these GPUs, or cannot be used."""

    finds: tuple[Device, ...] | DevicesUnavailable = ()
    closed = 0
    versions = "driver 615.10, CUDA 13.1"

    def __init__(self, faults: object = None) -> None:
        if isinstance(Driver.finds, DevicesUnavailable):
            raise Driver.finds

    def inventory(self) -> tuple[Device, ...]:
        assert isinstance(Driver.finds, tuple)
        return Driver.finds

    def close(self) -> None:
        Driver.closed += 1


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> type[Driver]:
    monkeypatch.setattr(detect, "NvmlDevices", Driver)
    Driver.finds, Driver.closed = (), 0
    return Driver


def opened(wanted: str) -> detect.Opened:
    return open_devices(wanted, node_name="here", clock=FakeClock())


@pytest.mark.parametrize("wanted", ["auto", "nvml", " AUTO "])
def test_real_devices_are_taken_where_there_are_any(driver: type[Driver], wanted: str) -> None:
    driver.finds = (
        Device("GPU-1", 0, "Tesla T4", 14920),
        Device("GPU-2", 1, "Tesla T4", 14920, faults=(GpuNotReachable(),)),
    )
    devices, said = opened(wanted)
    assert isinstance(devices, Driver)
    assert said == "GPUs found by NVML (driver 615.10, CUDA 13.1): 2 x Tesla T4 (14.5 GiB); GPU 1 is faulty."


def test_without_a_driver_a_device_is_simulated_and_that_is_said(driver: type[Driver]) -> None:
    driver.finds = DevicesUnavailable("the driver is on strike: pay it")
    devices, said = opened("auto")
    assert [(device.memory_mib, device.simulated) for device in devices.inventory()] == [(24576, True)]
    assert said == (
        "No real GPU can be used, so one is simulated and nothing is computed on it: 1 x Simulated GPU (24 GiB). "
        "Why: the driver is on strike: pay it."
    )


def test_without_a_device_the_driver_is_let_go(driver: type[Driver]) -> None:
    devices, said = opened("auto")
    assert isinstance(devices, SimulatedDevices)
    assert "lists no GPU" in said
    assert driver.closed == 1


def test_nvml_takes_no_substitute(driver: type[Driver]) -> None:
    with pytest.raises(DevicesUnavailable, match="lists no GPU"):
        opened("nvml")
    assert driver.closed == 1


def test_simulated_devices_are_had_beside_real_ones(driver: type[Driver]) -> None:
    driver.finds = (Device("GPU-1", 0, "Tesla T4", 14920),)
    devices, said = opened("simulated:1x80GiB:A100,2x24GiB")
    assert all(device.simulated for device in devices.inventory())
    assert said == ("Simulated GPUs, nothing is computed on them: 1 x A100 (80 GiB), 2 x Simulated GPU (24 GiB).")


def test_none(driver: type[Driver]) -> None:
    driver.finds = (Device("GPU-1", 0, "Tesla T4", 14920),)
    devices, said = opened("none")
    assert isinstance(devices, NoDevices)
    assert (list(devices.inventory()), list(devices.measure())) == ([], [])
    assert devices.environment([])["CUDA_VISIBLE_DEVICES"] == ""
    assert "switched off" in said


@pytest.mark.parametrize("wanted", ["", "cuda", "2x24GiB", "simulated:no", "simulatedx", "x" * 10_000])
def test_others_are_refused(wanted: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        check_wanted(wanted)
    assert raised.value.problem_code == "invalid-gpus"
    assert len(raised.value.message) < 400


def test_describe_nothing() -> None:
    assert describe(()) == "none"
