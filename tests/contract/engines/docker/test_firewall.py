"""Attempts of root in a container that the firewall must stop, with the real kernel and daemon."""

import asyncio
import json
import tarfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest
from tests.contract.engines.firewall_tries import (
    SESAME,
    answer_hello,
    assert_root_inside_is_not_root,
    connect,
    printed,
    shared_mounts,
    try_ports_of_this_node,
)
from tests.contract.engines.rigs import DockerRig, docker_rig
from tests.contract.harness.dockerd import Dockerd, dockerd_with_image, minimal_image

from commonage.domain.images import Environment
from commonage.domain.reasons.attempts import StartFailed
from commonage.domain.reasons.engines import UsersMapped
from commonage.domain.statuses import Phase, StartRequest
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_rig import FOREVER

pytestmark = [pytest.mark.needs("docker"), pytest.mark.anyio]
HUB_PORT = 18931


@pytest.fixture(scope="module")
def dockerd() -> Iterator[Dockerd]:
    with dockerd_with_image(rules=True) as daemon:
        yield daemon


@pytest.fixture
async def rig(tmp_path: Path, dockerd: Dockerd) -> AsyncIterator[DockerRig]:
    async with docker_rig(
        tmp_path / "data", dockerd, mounts=shared_mounts(tmp_path), reaches=(HUB_PORT,), gateway_port=HUB_PORT
    ) as rig:
        yield rig


async def served(rig: DockerRig) -> tuple[StartRequest, str, str]:
    """Ada's service in the tenant `lab`, with a secret: its order, its host, its port."""
    command = ("sh", "-c", "echo mine >$HOME/diary; echo here; exec python3 -m http.server {port}")
    request = await rig.started(rig.start_request(FOREVER, command=command, wants_port=True, secrets=SESAME))
    url = (await rig.phase(request.attempt_id, Phase.RUNNING)).url
    assert url is not None
    host, _, port = url.removeprefix("http://").partition(":")
    return request, host, port


async def test_containers_of_another_tenant_are_not_reached(rig: DockerRig) -> None:
    _, host, port = await served(rig)

    async def is_up() -> bool:
        return await printed(rig, connect(host, port)) == ["through"]

    await rig.until(is_up, "the same tenant gets through")
    looks = "cat /proc/*/environ | tr '\\0' '\\n' | grep -c SESAME; ls /home; cat /home/ada/diary; cat /shared/data"
    wall, secrets, homes, *rest = await printed(rig, f"{connect(host, port)}; {looks}", tenant="other", owner="eve")
    assert (wall, secrets, homes) == ("wall", "0", "eve")
    assert "No such file" in rest[0]
    assert rest[1] == "of other"


async def test_of_this_node_only_the_ports_that_are_meant_are_reached(rig: DockerRig) -> None:
    assert await try_ports_of_this_node(rig, HUB_PORT) == (True, "hello", "wall")


async def test_the_relay_of_a_tenants_network_serves_nobody_else(rig: DockerRig) -> None:
    fetch = (
        "import sys, urllib.request as u\n"
        "try: print(u.urlopen(sys.argv[1], timeout=int(sys.argv[2])).read().decode())\n"
        "except OSError: print('closed')"
    )
    async with await asyncio.start_server(answer_hello, "127.0.0.1", HUB_PORT):
        hub = (("HUB", f"http://127.0.0.1:{HUB_PORT}"),)
        script = f'echo $HUB; python3 -c "{fetch}" $HUB 30'
        address, fetched = await printed(rig, script, variables=hub)
        other, own, others = await printed(
            rig, f'{script}; python3 -c "{fetch}" {address} 5', variables=hub, tenant="other", owner="eve"
        )
    assert (fetched, own, others) == ("hello", "hello", "closed")
    assert address != other


async def test_root_inside_is_not_root(rig: DockerRig, dockerd: Dockerd) -> None:
    await assert_root_inside_is_not_root(rig, str(dockerd.socket))


async def test_what_is_shared_writable_is(rig: DockerRig, tmp_path: Path) -> None:
    assert await printed(rig, "echo more >/shared/new && cat /shared/data") == ["of lab"]
    assert (tmp_path / "shared" / "lab" / "new").read_text() == "more\n"
    assert not (tmp_path / "shared" / "other" / "new").exists()


async def test_secrets_are_not_in_the_containers_description(rig: DockerRig, dockerd: Dockerd) -> None:
    request, _, _ = await served(rig)
    described = json.dumps(dockerd.ask("GET", f"/containers/commonage-{request.attempt_id}/json"))
    assert "open-up" not in described
    folder = rig.data / "docker" / "runs" / request.attempt_id
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not (folder / "control" / "secrets").exists()
    await (await rig.engine()).stop(request.attempt_id, 0)
    await rig.phase(request.attempt_id, Phase.ENDED)
    await (await rig.engine()).forget(request.attempt_id)
    assert dockerd.containers(label=[f"commonage.attempt={request.attempt_id}"]) == []
    left = [path for path in (rig.data / "docker").rglob("*") if path.is_file() and b"open-up" in path.read_bytes()]
    assert left == []


async def test_an_image_does_not_pass_its_containers_off_as_parts_of_the_installation(
    rig: DockerRig, dockerd: Dockerd
) -> None:
    wrong = {"com.docker.compose.project": "site", "com.docker.compose.service": "control", "commonage.attempt": "x"}
    labels = " ".join(f"{name}={value}" for name, value in wrong.items())
    context = urlencode({"fromSrc": "-", "repo": "commonage-test", "tag": "false", "changes": f"LABEL {labels}"})
    dockerd.ask("POST", f"/images/create?{context}", content=minimal_image())
    request = replace(
        rig.start_request(FOREVER), environment=Environment("false", "False", image="commonage-test:false")
    )
    await rig.started(request)
    assert dockerd.ask("GET", "/images/commonage-test:false/json")["Config"]["Labels"] == wrong
    assert dockerd.containers(label=["com.docker.compose.project=site"]) == []
    assert dockerd.containers(label=["commonage.attempt=x"]) == []
    assert len(dockerd.containers(label=[f"commonage.attempt={request.attempt_id}"])) == 1


async def test_limits_are_the_allocations(rig: DockerRig, dockerd: Dockerd) -> None:
    request = await rig.started(rig.start_request(FOREVER, memory_mib=64))
    held = dockerd.ask("GET", f"/containers/commonage-{request.attempt_id}/json")["HostConfig"]
    assert held["Memory"] == held["MemorySwap"] == 64 * 2**20
    assert held["ShmSize"] == 32 * 2**20
    assert held["PidsLimit"] == 4096
    assert held["CpuShares"] == 1024
    assert held["Privileged"] is False
    assert held["RestartPolicy"]["Name"] == "no"
    size = "python3 -c \"import shutil; print(shutil.disk_usage('/dev/shm').total)\""
    assert await printed(rig, size, memory_mib=64) == [str(32 * 2**20)]


async def test_a_fork_bomb_ends_itself(tmp_path: Path, dockerd: Dockerd) -> None:
    async with docker_rig(tmp_path, dockerd, processes_max=50) as rig:
        script = "i=0; while [ $i -lt 100 ]; do sleep 5 & i=$((i+1)); done"
        lines = await printed(rig, f"( {script} ) 2>&1 | cat")
        assert any("fork" in line for line in lines)


async def test_a_link_in_the_workspace_leads_nobody_out(rig: DockerRig, tmp_path: Path) -> None:
    target = tmp_path / "outside"
    target.mkdir()
    await printed(rig, f"rm -rf $HOME/jobs; ln -s {target} $HOME/jobs")
    bundle = tmp_path / "bundle.tar.gz"
    _pack(bundle)
    request = replace(rig.start_request(Behaviour()), bundle_path=str(bundle))
    end = await rig.ended(request)
    assert isinstance(end.reason, StartFailed) and "the folder of the job cannot be made" in end.reason.error
    assert list(target.iterdir()) == []


async def test_a_job_works_where_its_files_are(rig: DockerRig, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.tar.gz"
    _pack(bundle)
    request = rig.start_request(Behaviour(), command=("sh", "-c", "pwd; cat train.py"), bundle_path=str(bundle))
    assert (await rig.ended(request)).exit_code == 0
    assert await rig.lines(request.attempt_id) == [f"/home/ada/jobs/{request.workload_id}", "print('trained')"]


def _pack(bundle: Path) -> None:
    source = bundle.with_name("train.py")
    source.write_text("print('trained')")
    with tarfile.open(bundle, "w:gz") as archive:
        archive.add(source, "train.py")


# --- where the daemon maps users ----------------------------------------------------------------------------------


async def test_root_inside_is_nobody_outside_where_the_daemon_maps_users(tmp_path: Path, mapping: Dockerd) -> None:
    async with docker_rig(tmp_path / "data", mapping) as rig:
        assert UsersMapped() in (await rig.engine()).capabilities().notes
        _pack(tmp_path / "bundle.tar.gz")
        files = str(tmp_path / "bundle.tar.gz")
        script = "id -u; cat train.py; echo; touch $HOME/new && echo $SESAME"
        shown = await printed(rig, script, bundle_path=files, secrets=SESAME)
        assert shown == ["0", "print('trained')", "open-up"]
        assert (tmp_path / "data" / "workspaces" / "ada" / "new").stat().st_uid == 300000
        request = await rig.started(rig.start_request(FOREVER))
        await (await rig.engine()).stop(request.attempt_id, 5)
        assert (await rig.phase(request.attempt_id, Phase.ENDED)).exit_code == 143
