"""Placeholders on a cluster: its scheduler and a node that comes, as an autoscaler makes it."""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.rig import KubernetesRig

from commonage.domain.nodes import Machine, MachineKind, NodePoolPolicy
from commonage.domain.resources import NodePool
from commonage.engines.kubernetes.manifest import Manifest
from commonage.ports.clouds import Cloud

pytestmark = pytest.mark.anyio
MADE = "commonage-test-node-pool"
"""A label and a taint, so that no Pod of others comes to the nodes of this test."""


def node(name: str) -> Manifest:
    taint = {"key": MADE, "value": "true", "effect": "NoSchedule"}
    metadata = {"name": name, "labels": {MADE: name.rpartition("-")[0]}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": [taint]}}


def status(*, ready: bool) -> Manifest:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    has = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    condition = {
        "type": "Ready", "status": str(ready), "reason": "Test", "lastHeartbeatTime": now, "lastTransitionTime": now,
    }  # fmt: skip
    return {"status": {"conditions": [condition], "capacity": has, "allocatable": has}}


@pytest.fixture
def nodes(namespace: str) -> Iterator[list[str]]:
    """Names for nodes. The nodes are removed at the end."""
    names = [f"{namespace}-{number}" for number in (1, 2)]
    yield names
    Kubectl().run("delete", "node", *names, "--ignore-not-found", "--wait=false")


async def autoscale(name: str) -> None:
    """Make a node that takes work."""
    run = Kubectl().must
    await asyncio.to_thread(lambda: run("create", "-f", "-", manifest=node(name)))
    patch = json.dumps(status(ready=True))
    await asyncio.to_thread(run, "patch", "node", name, "--subresource=status", "--type=merge", "-p", patch)
    # What the node controller does once it has seen that the node is ready.
    taints = json.dumps({"spec": node(name)["spec"]})
    await asyncio.to_thread(run, "patch", "node", name, "--type=merge", "-p", taints)


async def until(cloud: Cloud, nodes: list[str], requests: int) -> list[Machine]:
    """Wait for these nodes, which take work, and this number of requests. Returns the requests."""
    async with asyncio.timeout(60):
        while True:
            found = await cloud.machines()
            asked = [one for one in found if one.requested]
            ready = sorted(one.name for one in found if not one.requested and not one.starting)
            if (ready, len(asked)) == (nodes, requests):
                return asked
            await asyncio.sleep(0.2)


async def test_each_node_that_comes_ends_one_placeholder(rig: KubernetesRig, namespace: str, nodes: list[str]) -> None:
    rig.settings = replace(rig.settings, tolerations=({"key": MADE, "operator": "Exists"},))
    policy = NodePoolPolicy("burst", MachineKind(7000, 16384, labels=((MADE, namespace),)), engine="kubernetes", most=3)
    engine = await rig.engine()
    cloud = engine.cloud(NodePool(policy, "kubernetes", "", rig.start_request.environment.image or ""))
    assert await cloud.machines() == []
    await cloud.create("burst-000001", "")
    await cloud.create("burst-000002", "")
    await until(cloud, [], 2)
    await autoscale(nodes[0])
    await until(cloud, nodes[:1], 1)
    again = await rig.restart()
    cloud = again.cloud(NodePool(policy, "kubernetes", "", rig.start_request.environment.image or ""))
    await until(cloud, nodes[:1], 1)
    await autoscale(nodes[1])
    await until(cloud, nodes, 0)
    third = await cloud.create("burst-000003", "")
    (asked,) = await until(cloud, nodes, 1)
    assert asked.name == third.name, "it fits on no node that is there"
    await cloud.destroy(third)
    await cloud.destroy(third)
    await until(cloud, nodes, 0)
