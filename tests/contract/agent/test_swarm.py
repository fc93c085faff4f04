"""The Swarm engine with real agents: each a program in its node's network namespace, which dials over the link."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.engines.rigs import SwarmRig, swarm_rig
from tests.contract.harness.agents import AgentProgram, listening_in, make_config
from tests.contract.harness.leftovers import unmount_below
from tests.contract.harness.processes import commands_beside, processes_of
from tests.contract.harness.swarm import MANAGER, Swarm, swarm_of

from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import Device, Share
from commonage.domain.reasons.engines import NodeNotice, PrivilegesMayBeGained
from commonage.domain.reasons.nodes import AgentNotAnswering
from commonage.domain.statuses import Phase, StartRequest
from commonage.link.agent_connections import AgentConnections
from commonage.link.certificate_authority import CertificateAuthority
from commonage.ports.agents import AgentReport
from commonage.ports.execs import OUT
from commonage.testing.behaviour import Aside, Behaviour
from commonage.testing.engine_rig import FOREVER
from commonage.testing.exec_contract import ExecContract

pytestmark = [pytest.mark.needs("docker"), pytest.mark.anyio]
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def swarm() -> Iterator[Swarm]:
    with swarm_of(2, arguments=("--live-restore=false",)) as swarm:
        yield swarm


class Agents:
    """The link, and an agent on each node."""

    def __init__(self, folder: Path, swarm: Swarm) -> None:
        self._folder, self._swarm = folder, swarm
        self.authority = CertificateAuthority.open(folder / "ca")
        self.linked = AgentConnections(self.authority)
        self.programs: dict[str, AgentProgram] = {}

    async def open(self) -> None:
        await self.listen()
        for name in self._swarm.machines:
            self.start(name)
        async with asyncio.timeout(60):
            while True:
                there = [one for one in self.linked.agent_reports() if not one.engine_fault and one.report.devices]
                if len(there) == len(self._swarm.machines):
                    return
                await asyncio.sleep(0.1)

    async def listen(self) -> None:
        """On the manager; again where it was before."""
        manager, port = self._swarm.manager, self.linked.port
        await self.linked.open_on(await asyncio.to_thread(listening_in, manager.space, manager.address, port))

    async def be_away(self) -> None:
        """The control plane ends, as far as agents see it. `listen` has it there again, with what it knew."""
        port = self.linked.port
        await self.linked.close()
        self.linked = AgentConnections(self.authority)
        self.linked.port = port

    def start(self, name: str) -> None:
        node = self._swarm.machines[name]
        config = make_config(
            self._folder / name,
            self.authority,
            name,
            self.linked.port,
            node_id=self._swarm.node_id(name),
            control=(f"{self._swarm.manager.address}:{self.linked.port}",),
            docker=node.daemon.url,
            fence_after_s=2.0,
            firewall=True,
        )
        self.programs[name] = AgentProgram(self._folder / name, config, before=node.inside())

    def agent_report(self, name: str) -> AgentReport:
        return next(one for one in self.linked.agent_reports() if one.node == name)

    async def close(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(one.close) for one in self.programs.values()))
        await self.linked.close()


@asynccontextmanager
async def agents_on(folder: Path, swarm: Swarm) -> AsyncIterator[Agents]:
    agents = Agents(folder, swarm)
    try:
        await agents.open()
        yield agents
    except BaseException:
        for name, program in agents.programs.items():
            print(f"--- {name}\n{program.log.read_text()[-3000:]}")
        raise
    finally:
        await agents.close()
        unmount_below(folder)  # of an agent that was killed


@pytest.fixture
async def site(tmp_path: Path, swarm: Swarm) -> AsyncIterator[tuple[SwarmRig, Agents]]:
    async with agents_on(tmp_path / "agents", swarm) as agents:
        (tmp_path / "data").mkdir()
        async with swarm_rig(tmp_path / "data", swarm, agents.linked) as rig:  # type: ignore[arg-type]  # the port, too
            yield rig, agents


def at(request: StartRequest, node: str, *shares: Share) -> StartRequest:
    return replace(request, allocation=replace(request.allocation, node=node, shares=shares))


def part_of(device: Device, mib: int) -> Share:
    return Share(device.uuid, device.index, device.model, mib, 250, False, device.memory_mib, simulated=True)


async def test_nodes_are_what_their_agents_say_and_containers_are_measured(site: tuple[SwarmRig, Agents]) -> None:
    rig, agents = site
    engine = await rig.engine()
    reports = {one.name: one for one in await engine.nodes()}
    assert {name: len(one.devices) for name, one in reports.items()} == {MANAGER: 2, "worker1": 2, "worker2": 2}
    assert [one.faults for one in reports.values()] == [(), (), ()]
    share = part_of(reports["worker2"].devices[0], 4096)
    request = await rig.started(at(rig.start_request(FOREVER), "worker2", share))

    async def is_measured() -> bool:
        return any(one.attempt_id == request.attempt_id and one.pids for one in await engine.measure())

    await rig.until(is_measured, "its container is measured by its node's agent")
    await agents.linked.note_allocations([replace(request.allocation, at=time.time() - 60)])

    async def is_on_its_device() -> bool:
        sample = agents.agent_report("worker2").samples[0]
        return [one.attempt_id for one in sample.processes] == [request.attempt_id]

    await rig.until(is_on_its_device, "the GPU of its node shows it")
    assert agents.agent_report("worker1").samples[0].processes == ()


async def test_a_killed_daemon_loses_its_work_within_seconds_and_nothing_runs_on(
    site: tuple[SwarmRig, Agents], swarm: Swarm
) -> None:
    rig, agents = site
    engine = await rig.engine()
    there = [at(rig.start_request(FOREVER), "worker2") for _ in range(10)]
    neighbour = await rig.started(at(rig.start_request(FOREVER), "worker1"))
    await asyncio.gather(*(rig.started(request) for request in there))
    swarm.machines["worker2"].daemon.kill()
    began = time.monotonic()
    for request in there:
        end = await rig.phase(request.attempt_id, Phase.ENDED)
        assert end.exit_code is None
        assert processes_of(request.attempt_id) == [], "what may be started elsewhere runs no more here"
    print(f"ten attempts were given up {time.monotonic() - began:.1f} s after the daemon was killed")
    assert agents.agent_report("worker2").engine_fault
    [report] = [one for one in await engine.nodes() if one.name == "worker2"]
    assert report.faults
    for request in there:
        await engine.forget(request.attempt_id)
    swarm.machines["worker2"].daemon.start()

    async def is_back() -> bool:
        [report] = [one for one in await engine.nodes() if one.name == "worker2"]
        return not report.faults and not swarm.machines["worker2"].daemon.containers(label=["commonage.attempt"])

    await rig.until(is_back, "it is back, and its old containers are gone", 60)
    assert (await rig.ended(at(rig.start_request(Behaviour(exit_code=3)), "worker2"))).exit_code == 3
    await rig.phase(neighbour.attempt_id, Phase.RUNNING)


def _held(container: str, name: str) -> int | None:
    """The limit in the file of this name in a container's control group, of either version."""
    places = ("*/docker/{}/{}", "docker/{}/{}", "system.slice/docker-{}.scope/{}")
    files = [file for one in places for file in Path("/sys/fs/cgroup").glob(one.format(container, name))]
    return int(files[0].read_text()) if files else None


async def test_cores_are_weighed_as_they_were_asked_for_and_what_a_daemon_lacks_is_noticed(
    site: tuple[SwarmRig, Agents], swarm: Swarm
) -> None:
    rig, _ = site
    engine = await rig.engine()
    few, many = [at(rig.start_request(FOREVER), "worker1") for _ in range(2)]
    many = replace(many, allocation=replace(many.allocation, cpus_milli=4 * few.allocation.cpus_milli))
    for request in (few, many):
        await rig.started(request)
    daemon = swarm.machines["worker1"].daemon

    def weight(request: StartRequest) -> int:
        [one] = daemon.containers(label=[f"commonage.attempt={request.attempt_id}"])
        return _held(one["Id"], "cpu.shares") or _held(one["Id"], "cpu.weight") or 0

    async def are_weighed() -> bool:
        return weight(many) > 3 * weight(few)

    await rig.until(are_weighed, "who asked for four times the cores weighs as much more")
    [container] = daemon.containers(label=[f"commonage.attempt={many.attempt_id}"])
    shares = daemon.ask("GET", f"/containers/{container['Id']}/json")["HostConfig"]["CpuShares"]
    assert shares == many.allocation.cpus_milli * 1024 // 1000
    # A Swarm cannot forbid swap in addition to memory either: version 1 limits the sum of both, version 2 only swap.
    both, swap = (_held(container["Id"], name) for name in ("memory.memsw.limit_in_bytes", "memory.swap.max"))
    assert both == many.allocation.memory_mib * MIB or swap == 0
    # This Swarm's daemons were not told to forbid it.
    notice = NodeNotice(node="worker1", cause=PrivilegesMayBeGained())

    async def is_noticed() -> bool:
        await engine.nodes()
        return notice in engine.capabilities().notes

    await rig.until(is_noticed, "that containers may gain privileges")
    assert engine.capabilities().isolates_users


_TRIES = """
import socket, sys
for where in sys.argv[1:]:
    address, _, port = where.rpartition(':')
    try:
        socket.create_connection((address, int(port)), 3).close()
        print(where, 'yes')
    except OSError:
        print(where, 'no')
"""
_SERVES = """
import selectors, socket
look = selectors.DefaultSelector()
for port in (8091, 8092):
    look.register(socket.create_server(('0.0.0.0', port)), selectors.EVENT_READ)
print('up', flush=True)
while True:
    for key, _ in look.select():
        key.fileobj.accept()[0].close()
"""


async def _tried(rig: SwarmRig, node: str, *tried: str, **changes: Any) -> list[str]:
    """The answer of a container on this node about these addresses."""
    request = replace(at(rig.start_request(Behaviour()), node), command=("python3", "-c", _TRIES, *tried), **changes)
    await rig.ended(request)
    return await rig.lines(request.attempt_id)


async def test_containers_reach_the_hub_and_nothing_else_of_the_site(
    site: tuple[SwarmRig, Agents], swarm: Swarm
) -> None:
    rig, agents = site
    await rig.engine()
    bare = (getattr(sys, "_base_executable", sys.executable), "-S", "-c", _SERVES)
    servers = [swarm.run_in(name, *bare, stdout=subprocess.PIPE) for name in (MANAGER, "worker1", "worker2")]
    try:
        for server in servers:
            assert server.stdout is not None
            assert await asyncio.to_thread(server.stdout.readline) == b"up\n"
        hub, worker1, worker2 = (swarm.machines[name].address for name in (MANAGER, "worker1", "worker2"))
        agents.linked.allow_addresses([f"{hub}:8091"])
        listing = [*swarm.machines["worker1"].inside(), "iptables", "-S", "COMMONAGE-FORWARD"]

        async def are_built() -> bool:
            rules = await asyncio.to_thread(subprocess.run, listing, capture_output=True, text=True, check=False)
            return f"-d {hub}/32" in rules.stdout

        await rig.until(are_built, "the firewall on worker1 let the hub's port through")

        async def hub_is_reached() -> bool:
            return await _tried(rig, "worker1", f"{hub}:8091") == [f"{hub}:8091 yes"]

        await rig.until(hub_is_reached, "the hub is reached")
        others = [f"{hub}:8092", f"{worker1}:8091", f"{worker2}:8091"]
        assert await _tried(rig, "worker1", *others) == [f"{where} no" for where in others]
    finally:
        for server in servers:
            server.kill()
            server.wait()
            if server.stdout is not None:
                server.stdout.close()


async def test_ports_of_nodes_are_not_reached_by_other_tenants(site: tuple[SwarmRig, Agents], swarm: Swarm) -> None:
    """Sessions have ports of their nodes, for the hub: a container reaches none of them, on any node."""
    rig, _ = site
    command = ("sh", "-c", "echo here; exec python3 -m http.server $COMMONAGE_PORT")
    served = await rig.started(at(rig.start_request(FOREVER, command=command, wants_port=True), "worker1"))
    url = (await rig.phase(served.attempt_id, Phase.RUNNING)).url
    assert url is not None
    where = url.removeprefix("http://")
    hub = [*swarm.manager.inside(), getattr(sys, "_base_executable", sys.executable), "-c", _TRIES, where]

    async def hub_reaches() -> bool:
        tried = await asyncio.to_thread(subprocess.run, hub, capture_output=True, text=True, check=False)
        return tried.stdout.split() == [where, "yes"]

    await rig.until(hub_reaches, "the hub's node reaches it", 60)
    for node in ("worker1", "worker2"):
        assert await _tried(rig, node, where, owner="eve", tenant="other") == [f"{where} no"], node


async def test_commands_run_beside_what_runs_on_another_node(site: tuple[SwarmRig, Agents]) -> None:
    rig, agents = site
    await rig.engine()
    rules = [getattr(ExecContract(), name) for name in vars(ExecContract) if name.startswith("test_")]
    await asyncio.gather(*(rule(rig) for rule in rules))  # each with a job of its own
    request = await rig.started(rig.start_request(FOREVER))
    stream = await (await rig.engine()).exec(request.attempt_id, rig.aside(Aside(prints="here", lasts=True)))
    assert await stream.read() == (OUT, b"here\n")
    agents.programs["worker1"].kill()  # no program can end it until the agent returns
    with pytest.raises(EngineFailure):
        await stream.read()
    await stream.close()
    with pytest.raises(EngineFailure, match="agent"):
        await (await rig.engine()).exec(request.attempt_id, ("true",))
    assert commands_beside(request.attempt_id)
    agents.start("worker1")

    async def is_ended() -> bool:
        return not commands_beside(request.attempt_id)

    await rig.until(is_ended, "the agent has ended what it had left")


async def test_attempts_outlive_an_agent_that_dies(site: tuple[SwarmRig, Agents]) -> None:
    rig, agents = site
    engine = await rig.engine()
    request = await rig.started(at(rig.start_request(FOREVER), "worker1"))
    agents.programs["worker1"].kill()

    async def is_told() -> Any:
        [report] = [one for one in await engine.nodes() if one.name == "worker1"]
        return AgentNotAnswering() in report.faults

    await rig.until(is_told, "the node says that its agent is away")
    await rig.phase(request.attempt_id, Phase.RUNNING)
    agents.start("worker1")

    async def is_back() -> Any:
        [report] = [one for one in await engine.nodes() if one.name == "worker1"]
        return not report.faults and await engine.measure()

    await rig.until(is_back, "it is back, and found what runs")
    await engine.stop(request.attempt_id, 5)
    await rig.phase(request.attempt_id, Phase.ENDED)
