"""A GPU fails under a running server: its workload is notified, nothing new starts on it, and an admin puts it back
into service.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance.served import Served, served
from tests.fakes.nvml.harness import FakeDriver, build_library
from tests.fakes.waiting import wait_until

from commonage.sdk import Client
from commonage.wire.reasons import ReasonOut

pytestmark = pytest.mark.needs("gcc")
DEVICE = (
    "driver 615.10", "cuda 13040", "device", "uuid GPU-aaaa", "name NVIDIA H100 80GB HBM3", "memory 81920 600 0",
    "utilisation 0", "power 90000 700000", "energy 5000000", "capability 9 0",
)  # fmt: skip


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    library = tmp_path / "library"
    library.mkdir()
    driver = FakeDriver(tmp_path / "nvml.state")
    driver.says(*DEVICE)
    for name, value in {
        "LD_LIBRARY_PATH": str(build_library(library).parent),
        "FAKE_NVML_STATE": str(driver.path),
        "COMMONAGE_SAMPLE_EVERY_S": "1",
        "COMMONAGE_GPU_ISOLATION": "cooperative",
    }.items():
        monkeypatch.setenv(name, value)
    return driver


@pytest.fixture
def server(tmp_path: Path, driver: FakeDriver) -> Iterator[Served]:
    with served(tmp_path, "--gpus", "nvml") as running:
        yield running


def faults(client: Client) -> list[ReasonOut]:
    (node,) = client.nodes()
    (device,) = node.devices
    return device.faults


def test_a_device_fails_and_comes_back(server: Served, driver: FakeDriver) -> None:
    ann, admin = server.token("ann"), server.token("admin", "--admin")
    client = Client(server.url, admin)
    shown = server.cli("node", "show", client.nodes()[0].name, token=ann).stdout
    assert "driver 615.10, CUDA 13.4" in shown
    made = server.cli("run", "--detach", "--gpus", "8GiB", "--", "sleep", "600", token=ann)
    assert made.returncode == 0, made.stderr
    (workload,) = client.workloads(owner="ann")
    wait_until(lambda: client.workload(workload.id).state == "running")

    driver.says(*DEVICE, "xid 1 95")
    wait_until(lambda: faults(client))
    told = next(one.reason for one in client.events(workload.id, after=0) if one.kind == "warning")
    assert (told.code, told.params["is_held"]) == ("GpuFault", True)
    assert [(fault["code"], fault["params"]["number"]) for fault in told.params["faults"]] == [("FatalXid", 95)]
    assert "Xid 95 (uncontained memory error)" in told.message
    assert client.workload(workload.id).state == "running"
    refused = server.cli("run", "--detach", "--gpus", "1GiB", "--", "true", token=ann)
    assert refused.returncode != 0
    assert "takes work" in refused.stderr

    server.kill()
    server.start()
    assert wait_until(lambda: faults(client))
    name = client.nodes()[0].name
    assert server.cli("node", "resume", name, "--gpu", "0", token=ann).returncode != 0
    assert server.cli("node", "resume", name, "--gpu", "0", token=admin).returncode == 0
    assert not faults(client)
    again = server.cli("run", "--gpus", "1GiB", "--", "true", token=ann)
    assert again.returncode == 0, again.stderr
