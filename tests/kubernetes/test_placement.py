"""Our scheduler places and the cluster binds: refusals come back with the cluster's own message."""

import asyncio
import json
from dataclasses import replace
from functools import partial

import pytest
from tests.kubernetes.conftest import kubectl
from tests.kubernetes.rig import KubernetesRig

from commonage.domain.reasons.attempts import ClusterQuotaExceeded, PodUnschedulable
from commonage.domain.reasons.nodes import NodeRefusedPods
from commonage.domain.statuses import Phase, StartRequest
from commonage.testing.behaviour import Behaviour

pytestmark = pytest.mark.anyio


def too_large(rig: KubernetesRig) -> StartRequest:
    request = rig.start_request(Behaviour())
    return replace(request, allocation=replace(request.allocation, cpus_milli=10_000_000))


@pytest.fixture
def impatient(rig: KubernetesRig) -> KubernetesRig:
    rig.settings = replace(rig.settings, room_timeout_s=2.0)
    return rig


async def test_a_pod_without_room_returns_and_its_node_is_avoided(impatient: KubernetesRig) -> None:
    request = too_large(impatient)
    engine = await impatient.engine()
    await engine.start(request)
    status = await impatient.phase(request.attempt_id, Phase.ENDED)
    node = request.allocation.node
    assert (status.exit_code, status.reason) == (None, PodUnschedulable(node=node, error="Insufficient cpu"))
    report = next(one for one in await engine.nodes() if one.name == node)
    (fault,) = report.faults
    assert isinstance(fault, NodeRefusedPods)
    assert fault.cause == status.reason


async def test_a_used_up_quota_returns_the_attempt(impatient: KubernetesRig, namespace: str) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small", "namespace": namespace},
        "spec": {"hard": {"requests.cpu": "1000"}},
    }
    await asyncio.to_thread(partial(kubectl, "create", "-f", "-", text=json.dumps(quota)))
    try:
        request = too_large(impatient)
        await (await impatient.engine()).start(request)
        status = await impatient.phase(request.attempt_id, Phase.ENDED)
    finally:
        await asyncio.to_thread(kubectl, "delete", "quota", "small", "-n", namespace)
    assert status.exit_code is None
    assert isinstance(status.reason, ClusterQuotaExceeded)
    assert "exceeded quota: small" in status.reason.error


async def test_capacity_is_what_other_pods_leave(rig: KubernetesRig, namespace: str) -> None:
    engine = await rig.engine()
    request = rig.start_request(Behaviour())
    node, name = request.allocation.node, "other"

    async def cpus() -> int:
        return next(one.cpus_milli for one in await engine.nodes() if one.name == node)

    before = await cpus()
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "main",
        "image": request.environment.image,
        "command": ["sleep", "600"],
        "resources": {"requests": {"cpu": "70m"}},
        "securityContext": security,
    }
    spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 1}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}
    await asyncio.to_thread(partial(kubectl, "create", "-f", "-", text=json.dumps(pod)))

    async def is_less() -> bool:
        return await cpus() <= before - 70

    async def is_back() -> bool:
        return await cpus() > before - 70

    await rig.until(is_less, "the node has less")
    await asyncio.to_thread(kubectl, "delete", "pod", name, "-n", namespace)
    await rig.until(is_back, "the node has it again")
