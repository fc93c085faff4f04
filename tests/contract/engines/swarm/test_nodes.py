"""The Swarm engine beyond the contract: nodes that leave and return, and other users of the Swarm."""

import asyncio
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.contract.engines.rigs import SwarmRig, swarm_rig
from tests.contract.harness.local_agents import LocalAgents
from tests.contract.harness.processes import processes_of
from tests.contract.harness.swarm import VRAM_MIB, Swarm
from tests.unit.control.world import ROOT, Site

from commonage.domain.nodes import Device, NodeState, Share
from commonage.domain.reasons import Reason, attempts
from commonage.domain.reasons.nodes import (
    AgentNotAnswering,
    DaemonNotAnswering,
    EndingWorkloads,
    SwarmNodeDown,
    SwarmNodeNotActive,
)
from commonage.domain.statuses import Phase, StartRequest
from commonage.domain.workloads import Kind
from commonage.engines.settings import Mount
from commonage.engines.swarm.statuses import attempt_of, state_of
from commonage.testing.behaviour import TERMINATED, Behaviour
from commonage.testing.engine_rig import FOREVER
from commonage.testing.factories import node_key

pytestmark = [
    pytest.mark.needs("docker"),
    pytest.mark.anyio,
    # The engine checks whether sessions answer at their nodes' addresses.
    pytest.mark.allow_hosts(["127.0.0.1", "::1", "localhost", "10.98.0.0/24"]),
]


def at(request: StartRequest, node: str, *shares: Share) -> StartRequest:
    return replace(request, allocation=replace(request.allocation, node=node, shares=shares))


def device(gib: int) -> Share:
    return Share("GPU-1", 0, "Simulated", gib * 1024, 500, False, VRAM_MIB, simulated=True)


def service_of(swarm: Swarm, request: StartRequest) -> dict[str, object]:
    [found] = [one for one in swarm.services() if one["Spec"]["Labels"].get("commonage.attempt") == request.attempt_id]
    return dict(found)


async def faults(rig: SwarmRig, node: str) -> tuple[Reason, ...]:
    [report] = [one for one in await (await rig.engine()).nodes() if one.name == node]
    return report.faults


# --- nodes that go and come ------------------------------------------------------------------------------------


async def test_a_killed_daemon_is_noticed_and_nothing_of_it_goes_on(rig: SwarmRig, swarm: Swarm) -> None:
    engine = await rig.engine()
    there = [at(rig.start_request(FOREVER), "worker3") for _ in range(8)]
    deaf = [at(rig.start_request(replace(FOREVER, ignores_term=True, leaves_child=True)), "worker3") for _ in range(2)]
    neighbour = await rig.started(rig.start_request(FOREVER))
    await asyncio.gather(*(rig.started(request) for request in (*there, *deaf)))
    waits = ("sh", "-c", "echo here; while [ ! -e $HOME/end-now ]; do sleep 0.1; done")
    ended = await rig.started(at(rig.start_request(FOREVER, command=waits), "worker3"))
    lost = swarm.machines["worker3"]
    lost.daemon.kill()
    try:
        (rig.data / "workspaces" / "ada" / "end-now").touch()
        for request in (*there, *deaf):
            end = await rig.phase(request.attempt_id, Phase.ENDED)
            assert end.exit_code is None
            assert isinstance(end.reason, attempts.NodeLost) and end.reason.node == "worker3"
            assert processes_of(request.attempt_id) == [], "what may be started elsewhere runs no more here"
        assert (await rig.phase(ended.attempt_id, Phase.ENDED)).exit_code == 0, "it ended by itself, and left word"
        assert any(isinstance(one, SwarmNodeDown) for one in await faults(rig, "worker3"))
        await rig.phase(neighbour.attempt_id, Phase.RUNNING)
        late = at(rig.start_request(Behaviour()), "worker3")
        end = await rig.ended(late)
        assert end.exit_code is None
        for request in (*there, *deaf, ended, late):
            await engine.forget(request.attempt_id)
    finally:
        lost.daemon.start()

    async def is_back() -> bool:
        return not await faults(rig, "worker3") and not lost.daemon.containers(label=["commonage.attempt"])

    await rig.until(is_back, "it is back, and its old containers are gone", 60)
    assert (await rig.ended(at(rig.start_request(Behaviour(exit_code=3)), "worker3"))).exit_code == 3
    await rig.phase(neighbour.attempt_id, Phase.RUNNING)


async def test_what_cannot_be_ended_on_a_dead_node_is_not_given_up(rig: SwarmRig, swarm: Swarm) -> None:
    engine = await rig.engine()
    assert rig.agents is not None
    rig.agents.stuck.add("worker3")
    request = await rig.started(at(rig.start_request(FOREVER), "worker3"))
    # It does not hear its control folder any more, as on a node that does not see the shared folder.
    (rig.data / "swarm/attempts" / request.attempt_id / "control/stop").unlink()
    swarm.machines["worker3"].daemon.kill()
    try:

        async def is_told() -> bool:
            return EndingWorkloads() in await faults(rig, "worker3")

        await rig.until(is_told, "why it waits is told")
        await rig.phase(request.attempt_id, Phase.RUNNING)
        assert processes_of(request.attempt_id)
        rig.agents.stuck.clear()
        end = await rig.phase(request.attempt_id, Phase.ENDED)
        assert end.exit_code is None
        assert processes_of(request.attempt_id) == []
        assert EndingWorkloads() not in await faults(rig, "worker3")
        await engine.forget(request.attempt_id)
    finally:
        swarm.machines["worker3"].daemon.start()

    async def is_back() -> bool:
        return not await faults(rig, "worker3")

    await rig.until(is_back, "it is back", 60)


async def test_a_vanished_node_is_lost_and_may_be_removed_although_swarm_lists_it(rig: SwarmRig, swarm: Swarm) -> None:
    site = Site()
    await site.store.open()
    control = site.control(await rig.engine())
    writing = asyncio.create_task(control.writer.run())

    async def is_in(state: NodeState) -> bool:
        await control.nodes.refresh()
        found = control.live_state.nodes.get(node_key("worker3"))
        return found is not None and found.state is state

    await rig.until(partial(is_in, NodeState.READY), "it is ready")
    swarm.machines["worker3"].daemon.kill()
    try:
        await rig.until(partial(is_in, NodeState.LOST), "it is lost")
        assert any(isinstance(one, SwarmNodeDown) for one in control.live_state.nodes[node_key("worker3")].reasons)
        await control.drains.remove(ROOT, node_key("worker3"))
        await site.clock.advance(60)
        await control.nodes.refresh()
        assert swarm.nodes()["worker3"]["Status"]["State"] == "down"
        assert node_key("worker3") not in control.live_state.nodes
    finally:
        swarm.machines["worker3"].daemon.start()
    await rig.until(partial(is_in, NodeState.READY), "it is back", 60)
    writing.cancel()
    await asyncio.wait([writing])


async def test_what_an_agent_fenced_is_lost_at_once(rig: SwarmRig) -> None:
    assert rig.agents is not None
    request, neighbour = [await rig.started(at(rig.start_request(FOREVER), "worker2")) for _ in range(2)]
    rig.agents.faults["worker2"] = DaemonNotAnswering(silent_s=8)
    rig.agents.fenced["worker2"] = (request.attempt_id,)
    end = await rig.phase(request.attempt_id, Phase.ENDED)
    assert end.exit_code is None
    assert isinstance(end.reason, attempts.NodeLost)
    assert DaemonNotAnswering(silent_s=8) in await faults(rig, "worker2")
    await rig.phase(neighbour.attempt_id, Phase.RUNNING)


async def test_a_node_drained_in_swarm_loses_its_work_and_takes_none(rig: SwarmRig, swarm: Swarm) -> None:
    request = await rig.started(at(rig.start_request(replace(FOREVER, on_term_exit=0)), "worker2"))
    node = swarm.nodes()["worker2"]

    def set_to(availability: str) -> None:
        now = swarm.nodes()["worker2"]
        spec = {**now["Spec"], "Availability": availability}
        swarm.manager.daemon.ask("POST", f"/nodes/{node['ID']}/update?version={now['Version']['Index']}", spec)

    set_to("drain")
    try:
        end = await rig.phase(request.attempt_id, Phase.ENDED)
        assert end.exit_code is None
        assert isinstance(end.reason, attempts.EndedFromOutside) and end.reason.by is attempts.ExternalActor.SWARM
        assert SwarmNodeNotActive(availability="drain") in await faults(rig, "worker2")
    finally:
        set_to("active")


async def test_nodes_say_what_they_and_their_agents_know(tmp_path: Path, swarm: Swarm) -> None:
    device = Device("GPU-1", 0, "Simulated", VRAM_MIB, simulated=True)
    agents = LocalAgents(swarm, {"worker1": (device,)})
    async with swarm_rig(tmp_path / "with", swarm, agents) as rig:
        reports = {one.name: one for one in await (await rig.engine()).nodes()}
        assert set(reports) == {"manager", "worker1", "worker2", "worker3"}
        assert reports["worker1"].devices == (device,)
        assert dict(reports["worker1"].labels)["rack"] == "7"
        agents.away.add("worker1")
        assert AgentNotAnswering() in await faults(rig, "worker1")
    async with swarm_rig(tmp_path / "without", swarm) as rig:
        [worker] = [one for one in await (await rig.engine()).nodes() if one.name == "worker1"]
        assert worker.cpus_milli > 0
        assert (worker.devices, worker.faults) == ((), ())
        assert (await rig.ended(rig.start_request(Behaviour(exit_code=4)))).exit_code == 4


# --- what Swarm refuses -------------------------------------------------------------------------------------------


async def test_swarm_refuses_too_much_vram_and_the_reason_is_reported(tmp_path: Path, swarm: Swarm) -> None:
    async with swarm_rig(tmp_path, swarm, LocalAgents(swarm), room_timeout_s=15.0) as rig:
        engine = await rig.engine()
        holder = await rig.started(at(rig.start_request(FOREVER), "worker1", device(20)))
        late = at(rig.start_request(Behaviour(prints=("here",))), "worker1", device(20))
        await engine.start(late)

        told = []

        async def is_told() -> bool:
            told.append((await rig.phase(late.attempt_id, Phase.STARTING)).reason)
            return isinstance(told[-1], attempts.SwarmSeesNoRoom)

        await rig.until(is_told, "the reason is told")
        assert told[-1] == attempts.SwarmSeesNoRoom(node="worker1", memory_mib=256, gpu_memory_mib=20 * 1024)
        end = await rig.phase(late.attempt_id, Phase.ENDED)
        assert end.exit_code is None
        assert await rig.lines(late.attempt_id) == []
        await engine.forget(late.attempt_id)  # else Swarm gives it the freed resources, and it refuses to run
        await engine.stop(holder.attempt_id, 0)
        await rig.phase(holder.attempt_id, Phase.ENDED)

        async def is_let_go() -> bool:  # which Swarm learns later than we do, and our patience is short here
            tasks = swarm.manager.daemon.ask("GET", "/tasks")
            return not any(state_of(one) == "running" for one in tasks if attempt_of(one) == holder.attempt_id)

        await rig.until(is_let_go, "Swarm has let go of what it held")
        await rig.started(at(rig.start_request(FOREVER), "worker1", device(20)))


async def test_shares_are_held_by_the_nodes_agent(rig: SwarmRig) -> None:
    agents = rig.agents
    assert agents is not None
    request = at(rig.start_request(Behaviour(shows=("CONFINED_AT",))), "worker2", device(2))
    await rig.ended(request)
    assert await rig.lines(request.attempt_id) == ["CONFINED_AT=worker2"]
    assert [(node, hold.attempt_id) for node, hold in agents.enforced] == [("worker2", request.attempt_id)]
    assert agents.released == [("worker2", request.attempt_id)]


async def test_a_task_that_is_rejected_ends_with_its_reason(tmp_path: Path, swarm: Swarm) -> None:
    async with swarm_rig(tmp_path, swarm, mounts=(Mount("/no/such/folder", "/data"),)) as rig:
        end = await rig.ended(rig.start_request(Behaviour()))
        assert end.exit_code is None, "it is the node's lack, and not the program's failure"
        assert end.reason == attempts.SharedFolderNotMounted(node="worker1", path="/no/such/folder")
        [service] = swarm.services()
        tried = swarm.manager.daemon.ask("GET", f'/tasks?filters={{"service":["{service["Spec"]["Name"]}"]}}')
        assert [one["Status"]["State"] for one in tried] == ["rejected"], "once, and not again and again"
        assert service["Spec"]["TaskTemplate"]["RestartPolicy"]["Condition"] == "none"


async def test_swarm_is_told_the_node_and_asked_for_no_virtual_address(rig: SwarmRig, swarm: Swarm) -> None:
    """Virtual addresses and the ingress network are silent where the kernel lacks IPVS; here one does not know."""
    request = await rig.started(at(rig.start_request(FOREVER, wants_port=True), "worker2"))
    [service] = [one for one in swarm.services() if request.attempt_id in str(one["Spec"]["Labels"])]
    spec = service["Spec"]
    assert spec["TaskTemplate"]["Placement"]["Constraints"] == [f"node.id=={swarm.nodes()['worker2']['ID']}"]
    assert spec["EndpointSpec"]["Mode"] == "dnsrr"
    assert [one["PublishMode"] for one in spec["EndpointSpec"]["Ports"]] == ["host"]
    assert not service["Endpoint"].get("VirtualIPs")


# --- what a program can write to ----------------------------------------------------------------------------------

_LIES = """
import os, signal, sys, time
control_folder = "/run/commonage/control/"
os.utime(control_folder + "claim", (9e9, 9e9))
if os.fork() == 0:
    os.setsid()
    while True:
        try:
            os.utime(control_folder + "end", (1, 1))
        except OSError:
            time.sleep(0.001)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("here", flush=True)
while True:
    time.sleep(0.05)
"""


async def test_a_program_cannot_forge_its_times_or_lose_its_grace_period(rig: SwarmRig) -> None:
    request = await rig.started(rig.start_request(FOREVER, command=("python3", "-c", _LIES)))
    running = await rig.phase(request.attempt_id, Phase.RUNNING)
    (rig.data / "swarm" / "attempts" / request.attempt_id / "control" / "claim").unlink()
    await (await rig.engine()).stop(request.attempt_id, 60)
    end = await rig.phase(request.attempt_id, Phase.ENDED)
    assert end.exit_code == 7, "it was asked to end, and ended in its own way"
    assert running.started_at is not None
    assert request.allocation.at <= running.started_at <= running.at <= end.at <= time.time()
    assert end.started_at == running.started_at


# --- somebody else has the Swarm, too -----------------------------------------------------------------------------


async def test_what_others_end_or_remove_is_lost_not_failed(rig: SwarmRig, swarm: Swarm) -> None:
    killed, removed = [await rig.started(rig.start_request(FOREVER)) for _ in range(2)]
    daemon = swarm.machines["worker1"].daemon
    [container] = daemon.containers(label=[f"commonage.attempt={killed.attempt_id}"])
    daemon.ask("POST", f"/containers/{container['Id']}/kill")
    swarm.manager.daemon.ask("DELETE", f"/services/{service_of(swarm, removed)['ID']}")
    for request in (killed, removed):
        end = await rig.phase(request.attempt_id, Phase.ENDED)
        assert end.exit_code is None
        assert isinstance(end.reason, attempts.EndedFromOutside)


async def test_kills_an_attempt_that_cannot_be_asked_to_end(tmp_path: Path, swarm: Swarm) -> None:
    async with swarm_rig(tmp_path, swarm) as rig:
        deaf = (
            "sh",
            "-c",
            "rm -r /run/commonage/control/stop; mkdir /run/commonage/control/stop; echo here; exec sleep 300",
        )
        request = await rig.started(rig.start_request(FOREVER, command=deaf))
        await (await rig.engine()).stop(request.attempt_id, 0)
        end = await rig.phase(request.attempt_id, Phase.ENDED)
        assert end.exit_code == TERMINATED, "Swarm asks once more, and does not wait long"

        async def is_gone() -> bool:
            return await rig.processes(request.attempt_id) == 0

        await rig.until(is_gone, "nothing of it is left")


async def test_services_are_named_after_people_and_what_is_left_over_goes(rig: SwarmRig, swarm: Swarm) -> None:
    sessions = [rig.start_request(FOREVER, kind=Kind.SESSION, wants_port=True) for _ in range(2)]
    job = rig.start_request(FOREVER)
    for request in (*sessions, job):
        await rig.started(request)
    names = [service_of(swarm, request)["Spec"]["Name"] for request in (*sessions, job)]  # type: ignore[index]  # JSON
    assert names[0] == "jy-ada"
    assert names[1].startswith("jy-ada-")
    assert names[2] == f"cm-{job.attempt_id}"
    ours = service_of(swarm, job)["Spec"]
    assert isinstance(ours, dict)
    left = {**ours, "Name": "left-over", "Labels": {**ours["Labels"], "commonage.attempt": "left-over-1"}}
    foreign = {**ours, "Name": "foreign", "Labels": {"commonage.attempt": "left-over-1"}}
    for spec in (left, foreign):
        swarm.manager.daemon.ask("POST", "/services/create", spec)
    await rig.restart()

    async def is_clean() -> bool:
        return "left-over" not in {one["Spec"]["Name"] for one in swarm.services()}

    await rig.until(is_clean, "what is left over was removed")
    assert {one["Spec"]["Name"] for one in swarm.services()} >= {*names, "foreign"}
    swarm.manager.daemon.ask("DELETE", "/services/foreign")
    for request in (*sessions, job):
        await rig.phase(request.attempt_id, Phase.RUNNING)
