"""The nodes of a replay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Node, NodeState
from commonage.domain.reasons.nodes import NotReporting
from commonage.replay.clusters import all_ready, parse_cluster, with_more_devices, with_more_nodes


def devices(nodes: tuple[Node, ...]) -> list[int]:
    return [len(node.report.devices) for node in nodes]


def test_parse_cluster() -> None:
    nodes = parse_cluster("2x4x24GiB:RTX 3090")
    assert devices(nodes) == [4, 4]
    assert {(device.model, device.memory_mib) for device in nodes[0].report.devices} == {("RTX 3090", 24 * 1024)}
    assert len({device.uuid for node in nodes for device in node.report.devices}) == 8
    assert devices(parse_cluster("3x0")) == [0, 0, 0]


@pytest.mark.parametrize("text", ["", "8", "0x8", "8xx", "axb", "8x8x80"])
def test_parse_cluster_rejects_invalid_text(text: str) -> None:
    with pytest.raises(InvalidInput, match="8x8"):
        parse_cluster(text)


def test_adds_and_removes_devices() -> None:
    nodes = parse_cluster("2x2")
    more = with_more_devices(nodes, 3)
    assert devices(more) == [4, 3]
    assert more[1].report.cpus_milli == nodes[1].report.cpus_milli * 3 // 2
    assert len({device.uuid for node in more for device in node.report.devices}) == 7
    assert devices(with_more_devices(nodes, -3)) == [0, 1]
    with pytest.raises(InvalidInput, match="the cluster has 4"):
        with_more_devices(nodes, -5)
    with pytest.raises(InvalidInput, match="no node"):
        with_more_devices((), 1)


def test_adds_and_removes_nodes() -> None:
    nodes = parse_cluster("2x2")
    more = with_more_nodes(nodes, 2)
    assert devices(more) == [2, 2, 2, 2]
    assert len({node.name for node in more}) == 4
    assert with_more_nodes(nodes, -1) == nodes[:1]
    with pytest.raises(InvalidInput, match="the cluster has 2"):
        with_more_nodes(nodes, -2)
    with pytest.raises(InvalidInput, match="no node"):
        with_more_nodes((), 1)


def test_all_ready_clears_states_and_faults() -> None:
    node = parse_cluster("1x1")[0]
    device = replace(node.report.devices[0], faults=("burnt",))
    ill = replace(node, state=NodeState.LOST, report=replace(node.report, devices=(device,), faults=(NotReporting(),)))
    assert all_ready([ill]) == (node,)
