"""The agent's GPUs: simulated ones, none, and a driver that does not answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from commonage.agent import devices as module
from commonage.agent.config import AgentConfig
from commonage.agent.devices import AgentDevices
from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Allocation, Device, Share
from commonage.domain.reasons.devices import GpuDriverSilent
from commonage.domain.reasons.nodes import GpuDriverUnavailable
from commonage.domain.statuses import ProcessOwner
from commonage.engines.containers.daemon.info import services_fault
from commonage.gpu.detect import Opened
from commonage.gpu.none import NoDevices
from commonage.ports.devices import DevicesUnavailable, ShareAssignment

pytestmark = pytest.mark.anyio


def config(folder: Path, gpus: str = "simulated:2x24GiB", isolation: str = "auto") -> AgentConfig:
    return AgentConfig("w1", ("hub:1",), "", "", "", "", str(folder), gpus=gpus, isolation=isolation)


def nobody(_pids: object) -> Sequence[ProcessOwner]:
    return ()


def part(device: Device, mib: int = 1024) -> Share:
    return Share(device.uuid, device.index, device.model, mib, 100, False, device.memory_mib, simulated=True)


@pytest.fixture
async def devices(tmp_path: Path) -> AsyncIterator[AgentDevices]:
    devices = AgentDevices(config(tmp_path))
    yield devices
    await devices.close()


async def test_shares_are_enforced_and_released(devices: AgentDevices) -> None:
    look = await devices.snapshot(nobody)
    assert [one.index for one in look.devices] == [0, 1]
    share = part(look.devices[0])
    variables = await devices.enforce(ShareAssignment("a-1", (share,), in_container=True))
    assert isinstance(variables, dict)
    await devices.note_allocations([Allocation("a-1", "local", "w1", 1000, 1024, (share,), 0.0)])
    look = await devices.snapshot(nobody)
    assert [one.attempt_id for one in look.samples[0].processes] == ["a-1"]
    await devices.release(["a-1", "never-there"])
    await devices.resume(look.devices[0].uuid)
    assert list(await devices.take_warnings()) == []


async def test_shares_of_ended_attempts_are_released_after_a_while(devices: AgentDevices) -> None:
    look = await devices.snapshot(nobody)
    for attempt in ("a-1", "a-2"):
        await devices.enforce(ShareAssignment(attempt, (part(look.devices[0]),), in_container=True))
    await devices.release_stale(["a-2"], 0)
    await devices.release_stale(["a-2"], 500)
    assert sorted(await devices._in_driver_thread(devices._devices.enforced)) == ["a-1", "a-2"]
    await devices.release_stale(["a-2"], 700)
    assert list(await devices._in_driver_thread(devices._devices.enforced)) == ["a-2"]


async def test_gpu_without_container_runtime_has_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Real(NoDevices):
        def inventory(self) -> Sequence[Device]:
            return [
                Device("GPU-1", 0, "A10", 24576, compute_capability="8.6"),
                Device("GPU-2", 1, "MI300X", 24576, compute_capability="gfx942"),
                Device("GPU-SIM-1", 2, "Simulated", 24576, simulated=True),
            ]

    monkeypatch.setattr(module, "share_devices", lambda *_, **__: Opened(Real(), "three"))
    devices = AgentDevices(config(tmp_path))
    devices.set_withheld_reason(services_fault({"DefaultRuntime": "runc", "Runtimes": {"runc": {"path": "runc"}}}))
    faults = [len(one.faults) for one in (await devices.snapshot(nobody)).devices]
    assert faults == [1, 0, 0]
    devices.set_withheld_reason(
        services_fault({"DefaultRuntime": "gpu", "Runtimes": {"gpu": {"path": "/bin/nvidia-container-runtime"}}})
    )
    assert not any(one.faults for one in (await devices.snapshot(nobody)).devices)
    await devices.close()


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> None:
        raise DevicesUnavailable("there is no driver", retryable=False)

    monkeypatch.setattr(module, "share_devices", absent)


@pytest.mark.usefixtures("no_driver")
async def test_node_without_gpus_has_no_fault(tmp_path: Path) -> None:
    devices = AgentDevices(config(tmp_path, "auto"))
    look = await devices.snapshot(nobody)
    assert (look.devices, look.fault) == ((), None)  # nothing is simulated unless the settings request it
    await devices.close()


@pytest.mark.usefixtures("no_driver")
async def test_missing_configured_gpus_are_a_fault(tmp_path: Path) -> None:
    devices = AgentDevices(config(tmp_path, "nvml"))
    look = await devices.snapshot(nobody)
    assert look.devices == ()
    assert look.fault == GpuDriverUnavailable(error="there is no driver")
    await devices.close()


async def test_silent_driver_is_a_fault_and_does_not_block(
    devices: AgentDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await devices.snapshot(nobody)
    stuck = threading.Event()
    monkeypatch.setattr(module, "_DRIVER_TIMEOUT_S", 0.1)
    monkeypatch.setattr(devices._devices, "measure", lambda: stuck.wait() and ())
    look = await devices.snapshot(nobody)
    assert devices.is_silent
    assert [one.faults for one in look.devices] == [(GpuDriverSilent(),)] * len(before.devices)
    assert look.samples == ()
    stuck.set()
    while devices.is_silent:
        look = await devices.snapshot(nobody)
        await asyncio.sleep(0.01)
    assert [one.faults for one in look.devices] == [(), ()]


def test_refuses_unknown_isolation(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="set it to one of auto, driver-limit"):
        AgentDevices(config(tmp_path, isolation="strong"))
