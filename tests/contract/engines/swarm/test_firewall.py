"""Attempts of root in a container on a Swarm that the firewall must stop, with real daemons and kernel."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.contract.engines.firewall_tries import (
    SESAME,
    assert_root_inside_is_not_root,
    connect,
    printed,
    shared_mounts,
)
from tests.contract.engines.rigs import SwarmRig, swarm_rig
from tests.contract.harness.dockerd import Dockerd
from tests.contract.harness.swarm import Swarm, swarm_of

from commonage.domain.statuses import Phase, StartRequest
from commonage.domain.volumes import Extent, VolumeKind, VolumeRequest, mounts_of
from commonage.domain.volumes import Mount as Volume
from commonage.domain.volumes import Volume as Given
from commonage.testing.engine_rig import FOREVER

pytestmark = [pytest.mark.needs("docker"), pytest.mark.anyio]
HUB_PORT = 18932


@pytest.fixture(scope="module")
def swarm() -> Iterator[Swarm]:
    with swarm_of(2, arguments=["--no-new-privileges"]) as swarm:
        yield swarm


@pytest.fixture
async def rig(tmp_path: Path, swarm: Swarm) -> AsyncIterator[SwarmRig]:
    async with swarm_rig(tmp_path / "data", swarm, mounts=shared_mounts(tmp_path)) as rig:
        yield rig


_ADDRESSES = r"""
import re, socket
here = re.findall(r"[|]-- (\S+)\n\s+/32 host LOCAL", open("/proc/net/fib_trie").read())
named = {one[4][0] for one in socket.getaddrinfo(socket.gethostname(), 1)}
print(*named, *{one for one in here if not one.startswith("127.")} - named)
"""


async def served(rig: SwarmRig) -> tuple[StartRequest, list[str]]:
    """Ada's service in the tenant `lab`, with a secret: its order, and its own addresses, the one by its name first."""
    script = 'echo mine >$HOME/diary; python3 -c "$0"; exec python3 -m http.server $COMMONAGE_PORT'
    command = ("sh", "-c", script, _ADDRESSES)
    request = await rig.started(rig.start_request(FOREVER, command=command, wants_port=True, secrets=SESAME))
    [line, *_] = await rig.lines(request.attempt_id)
    return request, line.split()


async def test_containers_of_another_tenant_are_not_reached(rig: SwarmRig) -> None:
    request, hosts = await served(rig)
    url = (await rig.phase(request.attempt_id, Phase.RUNNING)).url
    assert url is not None
    port = url.rpartition(":")[2]

    async def is_up() -> bool:
        return await printed(rig, connect(hosts[0], port)) == ["through"]

    await rig.until(is_up, "the same tenant gets through", 60)
    assert len(hosts) == 2, "one in its tenant's network, and one on the bridge of the node, which all tenants share"
    tries = "; ".join(connect(host, port) for host in hosts)
    looks = "cat /proc/*/environ | tr '\\0' '\\n' | grep -c SESAME; ls /home; cat /home/ada/diary; cat /shared/data"
    *firewall, secrets, homes, gone, shared = await printed(rig, f"{tries}; {looks}", tenant="other", owner="eve")
    assert (firewall, secrets, homes) == (["wall", "wall"], "0", "eve")
    assert "No such file" in gone
    assert shared == "of other"


async def test_the_same_tenant_meets_over_nodes(rig: SwarmRig) -> None:
    request, [host, *_] = await served(rig)
    port = (await rig.phase(request.attempt_id, Phase.RUNNING)).url
    assert port is not None
    rig.start_request.node = "worker2"

    async def is_up() -> bool:
        return await printed(rig, connect(host, port.rpartition(":")[2])) == ["through"]

    await rig.until(is_up, "the other node gets through", 60)


async def test_root_inside_is_not_root(rig: SwarmRig, swarm: Swarm) -> None:
    await assert_root_inside_is_not_root(rig, str(swarm.machines["worker1"].daemon.socket), "/run/commonage/entry")


async def test_a_volume_that_is_read_only_is_not_written_by_root(rig: SwarmRig, tmp_path: Path) -> None:
    (tmp_path / "system").chmod(0o777)
    volume = Volume("data", VolumeKind.FOLDER, str(tmp_path / "system"), "/volumes/data", writable=False)
    script = "cat $HOME/volumes/data/file; echo; (echo x >/volumes/data/file) 2>&1; rm -rf /volumes/data/file 2>&1"
    read, *tries = await printed(rig, script, mounts=(volume,))
    assert read == "ours"
    assert len(tries) == 2
    assert all("Read-only file system" in said for said in tries)


async def test_what_is_mounted_below_a_read_only_volume_is_not_written_by_root(rig: SwarmRig, tmp_path: Path) -> None:
    below = tmp_path / "system" / "disk"
    below.mkdir()
    await asyncio.to_thread(subprocess.run, ["mount", "-t", "tmpfs", "tmpfs", below], check=True)
    try:
        below.chmod(0o777)
        volume = Volume("data", VolumeKind.FOLDER, str(tmp_path / "system"), "/volumes/data", writable=False)
        tries = "; ".join(f"(echo x >{place}/disk/mine) 2>&1" for place in ("/volumes/data", "/system"))
        refused = await printed(rig, tries, mounts=(volume,))
        assert len(refused) == 2
        assert all("Read-only file system" in said for said in refused)
        assert list(below.iterdir()) == []
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", "--lazy", below], check=True)


async def test_volumes_are_not_shared_between_tenants(rig: SwarmRig, swarm: Swarm, tmp_path: Path) -> None:
    """Docker's own by tenant and by user, folders with one for each user, and room for one attempt."""
    (tmp_path / "projects").mkdir()
    volumes = (
        Given("results", kind=VolumeKind.DOCKER, writable=True, per=Extent.TENANT),
        Given("private", kind=VolumeKind.DOCKER, writable=True, per=Extent.USER),
        Given("projects", source=f"{tmp_path}/projects/{{tenant}}/{{user}}", writable=True),
        Given("scratch", kind=VolumeKind.SCRATCH, writable=True),
    )
    asked = [VolumeRequest(one.name, True) for one in volumes]
    write = "for one in results private projects scratch; do echo $COMMONAGE_USER >/volumes/$one/of-lab; done; id -u"
    look = "cd /volumes; ls *; ls -a projects/..; cat */of-lab"

    async def of(owner: str, tenant: str, script: str) -> list[str]:
        return await printed(rig, script, owner=owner, tenant=tenant, mounts=mounts_of(asked, volumes, owner, tenant))

    try:
        assert await of("ada", "lab", write) == ["0"]
        assert await of("ada", "lab", "cd /volumes; ls */of-lab") == [
            "private/of-lab", "projects/of-lab", "results/of-lab",
        ]  # fmt: skip
        assert await of("bob", "lab", "cd /volumes; ls */of-lab") == ["results/of-lab"]
        said = await of("eve", "other", look)
        assert not any("ada" in line or line == "of-lab" for line in said), said
        assert "No such file" in said[-1]
        rig.start_request.node = "worker2"
        assert await of("ada", "lab", "cd /volumes; ls */of-lab") == ["projects/of-lab"], "Docker's are each node's"
        assert (await rig.engine()).capabilities().mounts
    finally:
        for node in swarm.workers:
            await _remove_volumes(rig, node.daemon)


async def _remove_volumes(rig: SwarmRig, daemon: Dockerd) -> None:
    """Once the containers that had them are gone."""

    async def are_gone() -> bool:
        for one in daemon.ask("GET", "/volumes")["Volumes"] or ():
            with suppress(RuntimeError):
                daemon.ask("DELETE", f"/volumes/{one['Name']}")
        return not daemon.ask("GET", "/volumes")["Volumes"]

    engine = await rig.engine()
    for status in await engine.statuses():
        await engine.forget(status.attempt_id)
    await rig.until(are_gone, "the volumes are gone", 60)


async def test_a_home_follows_its_user_to_every_node_and_no_other_user_sees_it(rig: SwarmRig) -> None:
    assert await printed(rig, "mkdir -p $HOME/a && echo mine >$HOME/a/diary; id -u") == ["0"]
    rig.start_request.node = "worker2"
    assert await printed(rig, "cat $HOME/a/diary") == ["mine"]
    look = "ls -A $HOME; ls /home; cat /home/ada/a/diary 2>&1"
    home, refused = await printed(rig, look, owner="bob")
    assert (home, "No such file" in refused) == ("bob", True), "of the same tenant, too"


async def test_secrets_are_in_no_description(rig: SwarmRig, swarm: Swarm) -> None:
    request = await rig.started(rig.start_request(FOREVER, secrets=SESAME))
    asked = [swarm.services(), swarm.manager.daemon.ask("GET", "/tasks")]
    daemon = swarm.machines["worker1"].daemon
    asked += [daemon.ask("GET", f"/containers/{one['Id']}/json") for one in daemon.containers()]
    assert request.attempt_id in json.dumps(asked)
    assert "open-up" not in json.dumps(asked)
    kept = [path for folder in (rig.own, rig.data) for path in folder.rglob("*") if path.is_file()]
    left = [path for path in kept if b"open-up" in path.read_bytes()]
    assert [path.name for path in left] == ["secrets.json"]
    assert left[0].is_relative_to(rig.own), "which the control plane alone sees"


async def test_limits_are_the_allocations(rig: SwarmRig, swarm: Swarm) -> None:
    request = await rig.started(rig.start_request(FOREVER, memory_mib=64))
    daemon = swarm.machines["worker1"].daemon
    [container] = daemon.containers(label=[f"commonage.attempt={request.attempt_id}"])
    held = daemon.ask("GET", f"/containers/{container['Id']}/json")["HostConfig"]
    assert held["Memory"] == 64 * 2**20
    assert held["PidsLimit"] == 4096
    assert held["Privileged"] is False
    assert await printed(rig, "python3 -c \"import shutil; print(shutil.disk_usage('/dev/shm').total)\"") == [
        str(128 * 2**20)
    ]


# --- the way to the hub -------------------------------------------------------------------------------------------

HUB_SIDE = """
import asyncio, sys
from pathlib import Path
from tests.contract.engines.firewall_tries import try_ports_of_this_node
from tests.contract.engines.rigs import SwarmRig

class Nodes:
    def __init__(self, url):
        self.manager = self
        self.daemon = self
        self.url = url

async def main():
    port = int(sys.argv[3])
    rig = SwarmRig(Path(sys.argv[1]), Nodes(sys.argv[2]), reaches=(port,), gateway_port=port)
    found = await try_ports_of_this_node(rig, port)
    engine = await rig.engine()
    for status in await engine.statuses():
        await engine.forget(status.attempt_id)
    await engine.close()
    print(*found)

asyncio.run(main())
"""


async def test_of_the_control_planes_node_only_the_ports_that_are_meant_are_reached(
    tmp_path: Path, swarm: Swarm
) -> None:
    command = (sys.executable, "-c", HUB_SIDE, str(tmp_path), swarm.manager.daemon.url, str(HUB_PORT))
    there = await asyncio.to_thread(swarm.run_in, "manager", *command, stdout=-1)
    said, _ = await asyncio.to_thread(there.communicate)
    assert said.decode().split() == ["True", "hello", "wall"], "what is not reached is not renamed"
