"""The nodes of a Swarm, in its words and ours."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from commonage.domain.nodes import Device, NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import GpuNotDeclared
from commonage.domain.reasons.engines import (
    NodeLossNoticed,
    NodeNotice,
    NodesWithoutAgent,
    PlainHttpToHub,
    PrivilegesMayBeGained,
    SwapNotLimited,
)
from commonage.domain.reasons.nodes import (
    AgentNotAnswering,
    DaemonMapsUsers,
    DaemonNotAnswering,
    DaemonWithoutSeccomp,
    EndingWorkloads,
    FolderNotReadable,
    HostNameChanged,
    HostNameTaken,
    MayBeCutOff,
    NoNodeCertificate,
    SwarmNodeDown,
    SwarmNodeNotActive,
    SwarmNodeNotReady,
)
from commonage.engines.containers.daemon.info import may_gain
from commonage.engines.swarm.doctor import examined, notes_of
from commonage.engines.swarm.nodes.swarm_nodes import Wait, notes_on, report_of, swarm_nodes_of
from commonage.ports.agents import AgentReport


def node(name: str, id: str = "n1", state: str = "ready", **more: Any) -> dict[str, Any]:
    vram = [{"DiscreteResourceSpec": {"Kind": "VRAM", "Value": 24576}}]
    return {
        "ID": id,
        "Spec": {
            "Availability": more.get("availability", "active"),
            "Labels": {"zone": "cellar"},
            "Role": "manager" if more.get("manager") else "worker",
        },
        "Description": {
            "Hostname": name,
            "Platform": {"Architecture": "x86_64"},
            "Resources": {
                "NanoCPUs": 8_000_000_000,
                "MemoryBytes": 64 * 2**30,
                "GenericResources": more.get("generic", vram),
            },
        },
        "Status": {"State": state, "Message": "heartbeat failure" if state == "down" else "", "Addr": "10.98.0.2"},
        **({"ManagerStatus": {"Addr": "10.98.0.1:2377"}} if more.get("manager") else {}),
    }


HOT = FolderNotReadable(folder="/data", error="too hot")
NODE_IDS = {"a": "1", "b": "2"}
"""Those of the nodes that most tests here have."""


def agent_report(name: str, **more: Any) -> AgentReport:
    report = NodeReport(name, 6000, 1024, (Device("GPU-1", 0, "A100", 40960),), 500, (("rack", "7"),), (HOT,))
    context = {"connected": True, "gateway": "172.18.0.1", "node_id": NODE_IDS.get(name, name), **more}
    return AgentReport(name, report, 0.0, 0.0, **context)


def test_node_fields_come_from_swarm() -> None:
    [one] = swarm_nodes_of([node("a")]).values()
    assert (one.cpus_milli, one.memory_mib, one.vram_mib, one.address) == (8000, 65536, 24576, "10.98.0.2")
    assert swarm_nodes_of([node("a", generic=None)])["a"].vram_mib is None


def test_a_manager_says_where_it_is_in_another_place() -> None:
    found = node("m", manager=True)
    found["Status"]["Addr"] = "0.0.0.0"
    assert swarm_nodes_of([found])["m"].address == "10.98.0.1"


def test_rejoined_node_counts_once() -> None:
    found = swarm_nodes_of([node("a", "old", "down"), node("a", "new"), node("b", "other")])
    assert {name: one.id for name, one in found.items()} == {"a": "new", "b": "other"}
    doubled = swarm_nodes_of([node("a", "first1"), node("a", "second")])
    assert set(doubled) == {"a", "a-second"}


def test_joining_node_is_not_listed() -> None:
    nameless = node("a", "new", "unknown") | {"Description": {}}
    assert list(swarm_nodes_of([nameless, node("b", "2")])) == ["b"]
    assert swarm_nodes_of([{**nameless, "Description": None}]) == {}


def test_host_name_cannot_take_name_bound_to_another_node() -> None:
    bound = {"n1": "a", "n2": "b"}
    found = swarm_nodes_of([node("b", "n1"), node("b", "n2")], bound)
    assert {name: one.id for name, one in found.items()} == {"a": "n1", "b": "n2"}
    assert found["a"].mismatch == HostNameChanged(node="a", host_name="b") and not found["a"].takes_work
    assert found["b"].mismatch is None and found["b"].takes_work
    assert report_of(found["a"], None).faults == (found["a"].mismatch,)
    down = swarm_nodes_of([node("a", "n0"), node("a", "n1", "down")], bound)
    assert {name: one.id for name, one in down.items()} == {"a": "n1", "a-n0": "n0"}, "nor while the node is down"
    assert down["a-n0"].mismatch == HostNameTaken(node="a-n0", host_name="a")
    suffixed = swarm_nodes_of([node("x", "n1"), node("a", "aaaaaaaaa"), node("x", "n3")], {"n1": "a-aaaaaa"})
    assert suffixed["a-aaaaaa"].id == "n1", "nor by a name that is made here"


def test_only_managers_take_work_without_certificate() -> None:
    found = swarm_nodes_of([node("hub", "m1", manager=True), node("a", "n1")], {})
    assert found["hub"].takes_work
    assert found["a"].mismatch == NoNodeCertificate(node="a", swarm_node_id="n1")
    assert not found["a"].takes_work
    assert swarm_nodes_of([node("a", "n1")], None)["a"].takes_work, "a site without certificates has host names alone"


def test_worker_cannot_take_managers_name() -> None:
    found = swarm_nodes_of([node("hub", "a0"), node("hub", "m1", manager=True)], {})
    assert found["hub"].id == "m1" and found["hub"].takes_work
    assert not found["hub-a0"].takes_work


def test_down_node_is_given_up_and_unknown_node_is_not() -> None:
    found = swarm_nodes_of([node("a", "1", "down"), node("b", "2", "unknown"), node("c", "3", availability="drain")])
    assert found["a"].is_down
    assert not found["b"].is_down
    said = {name: report_of(one, None).faults for name, one in found.items()}
    assert said["a"] == (SwarmNodeDown(error="heartbeat failure"),)
    assert {name for name, one in found.items() if report_of(one, agent_report(name)).gone} == {"a"}
    assert said["b"] == (SwarmNodeNotReady(state="unknown"),)
    assert said["c"] == (SwarmNodeNotActive(availability="drain"),)


def test_agent_cannot_change_what_the_swarm_says_of_its_node() -> None:
    swarm_node = swarm_nodes_of([node("a")])["a"]
    claimed = agent_report("a")
    claimed = replace(
        claimed, report=replace(claimed.report, labels=(("arch", "evil"), ("zone", "evil"), ("own", "1")))
    )
    found = dict(report_of(swarm_node, claimed).labels)
    assert found == {**dict(report_of(swarm_node, None).labels), "own": "1"}
    assert found["zone"] == "cellar"


def test_agent_report_adds_details() -> None:
    swarm_node = swarm_nodes_of([node("a")])["a"]
    alone = report_of(swarm_node, None)
    assert (alone.devices, alone.faults) == ((), ())
    report = report_of(swarm_node, agent_report("a", engine_fault=DaemonNotAnswering(silent_s=12)))
    assert (report.cpus_milli, report.memory_mib, report.disk_free_mib) == (6000, 1024, 500)
    assert dict(report.labels) == {"arch": "x86_64", "os": "linux", "rack": "7", "zone": "cellar"}
    assert report.faults == (HOT, DaemonNotAnswering(silent_s=12))
    assert AgentNotAnswering() in report_of(swarm_node, agent_report("a", connected=False)).faults


def test_fencing_in_progress_is_reported_and_node_not_given_up() -> None:
    down = swarm_nodes_of([node("a", state="down")])["a"]
    waiting = report_of(down, agent_report("a"), Wait(EndingWorkloads()))
    assert waiting.faults == (
        SwarmNodeDown(error="heartbeat failure"), EndingWorkloads(), HOT
    )  # fmt: skip
    assert not waiting.gone
    assert report_of(down, agent_report("a"), Wait(MayBeCutOff(node="a"), for_long=True)).gone


def test_gpus_that_docker_declares_no_vram_for_take_no_work() -> None:
    def faults(generic: Any, *gpus: Device) -> list[tuple[Reason, ...]]:
        swarm_node = swarm_nodes_of([node("a", generic=generic)])["a"]
        told = agent_report("a")
        told = replace(told, report=replace(told.report, devices=gpus))
        report = report_of(swarm_node, told)
        assert report.faults == (HOT,), "what needs no GPU starts there"
        return [gpu.faults for gpu in report.devices]

    def vram(mib: int) -> Any:
        return [{"DiscreteResourceSpec": {"Kind": "VRAM", "Value": mib}}]

    gpus = [Device(f"GPU-{number}", number, "A100", 40960) for number in (0, 1)]
    assert faults(None, *gpus) == [(GpuNotDeclared(declared_mib=0, present_mib=81920),)] * 2
    assert faults(vram(81920), *gpus) == [(), ()]
    assert faults(vram(40960), *gpus) == [(), (GpuNotDeclared(declared_mib=40960, present_mib=81920),)]
    simulated = Device("GPU-9", 9, "Simulated", 24576, simulated=True)
    assert faults(None, simulated) == [()]


def test_an_admin_is_told_of_nodes_without_an_agent_and_what_their_agents_notice() -> None:
    swarm_nodes = swarm_nodes_of([node(name, name) for name in "abc"])
    assert notes_on({"a": swarm_nodes["a"]}, {"a": agent_report("a")}) == ()
    gains = PrivilegesMayBeGained()
    notes = notes_on(swarm_nodes, {"a": agent_report("a", notices=(gains,))})
    assert notes == (NodeNotice(node="a", cause=gains), NodesWithoutAgent(nodes=("b", "c")))


def test_an_admin_is_told_where_containers_reach_the_hub_by_plain_http() -> None:
    told = {
        "a": agent_report("a"),
        "b": agent_report("b", gateway=""),
        "c": agent_report("c", gateway="", connected=False),
    }
    notes = notes_on(swarm_nodes_of([node(name, name) for name in "abc"]), told)
    assert notes == (PlainHttpToHub(nodes=("b",)),)
    info = {"ServerVersion": "26.1", "SecurityOptions": ["name=seccomp,profile=default"]}
    advice = examined(info, [node("a"), node("b", "n2")], 2.0, Path("/srv/site"), told).advice
    assert "b with an agent of an earlier version, so that containers there reach the hub by plain HTTP" in advice
    assert "a with an agent of an earlier version" not in advice


def test_the_doctor_says_what_would_be_better() -> None:
    info = {"ServerVersion": "20.10.24", "SwapLimit": False, "SecurityOptions": ["name=seccomp,profile=default"]}
    nodes = [node("a", generic=None), node("b", "n2", "down", generic=None)]
    found = examined(info, nodes, 5.0, Path("/srv/site"), {"b": agent_report("b")})
    assert "2 nodes, 1 there (not: b)" in found.said
    assert "/srv/site must be mounted on all" in found.said
    assert "--dispatcher-heartbeat 2s" in found.advice
    assert "a without an agent, so without work, firewall" in found.advice
    assert "b with GPUs, but no VRAM declared" in found.advice
    assert found.conditions == ()
    told = {"a": agent_report("a")}
    assert examined(info, [node("a")], 2.0, Path("/srv/site"), told).advice == ""
    unfit = {**info, "Name": "hub", "SecurityOptions": ["name=userns"]}
    faults = examined(unfit, [node("a")], 2.0, Path("/srv/site"), told).conditions
    assert faults == (("hub", DaemonMapsUsers()), ("hub", DaemonWithoutSeccomp()))
    _, loss, swap = notes_of(info, 5.0, Path("/srv/site"))
    assert loss == NodeLossNoticed(after_s=15.0, is_slow=True)
    assert swap == SwapNotLimited()


def test_the_doctor_names_nodes_whose_containers_may_gain_privileges() -> None:
    gains = PrivilegesMayBeGained()

    def gaining(version: str, *options: str, **told: tuple[Reason, ...]) -> list[str]:
        info = {"Name": "hub", "ServerVersion": version, "SecurityOptions": ["name=seccomp,profile=default", *options]}
        nodes = [node(name, f"id-{name}") for name in ("hub", "a", "b")]
        said = {name: agent_report(name, notices=told.get(name, ())) for name in ("hub", "a", "b", "gone")}
        return [name for name, why in examined(info, nodes, 2.0, Path("/srv/site"), said).conditions if why == gains]

    assert gaining("20.10.24") == [], "it does not say"
    assert gaining("20.10.24", a=(gains,), gone=(gains,)) == ["a"]
    assert gaining("28.1.1", hub=(gains,)) == ["hub"], "said once"
    assert gaining("28.1.1", b=(gains,)) == ["b", "hub"]
    assert gaining("28.1.1", "name=no-new-privileges") == []


def test_privilege_gain_is_reported_or_unknown() -> None:
    assert may_gain({"ServerVersion": "24.0.5", "SecurityOptions": ["name=no-new-privileges"]}) is False
    assert may_gain({"ServerVersion": "27.0.3", "SecurityOptions": ["name=cgroupns"]}) is True
    for unknown in ({}, {"ServerVersion": "20.10.24+dfsg1", "SecurityOptions": None}, {"ServerVersion": "dev"}):
        assert may_gain(unknown) is None
