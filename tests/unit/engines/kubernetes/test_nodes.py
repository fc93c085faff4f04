"""A node that does not answer is given up after a while."""

from typing import Any

from commonage.engines.kubernetes.nodes import is_given_up, not_answering_since

READY_AT = 1_800_000_000.0


def node(status: str) -> dict[str, Any]:
    condition = {"type": "Ready", "status": status, "lastTransitionTime": "2027-01-15T08:00:00Z"}
    return {"metadata": {"name": "node1"}, "spec": {}, "status": {"conditions": [condition]}}


def test_a_ready_node_answers() -> None:
    assert not_answering_since(node("True")) is None
    assert not is_given_up(node("True"), 60, READY_AT + 1e6)


def test_a_silent_node_is_given_up_once_it_has_been_silent_for_too_long() -> None:
    assert not_answering_since(node("Unknown")) == READY_AT
    assert not is_given_up(node("Unknown"), 60, READY_AT + 30)
    assert is_given_up(node("Unknown"), 60, READY_AT + 61)
    assert is_given_up({"metadata": {"name": "new"}, "spec": {}, "status": {}}, 60, READY_AT)
