"""GPUs in containers of real daemons: by device request, by CDI with the next Debian's Docker, and in a Swarm.

A Swarm's nodes run all containers by NVIDIA's runtime, as `node join` sets them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
from tests.contract.engines.gpus_contract import GpusContract, Site, add_greedy, gpus_of_a_node
from tests.contract.engines.rigs import docker_rig, swarm_rig
from tests.contract.harness.docker26 import newer_docker
from tests.contract.harness.dockerd import IMAGE, Dockerd, dockerd_with_image
from tests.contract.harness.local_agents import LocalAgents
from tests.contract.harness.swarm import Swarm, swarm_of
from tests.fakes.gpus.harness import MEMORY_MIB, B, Gpus, share_of

from commonage.domain.reasons.attempts import StartFailed, SwarmSeesNoRoom
from commonage.domain.statuses import Phase, Status
from commonage.gpu.isolation.devices import IsolatedDevices
from commonage.ports.devices import ShareAssignment

pytestmark = [pytest.mark.needs("docker", "gcc"), pytest.mark.anyio]
WORKER = "worker1"


def error_of(end: Status) -> str:
    assert isinstance(end.reason, StartFailed)
    return end.reason.error


@pytest.fixture(scope="module")
def gpus() -> Iterator[Gpus]:
    with gpus_of_a_node() as gpus:
        yield gpus


@pytest.fixture(scope="module")
def devices(gpus: Gpus) -> IsolatedDevices:
    return gpus.devices(gpus.folder / "gpus")


@pytest.fixture(scope="module")
def by_request(gpus: Gpus) -> Iterator[Dockerd]:
    """Debian's own Docker, which finds the toolkit's hook when it starts."""
    with dockerd_with_image(before=gpus.on_path) as daemon:
        add_greedy(daemon)
        yield daemon


@pytest.fixture(scope="module")
def by_cdi(gpus: Gpus) -> Iterator[Dockerd]:
    """A newer one without the toolkit, told to read specifications."""
    settings = gpus.folder / "daemon.json"
    settings.write_text('{"features": {"cdi": true}}')
    arguments = (f"--config-file={settings}", f"--cdi-spec-dir={gpus.write_cdi()}")
    with dockerd_with_image(*arguments, before=newer_docker()) as daemon:
        add_greedy(daemon)
        yield daemon


class DockerGpus(GpusContract):
    """By whatever daemon `dockerd` is."""

    @pytest.fixture
    async def site(self, tmp_path: Path, dockerd: Dockerd, gpus: Gpus, devices: IsolatedDevices) -> AsyncIterator[Site]:
        async with docker_rig(tmp_path, dockerd) as rig:
            rig.devices = devices
            await rig.engine()
            yield Site(rig, gpus, devices)


class TestByRequest(DockerGpus):
    @pytest.fixture
    def dockerd(self, by_request: Dockerd) -> Dockerd:
        return by_request

    async def test_an_image_that_needs_a_newer_driver_is_told_so(self, site: Site) -> None:
        """The toolkit's message is the last part of a long chain of errors."""
        request = site.request([share_of(site.gpu[B])], variables=[("NVIDIA_REQUIRE_CUDA", "cuda>=99.1")])
        end = await site.rig.ended(request)
        assert end.exit_code not in (0, None), "it never passes"
        assert "needs a newer NVIDIA driver than its node has" in error_of(end)


# What makes another machine's root file system of Debian's packages can fetch a package, too.
@pytest.mark.needs("debootstrap")
class TestByCdi(DockerGpus):
    names_gpus = False

    @pytest.fixture
    def dockerd(self, by_cdi: Dockerd) -> Dockerd:
        return by_cdi

    async def test_a_gpu_that_cdi_calls_otherwise_is_told_how_to_name(self, site: Site, gpus: Gpus) -> None:
        gpus.write_cdi(by=["index"])
        try:
            end = await site.rig.ended(site.request([share_of(site.gpu[B])]))
        finally:
            gpus.write_cdi()
        assert end.exit_code not in (0, None), "it never passes"
        assert "--device-name-strategy=uuid" in error_of(end)


class GpuAgents(LocalAgents):
    """The worker's agent has both GPUs, and holds shares of them."""

    def __init__(self, swarm: Swarm, devices: IsolatedDevices) -> None:
        super().__init__(swarm, {WORKER: tuple(devices.inventory())})
        self._gpus = devices

    async def enforce(self, node: str, hold: ShareAssignment) -> Mapping[str, str]:
        return await asyncio.to_thread(self._gpus.enforce, hold)

    async def release(self, node: str, attempt_id: str) -> None:
        await asyncio.to_thread(self._gpus.release, attempt_id)


@pytest.fixture(scope="module")
def swarm(gpus: Gpus) -> Iterator[Swarm]:
    with swarm_of(1, vram_mib=2 * MEMORY_MIB, arguments=gpus.as_runtime) as swarm:
        add_greedy(swarm.machines[WORKER].daemon)
        yield swarm


class TestInASwarm(GpusContract):
    @pytest.fixture
    async def site(self, tmp_path: Path, swarm: Swarm, gpus: Gpus, devices: IsolatedDevices) -> AsyncIterator[Site]:
        async with swarm_rig(tmp_path, swarm, GpuAgents(swarm, devices)) as rig:
            await rig.engine()
            yield Site(rig, gpus, devices)

    async def test_swarm_itself_gives_no_vram_twice(self, site: Site, swarm: Swarm) -> None:
        """A share gets no VRAM that another service of the Swarm reserves."""
        whole = [share_of(one, one.memory_mib) for one in site.gpu.values()]
        taken = {"DiscreteResourceSpec": {"Kind": "VRAM", "Value": MEMORY_MIB}}
        other = {
            "Name": "others",
            "TaskTemplate": {
                "ContainerSpec": {"Image": IMAGE, "Command": ["sleep", "600"], "StopGracePeriod": 1},
                "Resources": {"Reservations": {"GenericResources": [taken]}},
                "Placement": {"Constraints": [f"node.hostname=={WORKER}"]},
            },
            "Mode": {"Replicated": {"Replicas": 1}},
            "EndpointSpec": {"Mode": "dnsrr"},
        }
        swarm.manager.daemon.ask("POST", "/services/create", other)
        request = site.request(whole)

        async def is_refused() -> bool:
            found = await site.rig.status(request.attempt_id)
            wanted = found.reason if found is not None else None
            return isinstance(wanted, SwarmSeesNoRoom) and wanted.gpu_memory_mib == 48 * 1024

        try:
            await site.rig.until(lambda: is_running(swarm, "others"), "the other's has its part")
            await (await site.rig.engine()).start(request)
            await site.rig.until(is_refused, "Swarm sees no room")
        finally:
            swarm.manager.daemon.ask("DELETE", "/services/others")
        end = await site.rig.phase(request.attempt_id, Phase.ENDED)
        assert end.exit_code == 0, "it ran as soon as the other was gone"


async def is_running(swarm: Swarm, service: str) -> bool:
    tasks = await asyncio.to_thread(swarm.manager.daemon.ask, "GET", "/tasks")
    names = {one["ID"]: one["Spec"]["Name"] for one in await asyncio.to_thread(swarm.services)}
    return any(names.get(one["ServiceID"]) == service and one["Status"]["State"] == "running" for one in tasks)
