"""Reports of nodes: what they have, less what others request of them."""

from typing import Any

import pytest

from commonage.engines.kubernetes.nodes import quantity, report_of, requests_of_others

NODE: dict[str, Any] = {
    "metadata": {"name": "node1", "labels": {"zone": "a"}},
    "spec": {},
    "status": {
        "allocatable": {"cpu": "3920m", "memory": "8Gi"},
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2027-01-15T08:00:00Z"}],
    },
}
READY_AT = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("250m", 0.25), ("8Gi", 8 * 2**30), ("1e3", 1000), ("5M", 5_000_000), ("2k", 2000)]
)
def test_quantities(text: str, value: float) -> None:
    assert float(quantity(text)) == value


def other(phase: str = "Running", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "o"}, "spec": {"nodeName": "node1", **spec}, "status": {"phase": phase}}


def container(cpu: str, memory: str, **more: str) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}, **more}


def test_requests_of_others_are_counted_as_the_scheduler_counts() -> None:
    pods = [
        other(containers=[container("100m", "100Mi"), container("100m", "100Mi")]),
        other(containers=[container("100m", "1Mi")], initContainers=[container("500m", "1Mi")]),
        other(containers=[container("1", "1Mi")], initContainers=[container("1", "9Mi", restartPolicy="Always")]),
        other("Succeeded", containers=[container("9", "9Gi")]),
    ]
    assert requests_of_others(pods, lambda _pod: False) == {"node1": (200 + 500 + 2000, 200 + 1 + 10)}
    assert requests_of_others(pods, lambda _pod: True) == {}


def test_report_has_what_is_left() -> None:
    found = report_of(NODE, {"node1": (920, 192)}, 60, READY_AT, (), None)
    assert (found.cpus_milli, found.memory_mib, found.faults, found.gone) == (3000, 8000, (), False)


def test_silent_node_is_given_up_and_awaits_an_admin() -> None:
    silent: dict[str, Any] = {**NODE, "status": {**NODE["status"]}}
    silent["status"]["conditions"] = [{**NODE["status"]["conditions"][0], "status": "Unknown", "message": "silent"}]
    first = report_of(silent, {}, 60, READY_AT + 30, (), None)
    later = report_of(silent, {}, 60, READY_AT + 61, (), None)
    assert (bool(first.faults), first.gone, first.awaits_admin) == (True, False, None)
    assert (later.gone, later.awaits_admin is not None) == (True, True)


def test_cordoned_and_tainted_nodes_have_faults() -> None:
    taints = [{"key": "team", "value": "a", "effect": "NoSchedule"}, {"key": "hint", "effect": "PreferNoSchedule"}]
    assert (
        len(report_of({**NODE, "spec": {"unschedulable": True, "taints": taints}}, {}, 60, READY_AT, (), None).faults)
        == 2
    )
