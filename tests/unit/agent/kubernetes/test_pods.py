"""The Pods of a node, in the control groups of both of the kubelet's drivers."""

from pathlib import Path

import pytest

from commonage.agent.kubernetes.pods import PodGroups

UID = "1f2e3d4c-0a0b-4c0d-8e0f-a1b2c3d4e5f6"
SYSTEMD = UID.replace("-", "_")
GROUPS = (
    f"kubepods.slice/kubepods-pod{SYSTEMD}.slice",
    f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD}.slice",
    f"kubepods/pod{UID}",
    f"kubepods/besteffort/pod{UID}",
    f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{SYSTEMD}.slice",
    f"kubelet/kubepods/burstable/pod{UID}",
    f"docker/0f3a/kubepods/pod{UID}",
)


def make_group(root: Path, group: str) -> None:
    folder = root / "sys/fs/cgroup" / group
    folder.mkdir(parents=True)
    (root / "sys/fs/cgroup/cgroup.controllers").touch()
    (folder / "cgroup.procs").write_text("0\n")
    (folder / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (folder / "memory.current").write_text(f"{100 * 1024**2}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {40 * 1024**2}\n")


@pytest.mark.parametrize("group", GROUPS)
def test_use_of_a_pod_is_that_of_its_group(tmp_path: Path, group: str) -> None:
    make_group(tmp_path, group)
    [measured] = PodGroups(tmp_path).measure()
    assert (measured.attempt_id, measured.cpu_s, measured.memory_mib) == (UID, 2.5, 60)


def test_use_of_a_pod_in_groups_of_version_1(tmp_path: Path) -> None:
    for controller, name, text in (
        ("cpuacct", "cpuacct.usage", "2500000000\n"),
        ("memory", "memory.usage_in_bytes", f"{100 * 1024**2}\n"),
        ("memory", "memory.stat", f"total_inactive_file {40 * 1024**2}\n"),
        ("memory", "cgroup.procs", "0\n"),
        ("cpuacct", "cgroup.procs", "0\n"),
    ):
        folder = tmp_path / "sys/fs/cgroup" / controller / GROUPS[3]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    [measured] = PodGroups(tmp_path).measure()
    assert (measured.attempt_id, measured.cpu_s, measured.memory_mib, measured.pids) == (UID, 2.5, 60, ())


def test_pod_that_ends_is_left_out(tmp_path: Path) -> None:
    for group in GROUPS[2:4]:
        make_group(tmp_path, group.replace("1f2e", "2222") if "best" in group else group)
    (tmp_path / "sys/fs/cgroup" / GROUPS[2] / "memory.current").unlink()
    assert [one.attempt_id for one in PodGroups(tmp_path).measure()] == [UID.replace("1f2e", "2222")]


@pytest.mark.parametrize(
    ("group", "owner"),
    [
        (f"0::/../../{GROUPS[1]}/cri-containerd-{'ab' * 32}.scope", UID),
        (f"0::/{GROUPS[3]}/{'ab' * 32}", UID),
        ("0::/../system.slice/sshd.service", None),
    ],
)
def test_process_belongs_to_the_pod_of_its_group(tmp_path: Path, group: str, owner: str | None) -> None:
    process = tmp_path / "proc/4711"
    process.mkdir(parents=True)
    (process / "stat").write_bytes(b"4711 (python (3)) S " + b" ".join(b"%d" % one for one in range(1, 40)))
    (process / "cgroup").write_text(group + "\n")
    [found] = PodGroups(tmp_path).owners([4711, 4712])
    assert (found.pid, found.name, found.attempt_id) == (4711, "python (3)", owner)
