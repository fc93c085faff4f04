"""Sessions in containers that were created ahead: they equal cold starts, and a container is never used by two
users.
"""

import asyncio
import json
import tarfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from tests.contract.engines.rigs import DockerRig, docker_rig
from tests.contract.harness.dockerd import Dockerd, minimal_image

from commonage.domain.images import Environment
from commonage.domain.statuses import Phase, StartRequest, Status
from commonage.domain.workloads import Kind
from commonage.engines.containers.daemon.descriptions import MIB
from commonage.engines.docker.client import Client
from commonage.engines.docker.warm.containers import WarmContainers
from commonage.testing.behaviour import Behaviour

pytestmark = [
    pytest.mark.needs("docker"),
    pytest.mark.anyio,
    pytest.mark.allow_hosts(["127.0.0.1", "::1", "localhost", "10.213.0.0/16"]),
]
IMAGE = "commonage-warm-test:1"
_WAITING = "/commonage-warm-"
_PROGRAM = b"""#!/usr/bin/python3
import json, os, pathlib, signal, sys

home = pathlib.Path(os.environ["HOME"])
mounts = sorted(line.split()[4] for line in open("/proc/self/mountinfo"))
files = sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}"))
told = {
    "variables": dict(os.environ), "cwd": os.getcwd(), "argv": sys.argv, "path": sys.path, "mounts": mounts,
    "files": files, "user": os.getuid(), "homes": os.listdir("/home"), "control": os.listdir("/run/commonage/control"),
    "signals": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)],
    "mask": list(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))), "umask": os.umask(0o022),
}
home.joinpath(os.environ["COMMONAGE_ATTEMPT_ID"]).write_text(json.dumps(told))
print("the session runs", flush=True)
from http.server import BaseHTTPRequestHandler, HTTPServer
BaseHTTPRequestHandler.log_message = lambda *_: None
HTTPServer(("0.0.0.0", int(os.environ["COMMONAGE_PORT"])), BaseHTTPRequestHandler).serve_forever()
"""


@asynccontextmanager
async def rig_on(data: Path, dockerd: Dockerd) -> AsyncIterator[DockerRig]:
    buffer = BytesIO(minimal_image())
    with tarfile.open(fileobj=buffer, mode="a") as archive:
        info = tarfile.TarInfo("usr/bin/jupyterhub-singleuser")
        info.mode, info.size = 0o755, len(_PROGRAM)
        archive.addfile(info, BytesIO(_PROGRAM))
    path = "/images/create?fromSrc=-&repo=commonage-warm-test&tag=1"
    await asyncio.to_thread(lambda: dockerd.ask("POST", path, content=buffer.getvalue()))
    async with docker_rig(data, dockerd, warm_containers=1) as rig:
        yield rig


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that is late makes its session start cold."""
    monkeypatch.setattr("commonage.engines.docker.warm.containers._ANSWERS_WITHIN_S", 60.0)


@pytest.fixture
async def rig(tmp_path: Path, dockerd: Dockerd) -> AsyncIterator[DockerRig]:
    async with rig_on(tmp_path, dockerd) as rig:
        yield rig


def session(rig: DockerRig, owner: str, **changes: object) -> StartRequest:
    environment = Environment("here", "Of this very node", image=IMAGE)
    fields = {
        "kind": Kind.SESSION,
        "owner": owner,
        "command": (),
        "wants_port": True,
        "environment": environment,
        **changes,
    }
    return rig.start_request(Behaviour(), secrets=(("TOKEN", f"of-{owner}"),), **fields)


async def running(rig: DockerRig, request: StartRequest) -> tuple[Status, dict[str, Any]]:
    """Start it; what its program says of itself."""
    await (await rig.engine()).start(request)
    told = rig.data / "workspaces" / request.owner / request.attempt_id

    async def has_told() -> bool:
        return told.exists() and bool(told.read_text())

    await rig.until(has_told, "its program runs")
    return await rig.phase(request.attempt_id, Phase.RUNNING), json.loads(told.read_text())


def named(dockerd: Dockerd) -> dict[str, str]:
    """The ids of all containers that run or are paused, by name."""
    return {one["Names"][0]: one["Id"] for one in dockerd.containers(status=["running", "paused"])}


async def waiting(rig: DockerRig, dockerd: Dockerd, seen: frozenset[str] = frozenset()) -> str:
    """Wait for a container that waits for a session; its id."""
    found: list[str] = []

    async def is_there() -> bool:
        engine = await rig.engine()
        assert engine._warm is not None
        ready = [one.id for kind in engine._warm._kinds.values() for one in kind.waiting]
        found[:] = [one for name, one in named(dockerd).items() if name.startswith(_WAITING) and one in ready]
        return bool(set(found) - seen)

    await rig.until(is_there, "a container waits")
    return next(iter(set(found) - seen))


async def ended(rig: DockerRig, request: StartRequest) -> Status:
    await (await rig.engine()).stop(request.attempt_id, 10)
    return await rig.phase(request.attempt_id, Phase.ENDED)


async def test_a_session_in_a_waiting_container_equals_one_that_starts_cold(rig: DockerRig, dockerd: Dockerd) -> None:
    first, second = session(rig, "ada"), session(rig, "ada")
    _, cold = await running(rig, first)
    container = await waiting(rig, dockerd)
    _, warm = await running(rig, second)
    assert named(dockerd)[f"/commonage-{second.attempt_id}"] == container
    assert warm["mounts"].count("/home/ada") == 1
    assert set(warm["mounts"]) - set(cold["mounts"]) == {"/run/commonage/warm"}
    assert set(cold["mounts"]) <= set(warm["mounts"])
    for told, request in ((cold, first), (warm, second)):
        del told["mounts"]
        variables = told["variables"]
        assert variables.pop("HOSTNAME")
        assert variables.pop("COMMONAGE_ATTEMPT_ID") == request.attempt_id
        assert variables.pop("COMMONAGE_WORKLOAD_ID") == request.workload_id
        assert variables["TOKEN"] == "of-ada"
        assert told["control"] == ["claim"], "secrets stay nowhere"
    assert warm == cold
    assert await rig.lines(second.attempt_id) == ["the session runs"]


async def test_a_waiting_container_serves_one_user_and_goes_with_the_session(rig: DockerRig, dockerd: Dockerd) -> None:
    await running(rig, session(rig, "ada"))
    container = await waiting(rig, dockerd)
    request = session(rig, "bob")
    status, told = await running(rig, request)
    assert (told["homes"], told["variables"]["TOKEN"], told["cwd"]) == (["bob"], "of-bob", "/home/bob")
    found = dockerd.ask("GET", f"/containers/{container}/json")
    assert "of-bob" not in json.dumps(found) and "ada" not in json.dumps(found["Mounts"])
    assert status.started_at is not None and status.started_at >= request.allocation.at - 1, "not when it was created"
    following = await waiting(rig, dockerd, frozenset({container}))
    assert following != container
    end = await ended(rig, request)
    assert end.exit_code is not None
    await (await rig.engine()).forget(request.attempt_id)
    assert container not in {one["Id"] for one in dockerd.containers()}


async def test_nothing_of_an_image_runs_while_its_container_waits(rig: DockerRig, dockerd: Dockerd) -> None:
    def described(container: str) -> tuple[bool, int, int]:
        found = dockerd.ask("GET", f"/containers/{container}/json")
        limits = found["HostConfig"]
        return found["State"]["Paused"], limits["Memory"] // MIB, limits["MemorySwap"] // MIB

    def large(owner: str) -> StartRequest:
        request = session(rig, owner)
        return replace(request, allocation=replace(request.allocation, memory_mib=1024))

    await running(rig, large("ada"))
    container = await waiting(rig, dockerd)
    assert described(container) == (True, 512, 512), "the scheduler counts nothing of it"
    request = large("bob")
    await running(rig, request)
    assert named(dockerd)[f"/commonage-{request.attempt_id}"] == container
    assert described(container) == (False, 1024, 1024)


async def test_clearing_up_leaves_a_session_that_was_waiting_when_containers_were_listed(
    rig: DockerRig, dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running(rig, session(rig, "ada"))
    container = await waiting(rig, dockerd)
    engine, request = await rig.engine(), session(rig, "bob")
    list_them = engine._client.containers

    async def list_and_wait(label: str) -> Mapping[str, str]:
        found = await list_them(label)
        await running(rig, request)
        return found

    monkeypatch.setattr(engine._client, "containers", list_and_wait)
    await engine._clear()
    assert named(dockerd)[f"/commonage-{request.attempt_id}"] == container


async def test_a_session_of_another_tenant_or_size_gets_no_waiting_container(rig: DockerRig, dockerd: Dockerd) -> None:
    await running(rig, session(rig, "ada"))
    container = await waiting(rig, dockerd)
    for changes in ({"tenant": "other"}, {"variables": (("LD_BIND_NOW", "1"),)}):
        request = session(rig, "bob", **changes)
        await running(rig, request)
        assert named(dockerd)[f"/commonage-{request.attempt_id}"] != container


async def test_packages_in_the_home_make_a_session_start_cold(rig: DockerRig, dockerd: Dockerd) -> None:
    await running(rig, session(rig, "ada"))
    container = await waiting(rig, dockerd)
    (rig.data / "workspaces" / "bob" / ".local" / "lib").mkdir(parents=True)
    request = session(rig, "bob")
    await running(rig, request)
    assert named(dockerd)[f"/commonage-{request.attempt_id}"] != container


async def test_a_session_starts_cold_if_the_waiting_container_died(rig: DockerRig, dockerd: Dockerd) -> None:
    await running(rig, session(rig, "ada"))
    container = await waiting(rig, dockerd)
    dockerd.ask("POST", f"/containers/{container}/kill")
    await running(rig, session(rig, "bob"))


async def test_a_stopped_session_never_starts_in_a_waiting_container(rig: DockerRig, dockerd: Dockerd) -> None:
    await running(rig, session(rig, "ada"))
    await waiting(rig, dockerd)
    request = session(rig, "bob")
    engine = await rig.engine()
    await engine.start(request)
    await engine.stop(request.attempt_id, 0)
    await rig.phase(request.attempt_id, Phase.ENDED)
    await engine.forget(request.attempt_id)
    assert f"/commonage-{request.attempt_id}" not in {one["Names"][0] for one in dockerd.containers()}


async def test_waiting_containers_go_with_the_engine_and_sessions_stay(rig: DockerRig, dockerd: Dockerd) -> None:
    await running(rig, session(rig, "ada"))
    await waiting(rig, dockerd)
    request = session(rig, "bob")
    before, _ = await running(rig, request)
    await rig.restart()
    assert not [name for name in named(dockerd) if name.startswith(_WAITING)]
    after = await rig.phase(request.attempt_id, Phase.RUNNING)
    assert (after.phase, after.started_at) == (Phase.RUNNING, before.started_at)


async def test_waiting_containers_of_a_killed_control_plane_go_at_its_next_start(
    rig: DockerRig, dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running(rig, session(rig, "ada"))
    container = await waiting(rig, dockerd)

    async def end_as_if_killed(warm: WarmContainers) -> None:
        for kind in warm._kinds.values():
            for one in kind.waiting:
                warm._forget(one)  # the kernel closes the files of a killed process

    with monkeypatch.context() as killing:
        killing.setattr(WarmContainers, "close", end_as_if_killed)
        await (await rig.engine()).close()
    assert container in named(dockerd).values()
    await rig.reopen()

    async def is_gone() -> bool:
        return container not in {one["Id"] for one in dockerd.containers()}

    await rig.until(is_gone, "the waiting container was removed")


async def test_a_session_whose_container_was_taken_when_the_control_plane_was_killed_starts_in_its_own(
    rig: DockerRig, dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running(rig, session(rig, "ada"))
    container = await waiting(rig, dockerd)
    request, taken = session(rig, "bob"), asyncio.Event()

    async def never(_client: Client, _container: str) -> None:
        taken.set()
        await asyncio.Event().wait()

    engine = await rig.engine()
    with monkeypatch.context() as killing:
        killing.setattr(Client, "unpause", never)
        await engine.start(request)
        async with asyncio.timeout(120):
            await taken.wait()
        await engine.close()
    assert named(dockerd)[f"/commonage-{request.attempt_id}"] == container
    await rig.reopen()
    _, told = await running(rig, request)
    assert told["homes"] == ["bob"]
    assert container not in {one["Id"] for one in dockerd.containers()}


async def test_a_session_starts_warm_where_the_daemon_maps_users(tmp_path: Path, mapping: Dockerd) -> None:
    async with rig_on(tmp_path / "data", mapping) as rig:
        await running(rig, session(rig, "ada"))
        container = await waiting(rig, mapping)
        request = session(rig, "bob")
        _, told = await running(rig, request)
        assert named(mapping)[f"/commonage-{request.attempt_id}"] == container
        assert (told["user"], told["homes"]) == (0, ["bob"])
        told_in = rig.data / "workspaces" / "bob" / request.attempt_id
        assert told_in.stat().st_uid == 300000


async def test_a_session_starts_warm_where_the_path_of_the_data_folder_is_long(
    tmp_path: Path, dockerd: Dockerd
) -> None:
    async with rig_on(tmp_path / ("long" * 25), dockerd) as rig:
        await running(rig, session(rig, "ada"))
        container = await waiting(rig, dockerd)
        request = session(rig, "bob")
        await running(rig, request)
        assert named(dockerd)[f"/commonage-{request.attempt_id}"] == container
