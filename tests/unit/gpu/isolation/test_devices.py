"""The GPUs with their levels: which one holds, what is applied and released, and what two servers may do."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from commonage.domain.nodes import Device, Isolation, Share
from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import (
    CgroupsMissing,
    ComputeCapabilityTooLow,
    ContainerToolkitTooOld,
    DriverTooOld,
    GpuSimulated,
    GpuTakenByOtherServer,
    IsolationLost,
    IsolationNotAvailable,
    MigInstanceHasNoLimits,
    MigInstanceIsIsolated,
    MpsNotForContainers,
    MpsNotStarting,
    NvidiaOnly,
    PreloadLibraryUnusable,
    PreloadNotConfigured,
    PreloadOnlyInContainers,
    ProgramMissing,
    RootRequired,
    SharedByMps,
    SocketPathTooLong,
)
from commonage.gpu.isolation.contexts import Contexts
from commonage.gpu.isolation.cooperative import Cooperative
from commonage.gpu.isolation.devices import IsolatedDevices, Sharing, Wanted
from commonage.gpu.isolation.driver_limit import DriverLimit
from commonage.gpu.isolation.gpu_locks import GpuLocks
from commonage.gpu.isolation.level import Level
from commonage.gpu.isolation.mig import Mig
from commonage.gpu.isolation.mps import Mps
from commonage.gpu.isolation.preload import Preload
from commonage.gpu.none import NoDevices
from commonage.gpu.slots import Slots
from commonage.ports.devices import ShareAssignment, ShareNotEnforced
from commonage.testing.devices_contract import share_of

TOO_OLD = DriverTooOld(required="615", present="580")
A100 = Device("GPU-1", 0, "A100", 40960, driver="615.10", compute_capability="8.0")
INSTANCE = replace(A100, uuid="MIG-1", index=1, parent_uuid="GPU-9", parent_memory_mib=40960, mig_profile="1g.5gb")
SIMULATED = replace(A100, uuid="GPU-SIM-1", index=2, simulated=True)


class Devices(NoDevices):
    def __init__(self, *devices: Device) -> None:
        self.devices = devices

    def inventory(self) -> Sequence[Device]:
        return self.devices


class FakeLevel:
    """Remembers the attempts for which it is applied; `why` says why it is not available, `fails` why it cannot be
    applied.
    """

    def __init__(self, isolation: Isolation, why: Reason | None = None, fails: str = "") -> None:
        self.isolation = isolation
        self.why, self.fails = why, fails
        self.applied: dict[str, ShareAssignment] = {}

    def why_unavailable(self, device: Device) -> Reason | None:
        return GpuSimulated() if device.simulated else self.why

    def apply(self, assignment: ShareAssignment) -> Mapping[str, str]:
        self.applied[assignment.attempt_id] = assignment
        if self.fails:
            raise ShareNotEnforced(self.fails)
        return {f"BY_{self.isolation.name}": str(assignment.shares[0].memory_mib)}

    def release(self, assignment: ShareAssignment) -> None:
        self.applied.pop(assignment.attempt_id, None)

    def settle(self, assignments: Sequence[ShareAssignment]) -> None:
        self.applied = {assignment.attempt_id: assignment for assignment in assignments}

    def watch(self) -> Mapping[str, tuple[Reason, ...]]:
        return {"GPU-1": (SharedByMps(),)} if self.isolation is Isolation.MPS else {}

    def close(self) -> None:
        pass


@pytest.fixture
def limit() -> FakeLevel:
    return FakeLevel(Isolation.DRIVER_LIMIT)


@pytest.fixture
def mps() -> FakeLevel:
    return FakeLevel(Isolation.MPS)


@pytest.fixture
def make(tmp_path: Path, limit: FakeLevel, mps: FakeLevel) -> "Make":
    return Make(tmp_path, [limit, Mig(), mps, Cooperative()])


class Make:
    """Each call is a later process: the claims of the one before went with it."""

    def __init__(self, folder: Path, levels: list[Level]) -> None:
        self.folder, self.levels = folder, levels
        self.claims = GpuLocks("test", folder)

    def __call__(
        self, *devices: Device, wanted: Wanted = "auto", slots: int = 0, in_containers: bool = False
    ) -> IsolatedDevices:
        self.claims.close()
        self.claims = GpuLocks("test", self.folder)
        sharing = Sharing(self.folder / "gpus", wanted, Slots(otherwise=slots), in_containers)
        contexts = Contexts(self.folder / "contexts.json", lambda _: "not here")
        return IsolatedDevices(Devices(*devices), sharing, levels=self.levels, claims=self.claims, contexts=contexts)


def quarter(device: Device) -> Share:
    return share_of(device, device.memory_mib // 4)


def test_the_strongest_that_holds_is_chosen_and_of_the_others_is_said_why_not(make: Make, limit: FakeLevel) -> None:
    (device,) = make(A100).inventory()
    assert device.isolation is Isolation.DRIVER_LIMIT
    assert [level for level, _ in device.unavailable] == [Isolation.MIG]
    limit.why = TOO_OLD
    (device,) = make(A100).inventory()
    assert device.isolation is Isolation.MPS
    assert (Isolation.DRIVER_LIMIT, TOO_OLD) in device.unavailable
    assert SharedByMps() in device.notices


def test_mps_is_used_in_containers_only_where_it_is_named(make: Make, limit: FakeLevel) -> None:
    limit.why = TOO_OLD
    (device,) = make(A100, in_containers=True).inventory()
    assert device.isolation is Isolation.COOPERATIVE
    assert dict(device.unavailable)[Isolation.MPS] == MpsNotForContainers()
    devices = make(A100, wanted="mps", in_containers=True)
    assert [device.isolation for device in devices.inventory()] == [Isolation.MPS]
    devices.enforce(ShareAssignment("a-1", (replace(quarter(A100), isolation=Isolation.MPS),), in_container=True))
    later = make(A100, in_containers=True)
    later.settle(["a-1"])
    (device,) = later.inventory()
    assert (device.isolation, device.faults) == (Isolation.MPS, ()), "while shares are held so, it stays"


def test_limits_in_containers_need_a_toolkit_that_sets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.controllers").touch()
    program = tmp_path / "nvidia-cdi-hook"
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    def toolkit_is_too_old() -> bool:
        level = DriverLimit(tmp_path, lambda: True, in_containers=True)
        return isinstance(level.why_unavailable(A100), ContainerToolkitTooOld)

    assert toolkit_is_too_old()
    program.write_text("#!/bin/sh\necho 'COMMANDS: update-ldcache create-symlinks'\n")
    program.chmod(0o755)
    assert toolkit_is_too_old()
    program.write_text("#!/bin/sh\necho 'COMMANDS: update-ldcache apply-cuda-memory-limits'\n")
    assert not toolkit_is_too_old()


def test_an_instance_is_held_by_the_hardware_whatever_is_wanted(make: Make, limit: FakeLevel) -> None:
    limit.why = MigInstanceHasNoLimits()
    (device,) = make(INSTANCE, wanted="mps").inventory()
    assert (device.isolation, device.faults) == (Isolation.MIG, ())


def test_the_level_that_is_wanted_is_taken_or_the_device_takes_no_work(make: Make, mps: FakeLevel) -> None:
    (device,) = make(A100, wanted="mps").inventory()
    assert (device.isolation, device.faults) == (Isolation.MPS, ())
    mps.why = MpsNotStarting(error="no")
    (device,) = make(A100, wanted="mps").inventory()
    assert device.isolation is Isolation.COOPERATIVE
    assert device.faults == (IsolationNotAvailable(level="mps", cause=MpsNotStarting(error="no")),)


def test_simulated_devices_are_cooperative_and_have_slots(make: Make) -> None:
    (device,) = make(SIMULATED, wanted="driver-limit", slots=3).inventory()
    assert (device.isolation, device.faults, device.slots) == (Isolation.COOPERATIVE, (), 3)


def test_a_device_of_another_server_takes_no_work(make: Make, tmp_path: Path) -> None:
    others = GpuLocks("data folder /other", tmp_path)
    others.claim("GPU-1")
    (device,) = make(A100).inventory()
    assert isinstance(device.faults[0], GpuTakenByOtherServer)
    others.close()
    (device,) = make(A100).inventory()
    assert not device.faults


def test_a_share_is_held_at_its_level_and_frameworks_are_told(make: Make, limit: FakeLevel) -> None:
    devices = make(A100)
    (device,) = devices.inventory()
    variables = devices.enforce(ShareAssignment("a-1", (quarter(device),), ("/cgroup/a-1",)))
    assert variables["BY_DRIVER_LIMIT"] == "10240"
    assert variables["PYTHONPATH"].endswith("injected/python")
    assert limit.applied["a-1"].cgroups == ("/cgroup/a-1",)
    devices.release("a-1")
    assert not limit.applied


def test_a_device_keeps_the_level_of_the_shares_that_are_held(make: Make, limit: FakeLevel, mps: FakeLevel) -> None:
    limit.why = TOO_OLD
    devices = make(A100)
    (device,) = devices.inventory()
    devices.enforce(ShareAssignment("a-1", (quarter(device),)))
    limit.why = None  # as after an upgrade of the driver
    (device,) = devices.inventory()
    assert (device.isolation, device.faults) == (Isolation.MPS, ())
    mps.why = MpsNotStarting(error="no")
    (device,) = devices.inventory()
    assert device.isolation is Isolation.MPS
    assert device.faults == (IsolationLost(level="mps", cause=MpsNotStarting(error="no")),)
    later = make(A100)
    later.settle(["a-1"])
    assert later.inventory()[0].isolation is Isolation.MPS
    later.release("a-1")
    (device,) = later.inventory()
    assert (device.isolation, device.faults) == (Isolation.DRIVER_LIMIT, ())


def test_two_levels_are_not_held_on_one_device(make: Make) -> None:
    devices = make(A100)
    (device,) = devices.inventory()
    devices.enforce(ShareAssignment("a-1", (quarter(device),)))
    with pytest.raises(ShareNotEnforced, match="GPU 0 is shared by driver-limit now"):
        devices.enforce(ShareAssignment("a-2", (replace(quarter(device), isolation=Isolation.MPS),)))
    assert list(devices.enforced()) == ["a-1"]


def test_what_fails_to_be_applied_leaves_nothing(make: Make, limit: FakeLevel) -> None:
    limit.fails = "the driver answers no"
    devices = make(A100)
    (device,) = devices.inventory()
    with pytest.raises(ShareNotEnforced, match="the driver answers no"):
        devices.enforce(ShareAssignment("a-1", (quarter(device),)))
    assert not devices.enforced()
    assert not limit.applied


def test_a_later_process_releases_what_a_crash_left(make: Make, limit: FakeLevel, mps: FakeLevel) -> None:
    crashed = make(A100)
    (device,) = crashed.inventory()
    for attempt in ("a-1", "a-2"):
        crashed.enforce(ShareAssignment(attempt, (quarter(device),)))
    other = replace(quarter(device), device_uuid="GPU-2", isolation=Isolation.MPS)
    crashed.enforce(ShareAssignment("a-3", (other,)))
    later = make(A100)
    later.settle(["a-2"])
    assert set(later.enforced()) == set(limit.applied) == {"a-2"}
    assert not mps.applied


def test_a_folder_that_cannot_be_written_is_said(make: Make, tmp_path: Path) -> None:
    (tmp_path / "gpus").write_text("a file")
    devices = make(A100)
    with pytest.raises(ShareNotEnforced, match="cannot be written down"):
        devices.enforce(ShareAssignment("a-1", (quarter(devices.inventory()[0]),)))


def test_limits_are_by_the_measured_context_and_the_rest_is_the_devices_own(make: "Make") -> None:
    class Others(Devices):
        def environment(self, shares: Sequence[Share]) -> Mapping[str, str]:
            return {**super().environment(shares), "ROCR_VISIBLE_DEVICES": "GPU-1"}

    contexts = Contexts(make.folder / "measured.json", lambda _: 300)
    devices = IsolatedDevices(
        Others(A100), Sharing(make.folder / "gpus"), levels=make.levels, claims=make.claims, contexts=contexts
    )
    (device,) = devices.inventory()
    thread = next((one for one in threading.enumerate() if one.name.startswith("context of")), None)
    if thread is not None:
        thread.join()
    variables = devices.environment([quarter(device)])
    assert variables["COMMONAGE_GPU_USABLE_MIB"] == str(10240 - 300)
    assert variables["ROCR_VISIBLE_DEVICES"] == "GPU-1"
    assert devices.inventory()[0].context_mib == 300


# --- when each level is available -----------------------------------------------------------------------------


def why_not(device: Device, root: Path, is_root: bool = True) -> Reason | None:
    return DriverLimit(root, lambda: is_root).why_unavailable(device)


def test_limits_of_the_driver_need_much(tmp_path: Path) -> None:
    assert why_not(A100, tmp_path) == CgroupsMissing(folder=str(tmp_path))
    (tmp_path / "cgroup.controllers").write_text("memory")
    assert why_not(A100, tmp_path, is_root=False) == RootRequired()
    assert why_not(SIMULATED, tmp_path) == GpuSimulated()
    assert why_not(INSTANCE, tmp_path) == MigInstanceHasNoLimits()
    for driver in ("580.65", ""):
        too_old = DriverTooOld(required="615", present=driver)
        assert why_not(replace(A100, driver=driver), tmp_path) == too_old


def test_mps_needs_its_program_and_a_device_that_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert isinstance(Mps(tmp_path).why_unavailable(A100), ProgramMissing)
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    short = Path("/tmp/c")  # nothing is written there
    assert Mps(short).why_unavailable(A100) is None
    assert isinstance(Mps(short / ("x" * 80)).why_unavailable(A100), SocketPathTooLong)
    for capability in ("6.1", ""):
        too_low = ComputeCapabilityTooLow(required="7.0", present=capability)
        assert Mps(short).why_unavailable(replace(A100, compute_capability=capability)) == too_low


@pytest.fixture
def library(tmp_path: Path) -> Path:
    library = tmp_path / "libvgpu.so"
    library.write_bytes(b"\x7fELF, the first one")
    return library


def test_an_interposer_needs_its_library_and_containers(tmp_path: Path, library: Path) -> None:
    assert Preload(tmp_path, library).why_unavailable(A100) is None
    assert Preload(tmp_path, library).why_unavailable(SIMULATED) == GpuSimulated()
    assert Preload(tmp_path, library).why_unavailable(INSTANCE) == MigInstanceIsIsolated()
    assert Preload(tmp_path, None).why_unavailable(A100) == PreloadNotConfigured()
    outside = Preload(tmp_path, library, in_containers=False)
    assert outside.why_unavailable(A100) == PreloadOnlyInContainers()
    library.write_text("#!/bin/sh")
    unusable = PreloadLibraryUnusable(path=str(library), error="it is not a library")
    assert Preload(tmp_path, library).why_unavailable(A100) == unusable
    library.unlink()
    missing = PreloadLibraryUnusable(path=str(library), error="No such file or directory")
    assert Preload(tmp_path, library).why_unavailable(A100) == missing


def test_an_interposer_is_used_in_containers_where_the_site_has_one(tmp_path: Path, library: Path) -> None:
    def chosen(preload: Path | None, *, in_containers: bool) -> Isolation:
        sharing = Sharing(tmp_path / "gpus", in_containers=in_containers, preload=preload)
        claims, contexts = GpuLocks("test", tmp_path), Contexts(tmp_path / "contexts.json", lambda _: "not here")
        devices = IsolatedDevices(Devices(replace(A100, driver="570")), sharing, claims=claims, contexts=contexts)
        (device,) = devices.inventory()
        devices.close()
        return device.isolation

    assert chosen(library, in_containers=True) is Isolation.PRELOAD
    assert chosen(None, in_containers=True) is chosen(library, in_containers=False) is Isolation.COOPERATIVE


def test_a_container_gets_its_limits_and_files_to_mount(tmp_path: Path, library: Path) -> None:
    folder = tmp_path / "gpus" / "preload"
    variables = Preload(folder, library).apply(ShareAssignment("a-1", (quarter(A100),), in_container=True))
    assert variables["COMMONAGE_GPU_PRELOAD"] == str(folder)
    assert (variables["CUDA_DEVICE_MEMORY_LIMIT_0"], variables["CUDA_DEVICE_SM_LIMIT"]) == ("10240m", "25")
    assert variables["CUDA_DISABLE_CONTROL"] == "false"
    assert "LD_PRELOAD" not in variables
    assert (folder / "libvgpu.so").read_bytes() == library.read_bytes()
    assert (folder / "ld.so.preload").read_text() == "/usr/local/vgpu/libvgpu.so\n"
    assert [one.stat().st_mode & 0o777 for one in sorted(folder.iterdir())] == [0o644] * 2


def test_running_containers_keep_an_interposer_that_is_replaced(tmp_path: Path, library: Path) -> None:
    folder, assignment = tmp_path / "preload", ShareAssignment("a-1", (quarter(A100),), in_container=True)
    level = Preload(folder, library)
    level.apply(assignment)
    with (folder / "libvgpu.so").open("rb") as mounted:
        unchanged = (folder / "libvgpu.so").stat()
        level.apply(assignment)
        assert (folder / "libvgpu.so").stat() == unchanged
        library.write_bytes(b"\x7fELF, another")
        level.apply(assignment)
        assert mounted.read() == b"\x7fELF, the first one"
    assert (folder / "libvgpu.so").read_bytes() == b"\x7fELF, another"
    library.unlink()
    with pytest.raises(ShareNotEnforced, match=r"cannot be copied .* No such file"):
        level.apply(assignment)


def test_an_interposer_holds_a_part_of_one_gpu_only(tmp_path: Path, library: Path) -> None:
    both = ShareAssignment("a-1", (quarter(A100), quarter(replace(A100, uuid="GPU-2"))), in_container=True)
    with pytest.raises(ShareNotEnforced, match="parts of several GPUs"):
        Preload(tmp_path, library).apply(both)


def test_devices_of_amd_are_cooperative(tmp_path: Path) -> None:
    device = replace(A100, model="AMD Instinct MI300X", driver="6.14.14", compute_capability="gfx942")
    for level in (DriverLimit(), Mig(), Mps(tmp_path), Preload(tmp_path, tmp_path)):
        assert level.why_unavailable(device) == NvidiaOnly()
    assert Cooperative().why_unavailable(device) is None


def test_a_container_is_told_by_variables() -> None:
    assignment = ShareAssignment("a-1", (quarter(A100),), in_container=True)
    assert DriverLimit().apply(assignment) == {"NVIDIA_GPU_MEMORY_REQUEST": "10240", "NVIDIA_GPU_MEMORY_LIMIT": "10240"}
    assert not Cooperative().apply(assignment)


def test_without_a_control_group_the_driver_cannot_hold_it(tmp_path: Path) -> None:
    with pytest.raises(ShareNotEnforced, match="control group of version 2"):
        DriverLimit(tmp_path).apply(ShareAssignment("a-1", (quarter(A100),), (str(tmp_path / "a-1"),)))
