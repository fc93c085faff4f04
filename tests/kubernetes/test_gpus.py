"""Shares of one device through the whole engine, on a real cluster. Nothing prepares it, so that no program starts."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from tests.kubernetes.conftest import PREFIX, kubectl
from tests.kubernetes.gpus import GIB, GPU, device_class, part, resource_slice, with_shares
from tests.kubernetes.rig import KubernetesRig

from commonage.domain.nodes import Isolation
from commonage.domain.reasons.attempts import PodNotPrepared, PodUnschedulable, PreparingInCluster
from commonage.domain.statuses import Phase
from commonage.engines.kubernetes.gpus.dra import Dra
from commonage.engines.kubernetes.translate import pod_name
from commonage.testing.engine_rig import FOREVER

pytestmark = pytest.mark.anyio


async def kube(*words: str, text: str | None = None) -> str:
    return await asyncio.to_thread(lambda: kubectl(*words, text=text))


@pytest.fixture
async def site(rig: KubernetesRig) -> AsyncIterator[KubernetesRig]:
    """The rig of a cluster whose one GPU is published by a driver that exists only as objects."""
    name = f"{PREFIX}-{secrets.token_hex(3)}"
    driver = f"{name}.commonage.dev"
    made = [device_class(name, driver), resource_slice(name, driver, rig.start_request.node)]
    await kube("create", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
    shared = KubernetesRig(
        rig.data / "gpus", rig.settings.namespace, rig.start_request.node,
        gpu_modes=[Dra(driver, name, name)], priority_class=rig.settings.priority_class, room_timeout_s=5.0,
    )  # fmt: skip
    try:
        yield shared
    finally:
        await shared.end_all(forget=True)
        await kube("delete", "resourceslice,deviceclass", name)


async def test_shares_of_one_device_are_bound_until_it_is_full(site: KubernetesRig) -> None:
    engine = await site.engine()
    (device,) = [one for node in await engine.nodes() for one in node.devices]
    assert (device.uuid, device.memory_mib) == (GPU, 80 * GIB)
    if device.isolation is not Isolation.ACCOUNTED:
        pytest.skip("the cluster's feature gate DRAConsumableCapacity is off")
    bound = [with_shares(site.start_request(FOREVER), [part(32)]) for _ in range(2)]
    for request in bound:
        await engine.start(request)
        wanted = PreparingInCluster(node=site.start_request.node)

        async def is_bound(attempt: str = request.attempt_id, wanted: PreparingInCluster = wanted) -> bool:
            status = await site.status(attempt)
            return status is not None and (status.phase, status.reason) == (Phase.STARTING, wanted)

        await site.until(is_bound, "the Pod is bound, and its node prepares it")
        claim = await get_claim(site, request.attempt_id)
        (given,) = claim["status"]["allocation"]["devices"]["results"]
        assert (given["device"], given["consumedCapacity"]) == ("gpu-0", {"memory": "32Gi"})
        assert [one["kind"] for one in claim["metadata"]["ownerReferences"]] == ["Pod"]

    refused = await site.ended(with_shares(site.start_request(FOREVER), [part(32)]))
    assert isinstance(refused.reason, PodUnschedulable)
    assert "cannot allocate all claims" in refused.reason.error


async def test_claim_that_no_driver_prepares_returns_the_work_with_the_clusters_message(site: KubernetesRig) -> None:
    site.settings = replace(site.settings, prepare_timeout_s=8.0)
    await site.engine()
    end = await site.ended(with_shares(site.start_request(FOREVER), [part(32)]))
    assert isinstance(end.reason, PodNotPrepared)
    assert "FailedPrepareDynamicResources" in end.reason.error
    assert end.exit_code is None, "it never ran"


async def get_claim(site: KubernetesRig, attempt: str) -> dict[str, Any]:
    name = pod_name(attempt)
    found: dict[str, Any] = json.loads(
        await kube("-n", site.settings.namespace, "get", "resourceclaim", name, "-o", "json")
    )
    return found
