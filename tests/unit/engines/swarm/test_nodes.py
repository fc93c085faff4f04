"""The machines of a Swarm, in its words and ours."""

from pathlib import Path
from typing import Any

from commonage.domain.fleet import Device, NodeReport
from commonage.engines.swarm.doctor import examined, notes_of
from commonage.engines.swarm.nodes import machines_of, report_of
from commonage.ports.agents import Heard


def node(name: str, id: str = "n1", state: str = "ready", **more: Any) -> dict[str, Any]:
    """As Swarm tells of one."""
    vram = [{"DiscreteResourceSpec": {"Kind": "VRAM", "Value": 24576}}]
    return {
        "ID": id,
        "Spec": {"Availability": more.get("availability", "active"), "Labels": {"zone": "cellar"}},
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


def heard(name: str, **more: Any) -> Heard:
    report = NodeReport(name, 6000, 1024, (Device("GPU-1", 0, "A100", 40960),), 500, (("rack", "7"),), ("hot",))
    return Heard(name, report, 0.0, **{"connected": True, **more})


def test_a_machine_is_what_swarm_says() -> None:
    [one] = machines_of([node("a")]).values()
    assert (one.cpus_milli, one.memory_mib, one.vram_mib, one.address) == (8000, 65536, 24576, "10.98.0.2")
    assert machines_of([node("a", generic=None)])["a"].vram_mib is None


def test_a_manager_says_where_it_is_in_another_place() -> None:
    found = node("m", manager=True)
    found["Status"]["Addr"] = "0.0.0.0"
    assert machines_of([found])["m"].address == "10.98.0.1"


def test_of_one_that_joined_anew_the_one_that_is_there_counts() -> None:
    found = machines_of([node("a", "old", "down"), node("a", "new"), node("b", "other")])
    assert {name: one.id for name, one in found.items()} == {"a": "new", "b": "other"}
    doubled = machines_of([node("a", "first1"), node("a", "second")])
    assert set(doubled) == {"a", "a-second"}


def test_down_is_given_up_and_unknown_is_waited_for() -> None:
    found = machines_of([node("a", "1", "down"), node("b", "2", "unknown"), node("c", "3", availability="drain")])
    assert found["a"].is_down
    assert not found["b"].is_down
    said = {name: report_of(one, None).faults for name, one in found.items()}
    assert said["a"] == ("Docker Swarm does not reach it: heartbeat failure",)
    assert {name for name, one in found.items() if report_of(one, heard(name)).gone} == {"a"}
    assert "waits for it" in said["b"][0]
    assert "availability drain" in said["c"][0]


def test_an_agent_knows_more() -> None:
    machine = machines_of([node("a")])["a"]
    alone = report_of(machine, None)
    assert (alone.devices, alone.faults) == ((), ())
    report = report_of(machine, heard("a", engine_fault="its Docker daemon does not answer"))
    assert (report.cpus_milli, report.memory_mib, report.disk_free_mib) == (6000, 1024, 500)
    assert dict(report.labels) == {"arch": "x86_64", "os": "linux", "rack": "7", "zone": "cellar"}
    assert report.faults == ("hot", "its Docker daemon does not answer")
    assert "its agent does not answer" in report_of(machine, heard("a", connected=False)).faults


def test_the_doctor_says_what_would_be_better() -> None:
    info = {"ServerVersion": "20.10.24", "SwapLimit": False}
    nodes = [node("a", generic=None), node("b", "n2", "down", generic=None)]
    found = examined(info, nodes, 5.0, Path("/srv/site"))
    assert "2 machines, 1 there (not: b)" in found.said
    assert "/srv/site must be mounted on all" in found.said
    assert "--dispatcher-heartbeat 2s" in found.advice
    assert "no machine declares VRAM" in found.advice
    assert examined(info, [node("a")], 2.0, Path("/srv/site")).advice == ""
    notes = " ".join(notes_of(info, 5.0, Path("/srv/site")))
    assert "after 15 s" in notes
    assert "does not limit swap" in notes
