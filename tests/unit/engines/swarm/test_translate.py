"""Orders as services of a Swarm."""

import re
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.engines.containers.test_program import request

from commonage.agent.containers.containers import CPUS_LABEL
from commonage.domain.nodes import Allocation, Share
from commonage.domain.volumes import Volume, VolumeKind, VolumeRequest, mounts_of
from commonage.domain.workloads import Kind
from commonage.engines.containers.daemon.descriptions import AttemptFolders
from commonage.engines.containers.program import ContainerNetwork, program_of
from commonage.engines.settings import Mount, SwarmSettings
from commonage.engines.swarm.swarm_files import Delivery
from commonage.engines.swarm.translate import (
    ContainerContext,
    network_config,
    service_names,
    service_spec,
    vram_of,
)

AROUND = ContainerContext(
    "0123456789abcdef",
    "commonage-net",
    AttemptFolders("/w/ada", "/r/control", "/r/log"),
    Delivery("config-1", "commonage-01234567-entry"),
    (0, 0),
    "node-id",
)
# What Docker takes for the name of a service.
NAME = re.compile(r"[a-zA-Z0-9](?:[-_]*[A-Za-z0-9]+)*")


def described(context: ContainerContext = AROUND, shares: tuple[Share, ...] = (), **settings: Any) -> dict[str, Any]:
    stop = request(allocation=Allocation("w-1", "local", "here", 1500, 64, shares, 0.0))
    program = program_of(stop, ContainerNetwork("10.98.0.1", frozenset()), {}, {})
    return service_spec(stop, program, context, SwarmSettings(**settings))


def share(mib: int, *, simulated: bool = False) -> Share:
    return Share("GPU-a", 0, "A100", mib, 500, False, 40960, simulated)


def test_a_service_runs_once_where_the_planner_said() -> None:
    task = described()["TaskTemplate"]
    assert task["RestartPolicy"] == {"Condition": "none", "MaxAttempts": 0}
    assert task["Placement"] == {"Constraints": ["node.id==node-id"]}
    assert task["Networks"] == [{"Target": "commonage-net"}]
    assert described()["Mode"] == {"Replicated": {"Replicas": 1}}


def test_container_has_limits_and_isolation() -> None:
    task = described()["TaskTemplate"]
    container = task["ContainerSpec"]
    assert container["CapabilityDrop"] == ["ALL"]
    assert "CAP_SYS_ADMIN" not in container["CapabilityAdd"]
    assert container["Init"] is True
    assert task["Resources"]["Limits"] == {"MemoryBytes": 64 * 2**20, "Pids": 4096}
    assert task["Resources"]["Reservations"] == {"MemoryBytes": 64 * 2**20}
    mounts = {one["Target"]: one for one in container["Mounts"]}
    assert "/run/commonage/entry" not in mounts, "it comes from the Swarm, and no node can change it"
    [entry] = container["Configs"]
    assert (entry["ConfigID"], entry["File"]["Name"]) == ("config-1", "/run/commonage/entry")
    assert container["Secrets"] == []
    assert mounts["/dev/shm"]["TmpfsOptions"]["SizeBytes"] == 32 * 2**20


def test_cores_are_weighed_by_the_agent_or_a_quota_that_swarm_reserves() -> None:
    assert described()["TaskTemplate"]["ContainerSpec"]["Labels"][CPUS_LABEL] == "1500"
    resources = described(cpu_hold="quota")["TaskTemplate"]["Resources"]
    assert resources["Limits"]["NanoCPUs"] == resources["Reservations"]["NanoCPUs"] == 1_500_000_000


@pytest.mark.parametrize(
    ("shares", "declared", "reserved"),
    [
        ((), True, 0),
        ((share(1024),), True, 1024),
        ((share(1024), share(512)), False, 1536),
        ((share(1024, simulated=True),), True, 1024),
        ((share(1024, simulated=True),), False, 0),
    ],
)
def test_vram_is_reserved_of_real_gpus_and_where_any_is_declared(
    shares: tuple[Share, ...], declared: bool, reserved: int
) -> None:
    context = replace(AROUND, declares_vram=declared)
    found = described(context, shares)["TaskTemplate"]["Resources"]["Reservations"].get("GenericResources", [])
    # One less: of a task that takes the very last Swarm says at the next look that it fits no longer.
    assert found == ([{"DiscreteResourceSpec": {"Kind": "VRAM", "Value": reserved - 1}}] if reserved else [])
    assert vram_of(Allocation("w-1", "local", "here", 1, 1, shares, 0.0), declared=declared) == reserved


def test_a_port_is_its_nodes_and_the_same_inside() -> None:
    assert described()["EndpointSpec"] == {"Mode": "dnsrr", "Ports": []}
    [port] = described(replace(AROUND, port=20001))["EndpointSpec"]["Ports"]
    assert port == {"Protocol": "tcp", "TargetPort": 20001, "PublishedPort": 20001, "PublishMode": "host"}


def test_admin_mounts_are_included() -> None:
    mounts = described(mounts=(Mount("/srv/{tenant}", "/data"),))["TaskTemplate"]["ContainerSpec"]["Mounts"]
    [found] = [one for one in mounts if one["Target"] == "/data"]
    assert (found["Source"], found["ReadOnly"]) == ("/srv/lab", True)


def test_an_interposer_is_mounted_read_only_where_every_program_loads_it() -> None:
    held = {"COMMONAGE_GPU_PRELOAD": "/data/gpus/preload"}
    program = program_of(request(), ContainerNetwork("10.0.0.1", frozenset()), {}, held)
    spec = service_spec(request(), program, AROUND, SwarmSettings())["TaskTemplate"]["ContainerSpec"]
    found = {one["Target"]: (one["Source"], one["ReadOnly"]) for one in spec["Mounts"] if one["Type"] == "bind"}
    assert found["/usr/local/vgpu/libvgpu.so"] == ("/data/gpus/preload/libvgpu.so", True)
    assert found["/etc/ld.so.preload"] == ("/data/gpus/preload/ld.so.preload", True)


@pytest.mark.parametrize("owner", ["ada", "Ada", "ada.b@example.org", "ü" * 90, "-", "a" * 90, "ada-", "jörg"])
@pytest.mark.parametrize("kind", list(Kind))
def test_names_are_names(owner: str, kind: Kind) -> None:
    names = service_names(request(owner=owner, kind=kind))
    assert len(set(names)) == 2
    for name in names:
        assert NAME.fullmatch(name)
        assert len(name) <= 63


def test_sessions_are_named_after_their_users_and_nobody_else() -> None:
    named = {who: service_names(request(owner=who, kind=Kind.SESSION))[0] for who in ("ada", "Ada", "a.da", "a-da")}
    assert named["ada"] == "jy-ada"
    assert named["a-da"] == "jy-a-da"
    assert len(set(named.values())) == 4
    assert service_names(request())[0].startswith("cm-")


def test_networks_lie_over_nodes_and_may_be_encrypted() -> None:
    plain = network_config("0123456789", "lab", "10.214.0.0/22", encrypted=False)
    assert plain["Driver"] == "overlay"
    assert plain["Options"] == {}
    assert "encrypted" in network_config("0123456789", "lab", "10.214.0.0/22", encrypted=True)["Options"]


@pytest.mark.parametrize(("retention", "options"), [(False, {}), (True, {"size": "67108864"})])
def test_a_volume_has_a_size_where_the_nodes_daemon_can_hold_it(retention: bool, options: dict[str, str]) -> None:
    volume = Volume("results", kind=VolumeKind.DOCKER, writable=True, size_mib=64)
    stop = replace(request(), mounts=mounts_of([VolumeRequest("results", True)], [volume], "ada", "lab"))
    program = program_of(stop, ContainerNetwork("10.98.0.1", frozenset()), {}, {})
    spec = service_spec(stop, program, replace(AROUND, volume_quota=retention), SwarmSettings())
    mounts = {one["Target"]: one for one in spec["TaskTemplate"]["ContainerSpec"]["Mounts"]}
    assert mounts["/volumes/results"]["VolumeOptions"]["DriverConfig"]["Options"] == options


def test_our_files_come_as_configs_that_nobody_inside_may_write_to() -> None:
    place = "/run/commonage/python/sitecustomize.py"
    context = replace(AROUND, injected=((Delivery("config-2", "commonage-01234567-python"), place),))
    [entry, file] = described(context)["TaskTemplate"]["ContainerSpec"]["Configs"]
    assert (entry["ConfigID"], file["ConfigID"], file["File"]["Name"]) == ("config-1", "config-2", place)
    assert file["File"]["Mode"] == 0o444
