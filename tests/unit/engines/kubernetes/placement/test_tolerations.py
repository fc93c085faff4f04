from __future__ import annotations

from typing import Any

import pytest

from commonage.engines.kubernetes.placement.tolerations import read_toleration, tolerates

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


def test_reads_tolerations_as_taints_are_written() -> None:
    assert read_toleration("gpu") == {"key": "gpu", "operator": "Exists"}
    assert read_toleration("nvidia.com/gpu=yes:NoSchedule") == {
        "key": "nvidia.com/gpu",
        "operator": "Equal",
        "value": "yes",
        "effect": "NoSchedule",
    }
    for text in ("", "gpu:Never", "a b", "gpu=yes=no"):
        with pytest.raises(ValueError, match="is no toleration"):
            read_toleration(text)
