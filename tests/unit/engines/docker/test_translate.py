"""Start requests as Docker container descriptions, and the mounts that an admin may set."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.engines.containers.test_program import request

from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Allocation, Share
from commonage.domain.workloads import Kind
from commonage.engines.containers.daemon.descriptions import AttemptFolders, network_name
from commonage.engines.containers.program import ContainerNetwork, program_of
from commonage.engines.docker.translate import ContainerContext, container_config
from commonage.engines.settings import DockerSettings, Mount, parse_mount

AROUND = ContainerContext(
    "0123456789abcdef", "net", AttemptFolders("/w/ada", "/r/control", "/r/log"), "/injected", "0:0"
)


def described(context: ContainerContext = AROUND, shares: tuple[Share, ...] = (), **settings: Any) -> dict[str, Any]:
    stop = request(allocation=Allocation("w-1", "local", "here", 1500, 64, shares, 0.0))
    program = program_of(stop, ContainerNetwork("10.213.0.1", frozenset()), {}, {})
    return container_config(stop, program, context, "entry", DockerSettings(**settings))


def share(uuid: str, *, simulated: bool = False) -> Share:
    return Share(uuid, 0, "A100", 1024, 500, False, 40960, simulated)


def test_container_has_limits_and_isolation() -> None:
    host = described()["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 64 * 2**20
    assert host["CpuShares"] == 1536
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["Privileged"] is False
    assert host["Init"] is True
    assert host["NetworkMode"] == "net"
    assert host["DeviceRequests"] == []


def test_cores_are_a_quota_if_configured() -> None:
    host = described(cpu_hold="quota")["HostConfig"]
    assert host["NanoCpus"] == 1_500_000_000
    assert "CpuShares" not in host


def test_everything_of_ours_is_labelled() -> None:
    labels = described()["Labels"]
    assert labels["commonage.installation"] == AROUND.installation
    assert labels["commonage.attempt"] == "w-1"
    assert [name for name, value in labels.items() if value and not name.startswith("commonage.")] == []
    assert labels["com.docker.compose.project"] == "", "whatever its image says"


def test_gpus_are_requested_by_uuid_without_simulated_ones() -> None:
    shares = (share("GPU-b"), share("GPU-a"), share("GPU-SIM", simulated=True))
    [request] = described(shares=shares)["HostConfig"]["DeviceRequests"]
    assert request["DeviceIDs"] == ["GPU-a", "GPU-b"]
    [cdi] = described(replace(AROUND, gpus="cdi"), shares)["HostConfig"]["DeviceRequests"]
    assert cdi == {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b"]}


def test_mounts_are_the_workspace_ours_and_the_admins() -> None:
    mounts = (Mount("/srv/{tenant}/{user}", "/data"), Mount("/scratch", "/scratch", writable=True))
    found = {
        one["Target"]: (one["Source"], one["ReadOnly"]) for one in described(mounts=mounts)["HostConfig"]["Mounts"]
    }
    home = next(target for target in found if target.startswith("/home/"))
    assert found[home] == ("/w/ada", False)
    assert found["/run/commonage/control"] == ("/r/control", False)
    assert found["/data"] == (f"/srv/lab/{home.removeprefix('/home/')}", True)
    assert found["/scratch"] == ("/scratch", False)


def injected(shares: tuple[Share, ...] = (), kind: Kind = Kind.JOB) -> dict[str, str]:
    """Our files that a container of this kind gets, all read-only."""
    stop = request(kind=kind, allocation=Allocation("w-1", "local", "here", 1500, 64, shares, 0.0))
    program = program_of(stop, ContainerNetwork("10.213.0.1", frozenset()), {}, {})
    mounts = container_config(stop, program, AROUND, "entry", DockerSettings())["HostConfig"]["Mounts"]
    found = {one["Target"]: one for one in mounts if one["Source"].startswith("/injected/")}
    assert all(one["ReadOnly"] for one in found.values())
    return {target: one["Source"] for target, one in found.items()}


def test_a_limited_share_brings_the_limits_of_frameworks_and_a_session_jupyters_defaults() -> None:
    limits = {"/run/commonage/python": "/injected/python"}
    defaults = {"/run/commonage/jupyter": "/injected/jupyter"}
    assert injected() == {}
    assert injected((replace(share("GPU-a"), whole=True),)) == {}
    assert injected((share("GPU-a"),)) == injected((share("GPU-SIM", simulated=True),)) == limits
    assert injected((share("GPU-a"),), Kind.SESSION) == limits | defaults


def test_an_interposer_is_mounted_read_only_where_every_program_loads_it() -> None:
    held = {"COMMONAGE_GPU_PRELOAD": "/data/gpus/preload"}
    program = program_of(request(), ContainerNetwork("10.0.0.1", frozenset()), {}, held)
    mounts = container_config(request(), program, AROUND, "entry", DockerSettings())["HostConfig"]["Mounts"]
    found = {one["Target"]: (one["Source"], one["ReadOnly"]) for one in mounts}
    assert found["/usr/local/vgpu/libvgpu.so"] == ("/data/gpus/preload/libvgpu.so", True)
    assert found["/etc/ld.so.preload"] == ("/data/gpus/preload/ld.so.preload", True)
    assert "/etc/ld.so.preload" not in {one["Target"] for one in described()["HostConfig"]["Mounts"]}


def test_networks_are_named_by_installation_and_tenant() -> None:
    names = {network_name("0123456789", "lab"), network_name("0123456789", "Lab"), network_name("9876543210", "lab")}
    assert len(names) == 3
    assert "commonage-01234567-lab" in names


@pytest.mark.parametrize(
    "text",
    [
        "data",
        "/a:b",
        "/a:/b:rwx",
        "/:/host",
        "/var/run/docker.sock:/s",
        "/run:/r",
        "/a/../run:/r",
        "/a:/home",
        "/a:/",
        "//run/x:/r",
        "///var/run:/r",
        "/run/containerd:/r",
        "/var/lib/docker/volumes:/v",
        "/var/lib:/v",
        "/proc/1/root:/r",
    ],
)
def test_daemon_folders_are_not_mounted(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_mount(text)


def test_mounts_are_read_only_unless_said() -> None:
    assert parse_mount("/a:/b") == Mount("/a", "/b")
    assert parse_mount("/a:/b:rw") == Mount("/a", "/b", writable=True)
