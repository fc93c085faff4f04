from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.placement.affinity import pinned, tolerates

NODE = {"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}


def pod(**spec: Any) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "cm-1"},
        "spec": {"containers": [{"name": "main", "image": "base:1"}], **spec},
    }


def test_pins_by_required_affinity_and_never_by_node_name() -> None:
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    before = pod()
    assert pinned(before, "gpu-1", "commonage", [toleration])["spec"] == {
        "containers": [{"name": "main", "image": "base:1"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [NODE]}]}
            }
        },
        "tolerations": [toleration],
        "priorityClassName": "commonage",
        "preemptionPolicy": "Never",
    }
    assert before == pod()


@given(st.integers(0, 3))
def test_every_term_of_an_affinity_gets_the_node(terms: int) -> None:
    there = [{"matchExpressions": [{"key": f"k{at}", "operator": "Exists"}]} for at in range(terms)]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": there}}
    affinity = {"nodeAffinity": copy.deepcopy(required), "podAffinity": {}}
    found = pinned(pod(affinity=affinity), "gpu-1", "c")["spec"]["affinity"]
    pins = found["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert len(pins) == max(1, terms)
    assert all(one["matchFields"] == [NODE] for one in pins)
    assert "podAffinity" in found


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "is_match"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu"}, False),
        ({"key": "cpu", "operator": "Exists"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "gpu", "operator": "Exists", "tolerationSeconds": 60}, False),
        ({}, False),
    ],
)
def test_matches_tolerations_as_kubernetes_does(toleration: dict[str, Any], is_match: bool) -> None:
    assert tolerates(toleration, TAINT) is is_match
