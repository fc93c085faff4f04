"""NVML devices on the fake library: inventory, MIG, health, Xids and measurements."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.nvml.harness import FakeDriver, NvmlProcess, build_library

from commonage.domain.nodes import Allocation, Device, Share
from commonage.domain.reasons import Reason
from commonage.domain.reasons import devices as r
from commonage.ports.devices import DeviceSample, ProcessMemory
from commonage.testing.devices_contract import DevicesContract

pytestmark = pytest.mark.needs("gcc")

NODE = ("driver 615.10", "nvml 13.615.10", "cuda 13040")
H100 = (
    "device",
    "uuid GPU-aaaa",
    "name NVIDIA H100 80GB HBM3",
    "memory 81920 600 10240",
    "capability 9 0",
    "pci 0000:3B:00.0",
    "numa 1",
    "energy 5000000",
    "persistence 1",
)
PEER = ("device", "uuid GPU-bbbb", "name NVIDIA H100 80GB HBM3", "memory 81920 600 0", "pci 0000:5E:00.0")
HALVES = ("mig 1", "instance MIG-1 1 0 40448 3 3g.40gb", "instance MIG-2 2 0 40448 3 3g.40gb")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml")).parent


@pytest.fixture(scope="module")
def node(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NvmlProcess, FakeDriver]]:
    """One process for all tests: to start one for each takes longer than the tests."""
    driver = FakeDriver(tmp_path_factory.mktemp("node") / "nvml.state")
    driver.says(*NODE, *H100)
    process = NvmlProcess(library, driver.path)
    yield process, driver
    process.end()


@pytest.fixture
def driver(node: tuple[NvmlProcess, FakeDriver]) -> Iterator[FakeDriver]:
    node[1].says(*NODE, *H100)
    yield node[1]
    node[1].path.with_name("nvml.state.used").unlink(missing_ok=True)


@pytest.fixture
def nvml(node: tuple[NvmlProcess, FakeDriver], driver: FakeDriver, tmp_path: Path) -> Iterator[NvmlProcess]:
    node[0].close()
    node[0].call("open", {"faults": tmp_path / "faults.json"})
    yield node[0]
    node[0].close()


def device(nvml: NvmlProcess) -> Device:
    (only,) = nvml.inventory()
    return only


def sample(nvml: NvmlProcess) -> DeviceSample:
    (only,) = nvml.measure()
    return only


class TestMigInstances(DevicesContract):
    @pytest.fixture
    def devices(self, nvml: NvmlProcess, driver: FakeDriver) -> NvmlProcess:
        driver.says(*NODE, *H100, *HALVES, *PEER)
        return nvml


class TestDeviceWithAFatalXid(DevicesContract):
    @pytest.fixture
    def devices(self, nvml: NvmlProcess, driver: FakeDriver) -> NvmlProcess:
        driver.says(*NODE, *H100, *PEER)
        nvml.inventory()
        driver.says(*NODE, *H100, *PEER, "xid 1 95")
        return nvml


def test_a_device_says_what_it_is_and_where(nvml: NvmlProcess) -> None:
    found = device(nvml)
    assert (found.driver, found.cuda, found.compute_capability) == ("615.10", "13.4", "9.0")
    assert (found.pci, found.numa, found.peers) == ("0000:3b:00.0", 1, ())


def test_peers_by_nvlink(nvml: NvmlProcess, driver: FakeDriver) -> None:
    links = ("nvlink 0 1 0000:5E:00.0", "nvlink 1 1 0000:5E:00.0", "nvlink 2 0 0000:5E:00.0", "nvlink 3 1 0000:99:00.0")
    driver.says(*NODE, *H100, *links, *PEER, "nvlink 0 1 0000:3B:00.0")
    first, second = nvml.inventory()
    assert (first.peers, second.peers) == ((("GPU-bbbb", 2),), (("GPU-aaaa", 1),))


def test_peers_through_switches(nvml: NvmlProcess, driver: FakeDriver) -> None:
    links = tuple(f"nvlink {link} 1 0000:C0:00.0 2" for link in range(4))
    driver.says(*NODE, *H100, *links, *PEER, *links[:2])
    first, second = nvml.inventory()
    assert (first.peers, second.peers) == ((("GPU-bbbb", 2),), (("GPU-aaaa", 2),))


# --- MIG ----------------------------------------------------------------------------------------------------------


def test_instances_stand_in_the_place_of_their_device(nvml: NvmlProcess, driver: FakeDriver) -> None:
    driver.says(*NODE, *H100, *HALVES)
    one, two = nvml.inventory()
    assert [(one.uuid, one.label, one.index), (two.uuid, two.label, two.index)] == [
        ("MIG-1", "0:0", 100),
        ("MIG-2", "0:1", 101),
    ]
    assert (one.memory_mib, one.mig_profile, one.parent_uuid, one.parent_memory_mib) == (
        40448, "3g.40gb", "GPU-aaaa", 81320,
    )  # fmt: skip
    assert (one.model, one.compute_capability, one.numa, one.faults) == ("NVIDIA H100 80GB HBM3", "9.0", 1, ())


def test_a_device_in_mig_mode_without_instances_says_what_to_do(nvml: NvmlProcess, driver: FakeDriver) -> None:
    driver.says(*NODE, *H100, "mig 1")
    assert device(nvml).faults == (r.MigWithoutInstances(index=0),)


def test_a_device_is_partitioned_anew_without_a_restart(nvml: NvmlProcess, driver: FakeDriver) -> None:
    driver.says(*NODE, *H100, *HALVES)
    nvml.inventory()
    driver.says(*NODE, *H100, "mig 1", "instance MIG-7 9 0 81000 7 7g.80gb")
    assert [device.uuid for device in nvml.inventory()] == ["MIG-7"]
    driver.says(*NODE, *H100)
    assert [device.uuid for device in nvml.inventory()] == ["GPU-aaaa"]


def test_a_device_that_is_partitioned_anew_under_work_gives_out_nothing_new(
    nvml: NvmlProcess, driver: FakeDriver
) -> None:
    driver.says(*NODE, *H100, *HALVES)
    one, _ = nvml.inventory()
    share = Share(one.uuid, one.index, one.model, one.memory_mib, 1000, True, one.memory_mib)
    nvml.note_allocations([Allocation("a-1", "local", "here", 1000, 1024, (share,), 0.0)])
    driver.says(*NODE, *H100, "mig 1", "instance MIG-7 9 0 81000 7 7g.80gb")
    for _ in range(2):
        faults = {device.label: (device.uuid, device.faults) for device in nvml.inventory()}
        assert faults["0:0"][0] == "MIG-7"
        assert faults["0:0"][1] == (r.MigChangedInUse(),)
        assert faults["0:1"][0] == "MIG-1"
        assert faults["0:1"][1] == (r.MigInstanceRemoved(),)
    nvml.note_allocations([])
    assert [(device.uuid, device.faults) for device in nvml.inventory()] == [("MIG-7", ())]


def test_instances_of_a_device_that_is_lost_are_at_fault_and_come_back(nvml: NvmlProcess, driver: FakeDriver) -> None:
    driver.says(*NODE, *H100, *HALVES)
    before = list(nvml.inventory())
    driver.says(*NODE, *H100, *HALVES, "lost 15")
    assert [(one.uuid, len(one.faults)) for one in nvml.inventory()] == [("MIG-1", 1), ("MIG-2", 1)]
    driver.says(*NODE, *H100, *HALVES)
    assert list(nvml.inventory()) == before


def test_processes_of_an_instance_are_its_own(nvml: NvmlProcess, driver: FakeDriver) -> None:
    driver.says(*NODE, *H100, *HALVES, "process 4711 2048 c 1 0", "process 4712 1024 c 2 0", "power 300000")
    one, two = nvml.measure()
    assert (one.processes, two.processes) == ((ProcessMemory(4711, 2048),), (ProcessMemory(4712, 1024),))
    assert (one.power_w, one.energy_j, one.utilisation) == (None, None, None)


# --- health -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("remapped 0 9 0 1", r.GpuMemoryBroken()),
        ("recovery 1", r.GpuNeedsReset(index=0)),
        ("recovery 2", r.GpuNeedsReboot()),
        ("compute_mode 2", r.ComputeModeProhibited(index=0)),
    ],
)
def test_a_broken_device_takes_no_work(nvml: NvmlProcess, driver: FakeDriver, line: str, fault: Reason) -> None:
    driver.says(*NODE, *H100, line)
    assert device(nvml).faults == (fault,)
    driver.says(*NODE, *H100)
    assert not device(nvml).faults


@pytest.mark.parametrize(
    ("line", "notice"),
    [
        ("remapped 0 1 1 0", r.MemoryRowsPending(index=0)),
        ("retired 2 0 1", r.MemoryPagesPending(index=0)),
        ("ecc 1 0", r.ModeChangesAtReset(mode="ECC", is_on=False)),
        ("mig 0 1", r.ModeChangesAtReset(mode="MIG", is_on=True)),
        ("persistence 0", r.PersistenceModeOff(index=0)),
        ("throttle 0x48", r.ClocksLow(causes=("hardware slowdown", "temperature, by hardware"))),
    ],
)
def test_a_notice_keeps_no_device_from_work(nvml: NvmlProcess, driver: FakeDriver, line: str, notice: Reason) -> None:
    driver.says(*NODE, *H100, line)
    found = device(nvml)
    assert notice in found.notices
    assert not found.faults


def test_a_power_limit_is_no_news(nvml: NvmlProcess, driver: FakeDriver) -> None:
    driver.says(*NODE, *H100, "throttle 0x4")
    assert not device(nvml).notices
    assert sample(nvml).throttle == ("power limit",)


@pytest.mark.parametrize(("capability", "faults"), [("capability 7 5", 1), ("capability 8 0", 0)])
def test_uncorrectable_errors_stop_devices_that_cannot_contain_them(
    nvml: NvmlProcess, driver: FakeDriver, capability: str, faults: int
) -> None:
    old = [capability if line.startswith("capability") else line for line in H100]
    driver.says(*NODE, *old, "ecc 1 1", "ecc_errors 5 2 9 4")
    found = device(nvml)
    assert len(found.faults) == faults
    assert r.GpuMemoryErrorsSeen(count=2) in found.notices


# --- Xids ---------------------------------------------------------------------------------------------------------


def heard(nvml: NvmlProcess, driver: FakeDriver, *lines: str) -> Device:
    """The GPU after these messages, and not those of before we listened."""
    driver.says(*NODE, *H100, "xid 1 79")
    nvml.inventory()
    driver.says(*NODE, *H100, "xid 1 79", *lines)
    return device(nvml)


@pytest.mark.parametrize("number", [13, 31, 43, 45, 94, 109])
def test_an_applications_own_xid_never_stops_a_device(nvml: NvmlProcess, driver: FakeDriver, number: int) -> None:
    found = heard(nvml, driver, f"xid 2 {number}")
    assert not found.faults
    (notice,) = found.notices
    assert isinstance(notice, r.XidReported)
    assert (notice.number, notice.by_application) == (number, True)
    assert sample(nvml).xid == number


@pytest.mark.parametrize("number", [48, 64, 74, 79, 95, 119, 120, 140])
def test_a_fatal_xid_stops_a_device_until_it_is_reset(nvml: NvmlProcess, driver: FakeDriver, number: int) -> None:
    (fault,) = heard(nvml, driver, f"xid 2 {number}").faults
    assert isinstance(fault, r.FatalXid)
    assert fault.number == number
    reset = [line.replace("energy 5000000", "energy 12") for line in H100]
    driver.says(*NODE, *reset)
    assert not device(nvml).faults


def test_energy_counted_anew_is_no_reset_without_persistence_mode(nvml: NvmlProcess, driver: FakeDriver) -> None:
    heard(nvml, driver, "xid 2 95")
    driver.says(*NODE, *(line.replace("energy 5000000", "energy 12") for line in H100), "persistence 0")
    assert device(nvml).faults


def test_a_contained_memory_error_stops_nothing(nvml: NvmlProcess, driver: FakeDriver) -> None:
    assert not heard(nvml, driver, "xid 2 48", "xid 3 63", "xid 4 94", "xid 5 45").faults
    assert not heard(nvml, driver, "xid 6 94", "xid 7 48").faults


def test_a_driver_that_asked_for_a_reset_says_when_it_was_done(nvml: NvmlProcess, driver: FakeDriver) -> None:
    heard(nvml, driver, "xid 2 119", "recovery 1")
    driver.says(*NODE, *H100, "recovery 1")
    assert len(device(nvml).faults) == 2
    driver.says(*NODE, *H100, "recovery 0")
    assert not device(nvml).faults


def test_a_fatal_xid_is_remembered_over_a_restart_until_an_admin_resumes(
    nvml: NvmlProcess, driver: FakeDriver, library: Path, tmp_path: Path
) -> None:
    heard(nvml, driver, "xid 2 95")
    later = NvmlProcess(library, driver.path, faults=tmp_path / "faults.json")
    assert device(later).faults == (r.FatalXid(number=95, index=0, remedy=r.Remedy.RESET),)
    later.resume("GPU-other")
    assert device(later).faults
    later.resume("GPU-aaaa")
    assert not device(later).faults
    later.end()


def test_another_driver_means_another_life(nvml: NvmlProcess, driver: FakeDriver) -> None:
    heard(nvml, driver, "xid 2 95")
    driver.says("driver 620.01", *H100)
    assert not device(nvml).faults


def test_a_file_of_faults_that_is_broken_is_no_trouble(library: Path, driver: FakeDriver, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"GPU-aaaa": [{"number": "many"}]')
    nvml = NvmlProcess(library, driver.path, faults=tmp_path / "broken.json")
    assert not device(nvml).faults
    nvml.end()


def test_an_instance_is_told_of_its_own_applications_and_all_of_the_devices_end(
    nvml: NvmlProcess, driver: FakeDriver
) -> None:
    driver.says(*NODE, *H100, *HALVES)
    nvml.inventory()
    driver.says(*NODE, *H100, *HALVES, "xid 1 31 2 0")
    assert [len(one.notices) for one in nvml.inventory()] == [0, 1]
    driver.says(*NODE, *H100, *HALVES, "xid 1 31 2 0", "xid 2 79")
    assert [len(one.faults) for one in nvml.inventory()] == [1, 1]
    nvml.resume("MIG-2")
    assert [len(one.faults) for one in nvml.inventory()] == [0, 0]


def test_a_device_without_messages_is_no_worse(nvml: NvmlProcess, driver: FakeDriver) -> None:
    driver.says("fail nvmlEventSetCreate 3", *NODE, *H100, "xid 1 79")
    assert not device(nvml).faults


def test_a_device_that_waits_for_a_reset_is_let_go(nvml: NvmlProcess, driver: FakeDriver) -> None:
    """`nvidia-smi` refuses to reset a GPU that is open. Here, the shutdown call then fails."""
    heard(nvml, driver, "xid 2 95")
    driver.says("fail nvmlInitWithFlags 9", *NODE, *H100)
    assert list(nvml.measure()) == []


def test_two_servers_look_at_one_node(nvml: NvmlProcess, driver: FakeDriver, library: Path) -> None:
    """Each hears every Xid, neither takes anything from the other, and nothing is written on the node."""
    other = NvmlProcess(library, driver.path)
    assert list(nvml.inventory()) == list(other.inventory())
    driver.says(*NODE, *H100, "xid 1 31")
    assert len(device(nvml).notices) == len(device(other).notices) == 1
    nvml.close()
    assert not device(other).faults
    assert len(other.measure()) == 1
    other.end()
    assert [path.name for path in driver.path.parent.iterdir()] == [driver.path.name]


# --- measurements -------------------------------------------------------------------------------------------------


def test_all_that_is_measured(nvml: NvmlProcess, driver: FakeDriver) -> None:
    figures = (
        "power 250500 700000",
        "clocks 1410 2619",
        "throttle 0x24",
        "ecc 1 1",
        "ecc_errors 5 2 9 4",
        "remapped 3 1 0 0",
    )
    driver.says(*NODE, *H100, *figures)
    found = sample(nvml)
    assert (found.power_w, found.power_limit_w, found.energy_j) == (250.5, 700.0, 5000.0)
    assert (found.sm_clock_mhz, found.memory_clock_mhz) == (1410, 2619)
    assert found.throttle == ("power limit", "temperature")
    assert (found.ecc_corrected, found.ecc_uncorrected) == (5, 2)
    assert (found.remapped_corrected, found.remapped_uncorrected) == (3, 1)


def test_utilisation_of_processes_is_that_of_the_last_moments(nvml: NvmlProcess, driver: FakeDriver) -> None:
    processes = ("process 4711 2048 c", "process 4712 100 m")
    driver.says(*NODE, *H100, *processes, "sampled 4711 20 1000", "sampled 4711 40 2000")
    assert sample(nvml).processes == (
        ProcessMemory(4711, 2048, utilisation=0.3),
        ProcessMemory(4712, 100, utilisation=0.0),
    )
    driver.says(*NODE, *H100, *processes, "sampled 4711 40 2000", "sampled 4712 90 3000")
    assert [one.utilisation for one in sample(nvml).processes] == [0.0, 0.9]
    assert [one.utilisation for one in sample(nvml).processes] == [0.0, 0.0]


def test_what_a_cuda_program_allocates_is_seen(nvml: NvmlProcess, driver: FakeDriver) -> None:
    used = driver.path.with_name(driver.path.name + ".used")
    used.write_text(f"GPU-aaaa {os.getpid()} {1 << 30} /somewhere\nGPU-aaaa 999999999 {1 << 30} /somewhere\n")
    found = sample(nvml)
    assert (found.memory_used_mib, found.processes) == (10240 + 1024, (ProcessMemory(os.getpid(), 1024),))
