"""Control groups in folders that look like the kernel's, of both versions."""

from pathlib import Path

import pytest

from commonage.domain.reasons.engines import MemoryNotLimited
from commonage.engines.process.groups import cgroups
from commonage.engines.process.groups.cgroups import Cgroups, find_cgroups

MIB = 1024 * 1024


def files(folder: Path, **content: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in content.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def unified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroups, "_own_path", lambda: "/own.service")
    for folder in (tmp_path, tmp_path / "commonage", tmp_path / "commonage" / "key"):
        files(folder, cgroup__controllers="cpu memory pids", cgroup__subtree_control="cpu memory pids cpuacct")
    return tmp_path


@pytest.fixture
def divided(tmp_path: Path) -> Path:
    for name in ("memory", "cpu", "cpuacct", "pids"):
        files(tmp_path / name, cgroup__procs="")
    return tmp_path


def found(root: Path, *, cpu_quota: bool = False) -> Cgroups:
    groups = find_cgroups("key", 99, root, cpu_quota=cpu_quota)
    assert groups is not None
    return groups


def kernel_files(folder: Path, *names: str) -> None:
    """Write the files that the kernel makes in a new group."""
    files(folder)
    for name in names:
        (folder / name).write_text("")


def test_version_2_holds_memory_swap_cpu_and_processes(unified: Path) -> None:
    group = unified / "commonage" / "key" / "a-1"
    names = ("memory.max", "memory.swap.max", "cpu.weight", "cpu.max", "cpu.max.burst", "pids.max")
    kernel_files(group, *names)
    groups = found(unified, cpu_quota=True)
    assert (groups.limits_memory, groups.limits_cpu, groups.notes) == (True, True, ())
    assert groups.make("a-1", 1500, 256) == [str(group / "cgroup.procs")]
    written = {name: (group / name).read_text() for name in names}
    assert written == {
        "memory.max": str(256 * MIB),
        "memory.swap.max": "0",
        "cpu.weight": "150",
        "cpu.max": "150000 100000",
        "cpu.max.burst": "150000",
        "pids.max": "99",
    }


def test_version_2_shares_idle_cores_unless_there_is_a_quota(unified: Path) -> None:
    group = unified / "commonage" / "key" / "a-1"
    kernel_files(group, "memory.max", "cpu.weight", "cpu.max", "cpu.max.burst", "pids.max")
    groups = found(unified)
    for cpus_milli, weight in ((50, "5"), (1500, "150"), (1, "1"), (10**6, "10000")):
        (group / "cpu.weight").write_text("")
        groups.make("a-1", cpus_milli, 256)
        assert (group / "cpu.weight").read_text() == weight
    assert (group / "cpu.max").read_text() == "max 100000"
    assert (group / "cpu.max.burst").read_text() == ""


def test_total_cpu_weight_equals_cores(unified: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    (unified / "commonage" / "key" / "cpu.weight").write_text("")
    found(unified)
    assert (unified / "commonage" / "key" / "cpu.weight").read_text() == "800"


def test_version_1_shares_idle_cores_unless_there_is_a_quota(divided: Path) -> None:
    here = {name: divided / name / "commonage" / "key" / "a-1" for name in ("memory", "cpu", "cpuacct", "pids")}
    kernel_files(here["memory"], "memory.limit_in_bytes")
    kernel_files(here["cpu"], "cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.cfs_burst_us")
    kernel_files(here["pids"], "pids.max")
    kernel_files(here["cpuacct"])
    found(divided).make("a-1", 250, 64)
    assert (here["cpu"] / "cpu.shares").read_text() == "256"
    assert (here["cpu"] / "cpu.cfs_quota_us").read_text() == "-1"
    assert (here["cpu"] / "cpu.cfs_burst_us").read_text() == ""


def test_version_2_is_measured_without_what_the_kernel_could_drop(unified: Path) -> None:
    group = unified / "commonage" / "key" / "a-1"
    files(
        group,
        cgroup__procs="10\n11\n",
        memory__current=str(100 * MIB),
        memory__stat=f"anon 1\ninactive_file {60 * MIB}\n",
        cpu__stat="usage_usec 2500000\nuser_usec 1\n",
        memory__events="low 0\noom 1\noom_kill 1\n",
    )
    groups = found(unified)
    use = groups.use("a-1")
    assert use is not None
    assert (use.cpu_s, use.memory_mib, use.pids) == (2.5, 40, (10, 11))
    assert groups.was_oom("a-1")


def test_an_attempt_without_groups_has_nothing(unified: Path) -> None:
    groups = found(unified)
    assert groups.use("b-1") is None
    assert groups.pids("b-1") == []
    assert not groups.was_oom("b-1")
    assert groups.kill("b-1")
    assert groups.remove("b-1")


def test_gpu_memory_cgroup_is_passed_on(unified: Path) -> None:
    folders = (unified, unified / "commonage", unified / "commonage" / "key")
    for folder in folders:
        files(folder, cgroup__controllers="cpu memory pids dmem", cgroup__subtree_control="..... cpu memory pids")
    found(unified)
    assert all((folder / "cgroup.subtree_control").read_text().startswith("+dmem") for folder in folders)


def test_version_2_without_controllers_for_us_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_own_path", lambda: "/")
    for folder in (tmp_path, tmp_path / "commonage", tmp_path / "commonage" / "key"):
        files(folder, cgroup__controllers="", cgroup__subtree_control="")
    assert find_cgroups("key", 99, tmp_path) is None


def test_version_1_holds_memory_swap_cpu_and_processes(divided: Path) -> None:
    here = {name: divided / name / "commonage" / "key" / "a-1" for name in ("memory", "cpu", "cpuacct", "pids")}
    kernel_files(here["memory"], "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    kernel_files(here["cpu"], "cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.cfs_burst_us")
    kernel_files(here["pids"], "pids.max")
    kernel_files(here["cpuacct"])
    groups = found(divided, cpu_quota=True)
    assert groups.make("a-1", 500, 64) == [str(folder / "cgroup.procs") for folder in here.values()]
    assert (here["memory"] / "memory.limit_in_bytes").read_text() == str(64 * MIB)
    assert (here["memory"] / "memory.memsw.limit_in_bytes").read_text() == str(64 * MIB)
    assert (here["cpu"] / "cpu.shares").read_text() == "512"
    assert (here["cpu"] / "cpu.cfs_quota_us").read_text() == "50000"
    assert (here["cpu"] / "cpu.cfs_burst_us").read_text() == "50000"
    assert (here["pids"] / "pids.max").read_text() == "99"


def test_version_1_is_measured(divided: Path) -> None:
    files(
        divided / "memory" / "commonage" / "key" / "a-1",
        cgroup__procs="7\n",
        memory__usage_in_bytes=str(10 * MIB),
        memory__stat=f"inactive_file 1\ntotal_inactive_file {4 * MIB}\n",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
    )
    files(divided / "cpuacct" / "commonage" / "key" / "a-1", cpuacct__usage="1500000000\n")
    groups = found(divided)
    use = groups.use("a-1")
    assert use is not None
    assert (use.cpu_s, use.memory_mib, use.pids) == (1.5, 6, (7,))
    assert not groups.was_oom("a-1")


def test_controllers_mounted_together_are_joined_once(tmp_path: Path) -> None:
    files(tmp_path / "cpu,cpuacct", cgroup__procs="")
    for name in ("cpu", "cpuacct"):
        (tmp_path / name).symlink_to("cpu,cpuacct")
    folder = tmp_path / "cpu,cpuacct" / "commonage" / "key" / "a-1"
    kernel_files(folder, "cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us")
    groups = found(tmp_path)
    assert not groups.limits_memory
    assert groups.limits_cpu
    assert groups.notes == (MemoryNotLimited(),)
    assert groups.make("a-1", 1000, 64) == [str(folder / "cgroup.procs")]


def test_no_control_groups_at_all(tmp_path: Path) -> None:
    assert find_cgroups("key", 99, tmp_path) is None
