"""The nodes of a replay: a cluster described in a short text, or the nodes of a site with changes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Device, Node, NodeReport, NodeState
from commonage.domain.requests import parse_memory

_CLUSTER = re.compile(
    r"(?P<nodes>\d{1,5})x(?P<devices>\d{1,2})(?:x(?P<memory>[\d.]+[A-Za-z]+))?(?::(?P<model>[\w ./+-]{1,62}))?"
)
CPUS_MILLI_PER_DEVICE = 16_000
MEMORY_MIB_PER_DEVICE = 96 * 1024  # resources of a described node for each GPU: 16 cores and 96 GiB


def parse_cluster(text: str) -> tuple[Node, ...]:
    """Nodes from `8x8` (nodes x GPUs), `8x8x80GiB`, `8x8x80GiB:A100`. Raises InvalidInput."""
    match = _CLUSTER.fullmatch(text.strip())
    if match is None or not int(match["nodes"]):
        raise InvalidInput(
            f"invalid cluster {text[:60]!r}; write NODESxGPUSxVRAM:MODEL, like 8x8 or 4x2x80GiB:A100",
            field="cluster",
        )
    memory = parse_memory(match["memory"], field="cluster") if match["memory"] else 80 * 1024
    devices, model = int(match["devices"]), match["model"] or "GPU"
    return tuple(
        _node(f"node-{number:04}", [_device(f"node-{number:04}", device, model, memory) for device in range(devices)])
        for number in range(int(match["nodes"]))
    )


def _device(node: str, index: int, model: str, memory_mib: int) -> Device:
    return Device(f"{node}/{index}", index, model, memory_mib)


def _node(name: str, devices: Sequence[Device]) -> Node:
    parts = max(1, len(devices))
    report = NodeReport(name, CPUS_MILLI_PER_DEVICE * parts, MEMORY_MIB_PER_DEVICE * parts, tuple(devices))
    return Node(name, "replay", "replay", NodeState.READY, report, 0.0)


def all_ready(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes with all states ready and all GPUs healthy."""
    return tuple(
        replace(
            node,
            state=NodeState.READY,
            report=replace(
                node.report, devices=tuple(replace(device, faults=()) for device in node.report.devices), faults=()
            ),
        )
        for node in nodes
    )


def with_more_devices(nodes: Sequence[Node], more: int) -> tuple[Node, ...]:
    """The nodes with `more` GPUs added to the nodes with the fewest; if negative, removed from those with the most.

    A new GPU is of the most common kind. CPUs and memory of the node change in proportion. Raises InvalidInput if there
    is no node, or too few GPUs to remove.
    """
    changed = list(nodes)
    if more and not changed:
        raise InvalidInput("no node to add GPUs to: the cluster is empty", field="gpus")
    total = sum(len(node.report.devices) for node in changed)
    if -more > total:
        raise InvalidInput(f"cannot remove {-more} GPUs: the cluster has {total}", field="gpus")
    kinds = Counter((device.model, device.memory_mib) for node in changed for device in node.report.devices)
    model, memory = kinds.most_common(1)[0][0] if kinds else ("GPU", 80 * 1024)
    for step in range(abs(more)):
        counts = [len(node.report.devices) for node in changed]
        at = counts.index(min(counts) if more > 0 else max(counts))
        devices = changed[at].report.devices
        if more > 0:
            device = replace(
                _device(changed[at].name, len(devices), model, memory), uuid=f"{changed[at].name}/more-{step}"
            )
            changed[at] = _with_devices(changed[at], (*devices, device))
        else:
            changed[at] = _with_devices(changed[at], devices[:-1])
    return tuple(changed)


def _with_devices(node: Node, devices: tuple[Device, ...]) -> Node:
    report, before = node.report, len(node.report.devices)
    cpus = report.cpus_milli * len(devices) // before if before and devices else report.cpus_milli
    memory = report.memory_mib * len(devices) // before if before and devices else report.memory_mib
    return replace(node, report=replace(report, cpus_milli=cpus, memory_mib=memory, devices=devices))


def with_more_nodes(nodes: Sequence[Node], more: int) -> tuple[Node, ...]:
    """The nodes with `more` copies of the node with the most GPUs; if negative, without the last ones."""
    if more <= 0:
        if -more >= len(nodes) and more:
            raise InvalidInput(f"cannot remove {-more} nodes: the cluster has {len(nodes)}", field="nodes")
        return tuple(nodes[: len(nodes) + more])
    if not nodes:
        raise InvalidInput("no node to copy: the cluster is empty", field="nodes")
    largest = max(nodes, key=lambda node: (len(node.report.devices), node.report.cpus_milli))
    return (*nodes, *(_copy(largest, f"more-{number:04}") for number in range(more)))


def _copy(node: Node, name: str) -> Node:
    devices = tuple(replace(device, uuid=f"{name}/{device.index}", peers=()) for device in node.report.devices)
    return replace(node, name=name, report=replace(node.report, name=name, devices=devices))
