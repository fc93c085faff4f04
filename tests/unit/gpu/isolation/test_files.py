"""Files of isolation: holds that outlive a crash, claims between two servers, sizes of contexts."""

import json
from pathlib import Path

import pytest

from commonage.domain.nodes import Device, Share
from commonage.domain.reasons.devices import GpuLockFailed, GpuNotReachable, GpuTakenByOtherServer
from commonage.gpu.isolation.assignment_files import AssignmentFiles
from commonage.gpu.isolation.contexts import Contexts, measure_context
from commonage.gpu.isolation.gpu_locks import GpuLocks
from commonage.ports.devices import ShareAssignment

SHARE = Share("GPU-1", 0, "A100", 1024, 100, whole=False, device_memory_mib=10240)
DEVICE = Device("GPU-1", 0, "A100", 10240, driver="615.10")


def test_a_hold_is_read_by_a_later_process(tmp_path: Path) -> None:
    assignment = ShareAssignment("a-1", (SHARE,), ("/sys/fs/cgroup/commonage/k/a-1",))
    AssignmentFiles(tmp_path / "holds").put(assignment)
    later = AssignmentFiles(tmp_path / "holds")
    assert list(later) == [assignment]
    later.drop("a-1")
    later.drop("a-1")
    assert later.ids() == []


def test_a_hold_that_cannot_be_read_is_still_there_to_be_dropped(tmp_path: Path) -> None:
    (tmp_path / "a-1.json").write_text("{half")
    (tmp_path / "a-2.new").write_text("left by a crash")
    assignments = AssignmentFiles(tmp_path)
    assert assignments.ids() == ["a-1"]
    assert assignments.get("a-1") == ShareAssignment("a-1", ())


def test_no_file_is_named_after_what_cannot_be_an_id(tmp_path: Path) -> None:
    assignments = AssignmentFiles(tmp_path)
    with pytest.raises(ValueError, match="cannot be the id"):
        assignments.put(ShareAssignment("../a", ()))
    assert assignments.get("../a") is None
    assignments.drop("../a")


def test_a_device_is_given_out_by_one_server_only(tmp_path: Path) -> None:
    first, second = GpuLocks("data folder /a", tmp_path), GpuLocks("data folder /b", tmp_path)
    assert first.claim("GPU-1") is first.claim("GPU-1") is None
    refusal = second.claim("GPU-1")
    assert isinstance(refusal, GpuTakenByOtherServer)
    assert refusal.holder.endswith("data folder /a")
    assert second.claim("GPU-2") is None
    first.close()
    assert second.claim("GPU-1") is None
    second.close()


def test_servers_that_may_use_different_places_meet_in_the_one_they_share(tmp_path: Path) -> None:
    of_root, of_all = tmp_path / "run", tmp_path / "tmp"
    of_all.mkdir()
    of_user = GpuLocks("data folder /user", of_root, of_all)
    assert of_user.claim("GPU-1") is None
    of_root.mkdir()
    root = GpuLocks("data folder /root", of_root, of_all)
    assert "data folder /user" in str(root.claim("GPU-1"))
    of_user.close()
    assert root.claim("GPU-1") is None
    root.close()


def test_a_place_without_room_for_locks_is_said(tmp_path: Path) -> None:
    assert isinstance(GpuLocks("here", tmp_path / "none").claim("GPU-1"), GpuLockFailed)


def test_a_context_is_measured_once_for_device_and_driver(tmp_path: Path) -> None:
    asked: list[str] = []

    def measure(device: Device) -> int:
        asked.append(device.driver)
        return 300 + len(asked)

    def look(*devices: Device) -> dict[str, int]:
        contexts = Contexts(tmp_path / "contexts.json", measure)
        for device in devices:
            thread = contexts.look_for(device)
            if thread is not None:
                thread.join()
        return dict(contexts.known())

    assert look(DEVICE, DEVICE) == {"GPU-1": 301}
    assert look(DEVICE) == {"GPU-1": 301}
    newer = Device("GPU-1", 0, "A100", 10240, driver="620.1")
    assert look(newer) == {"GPU-1": 302}
    assert asked == ["615.10", "620.1"]


@pytest.mark.parametrize("found", ["libcuda.so.1 cannot be loaded", 0, 9000])
def test_what_cannot_be_measured_is_not_known(tmp_path: Path, found: int | str) -> None:
    contexts = Contexts(tmp_path / "contexts.json", lambda _: found)
    thread = contexts.look_for(DEVICE)
    assert thread is not None
    thread.join()
    assert not contexts.known()


def test_simulated_and_broken_devices_are_not_measured(tmp_path: Path) -> None:
    contexts = Contexts(tmp_path / "contexts.json", lambda _: 300)
    assert contexts.look_for(Device("GPU-1", 0, "Simulated", 10240, simulated=True)) is None
    assert contexts.look_for(Device("GPU-1", 0, "A100", 10240, faults=(GpuNotReachable(),))) is None


@pytest.mark.parametrize("content", ["", "[]", '{"GPU-1 615.10": "many"}', '{"GPU-1 615.10": -3}'])
def test_a_broken_file_of_sizes_is_measured_anew(tmp_path: Path, content: str) -> None:
    file = tmp_path / "contexts.json"
    file.write_text(content)
    contexts = Contexts(file, lambda _: 300)
    thread = contexts.look_for(DEVICE)
    assert thread is not None
    thread.join()
    assert json.loads(file.read_text()) == {"GPU-1 615.10": 300}


def test_without_a_cuda_library_the_probe_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("nothing")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert "cannot be loaded" in str(measure_context(DEVICE))
