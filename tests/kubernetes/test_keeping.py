"""Attempts survive a killed control plane, an API that is away, Pods that others delete, logs of any length."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from tests.kubernetes.conftest import kubectl
from tests.kubernetes.rig import KubernetesRig

from commonage.domain.reasons.attempts import EndedFromOutside, PodUnschedulable, WaitingForCluster
from commonage.domain.statuses import Phase
from commonage.engines.kubernetes.client import Client
from commonage.engines.kubernetes.translate import pod_name
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_rig import FOREVER
from commonage.testing.fault_proxy import FaultProxy, Faults

pytestmark = pytest.mark.anyio


async def kube(*words: str) -> str:
    return await asyncio.to_thread(kubectl, *words)


async def pods_of(namespace: str, attempt: str) -> list[dict[str, object]]:
    found = json.loads(
        await kube("-n", namespace, "get", "pods", "-o", "json", "-l", f"commonage.dev/attempt={attempt}")
    )
    items: list[dict[str, object]] = found["items"]
    return items


@pytest.fixture
async def line(rig: KubernetesRig, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    """The configuration by which the rig's engine reaches the API server."""
    given = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text(encoding="utf-8"))
    proxy = FaultProxy(urlsplit(given["clusters"][0]["cluster"]["server"]).port or 443)
    await proxy.open()
    for one in given["clusters"]:
        one["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
    place = tmp_path / "kubeconfig"
    place.write_text(yaml.safe_dump(given), encoding="utf-8")
    rig.settings = replace(rig.settings, kubeconfig=place)
    try:
        yield proxy
    finally:
        proxy.faults = Faults()
        await rig.end_all(forget=True)
        await proxy.close()
        rig.settings = replace(rig.settings, kubeconfig=None)
        await rig.reopen()


async def test_outage_of_the_api_loses_and_doubles_nothing(
    rig: KubernetesRig, line: FaultProxy, namespace: str
) -> None:
    engine = await rig.engine()
    running = await rig.started(rig.start_request(replace(FOREVER, lasts_s=None)))
    ends, stopped = rig.start_request(Behaviour(lasts_s=3.0, prints=("here",), exit_code=4)), rig.start_request(FOREVER)
    await rig.started(ends)
    await rig.started(stopped)
    line.faults = Faults(refuses=True)
    line.cut()
    new = rig.start_request(Behaviour(prints=("here",), exit_code=5))
    await engine.start(new)
    await engine.stop(stopped.attempt_id, 1)

    async def waits() -> bool:
        status = await rig.status(new.attempt_id)
        return status is not None and isinstance(status.reason, WaitingForCluster)

    await rig.until(waits, "the new one waits for the cluster")
    await rig.pass_time(8)  # longer than the second one lasts
    await rig.phase(running.attempt_id, Phase.RUNNING)
    assert all(node.faults for node in await engine.nodes())
    line.faults = Faults()
    assert (await rig.phase(ends.attempt_id, Phase.ENDED)).exit_code == 4
    assert (await rig.phase(new.attempt_id, Phase.ENDED)).exit_code == 5
    assert (await rig.phase(stopped.attempt_id, Phase.ENDED)).exit_code in (137, 143)
    await rig.phase(running.attempt_id, Phase.RUNNING)
    for request in (ends, new):
        assert await rig.lines(request.attempt_id) == ["here"]
        assert len(await pods_of(namespace, request.attempt_id)) == 1

    async def is_well() -> bool:
        return not any(node.faults for node in await engine.nodes())

    await rig.until(is_well, "the nodes have no faults any more")


async def test_pod_deleted_by_others_ends_its_attempt_and_is_not_made_again(rig: KubernetesRig, namespace: str) -> None:
    request = await rig.started(rig.start_request(FOREVER))
    await kube("-n", namespace, "delete", "pod", pod_name(request.attempt_id), "--wait=false", "--grace-period=1")
    end = await rig.phase(request.attempt_id, Phase.ENDED)
    assert end.exit_code is None
    assert isinstance(end.reason, EndedFromOutside)
    await (await rig.restart()).start(request)
    await rig.pass_time(1)
    assert not await pods_of(namespace, request.attempt_id)


async def test_pod_deleted_while_the_control_plane_is_away_is_not_made_again(
    rig: KubernetesRig, namespace: str
) -> None:
    request = await rig.started(rig.start_request(FOREVER))
    await (await rig.engine()).close()
    await kube("-n", namespace, "delete", "pod", pod_name(request.attempt_id), "--grace-period=1")
    await rig.reopen()
    end = await rig.phase(request.attempt_id, Phase.ENDED)
    assert (end.exit_code, end.reason is not None) == (None, True)
    assert not await pods_of(namespace, request.attempt_id)


async def test_what_the_cluster_finds_no_room_for_returns_to_the_scheduler(rig: KubernetesRig, namespace: str) -> None:
    rig.settings = replace(rig.settings, room_timeout_s=2.0)
    request = rig.start_request(FOREVER)
    huge = replace(request, allocation=replace(request.allocation, memory_mib=64 * 1024 * 1024))
    end = await rig.ended(huge)
    assert end.exit_code is None
    assert isinstance(end.reason, PodUnschedulable)
    assert "memory" in end.reason.error
    assert not await pods_of(namespace, request.attempt_id)


async def test_long_output_is_whole_while_it_runs_and_after_a_restart(rig: KubernetesRig) -> None:
    count = 200_000
    script = f"i=0; while [ $i -lt {count} ]; do i=$((i+1)); echo line $i; done; sleep 3; echo last"
    request = replace(rig.start_request(Behaviour()), command=("sh", "-c", script))
    await rig.started(request)
    await rig.restart()
    await rig.phase(request.attempt_id, Phase.ENDED)
    expected = [*(f"line {number}" for number in range(1, count + 1)), "last"]
    assert await rig.lines(request.attempt_id) == expected


async def test_secrets_are_in_no_pod_and_go_with_it(rig: KubernetesRig, namespace: str) -> None:
    request = await rig.started(rig.start_request(FOREVER, secrets=(("HIDDEN", "s3cret-$HOME"),)))
    assert "s3cret" not in await kube("-n", namespace, "get", "pod", pod_name(request.attempt_id), "-o", "json")
    assert pod_name(request.attempt_id) in await kube("-n", namespace, "get", "secrets", "-o", "name")
    engine = await rig.engine()
    await engine.stop(request.attempt_id, 0)
    await rig.phase(request.attempt_id, Phase.ENDED)
    await engine.forget(request.attempt_id)

    async def is_gone() -> bool:
        return pod_name(request.attempt_id) not in await kube("-n", namespace, "get", "secrets", "-o", "name")

    await rig.until(is_gone, "the secret is gone")


@pytest.mark.parametrize("writes", range(1, 5))
async def test_control_plane_that_ends_within_a_start_runs_it_once(
    rig: KubernetesRig, namespace: str, writes: int
) -> None:
    """After this many changes in the cluster: Pod created, uid stored, Secret created, gate removed."""
    request = rig.start_request(Behaviour(prints=("here",), shows=("HIDDEN",)), secrets=(("HIDDEN", "x"),))
    engine = await rig.engine()
    reached, count = asyncio.Event(), 0

    async def ask(method: str, *given: Any, **more: Any) -> Any:
        nonlocal count
        found = await Client._ask(engine._client, method, *given, **more)
        count += method != "GET"
        if count == writes:
            reached.set()
            await asyncio.Event().wait()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._client, "_ask", ask)
        await engine.start(request)
        if writes <= 3:
            await asyncio.wait_for(reached.wait(), 30)
        await rig.restart()
    end = await rig.phase(request.attempt_id, Phase.ENDED)
    assert (end.exit_code, await rig.lines(request.attempt_id)) == (0, ["here", "HIDDEN=x"])
    assert len(await pods_of(namespace, request.attempt_id)) == 1
