"""The Kubernetes engine on a cluster whose watches, API server, nodes and policies fail on demand: the double's."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.kubernetes.conversations import Speaker, config_map
from tests.kubernetes.rig import IMAGE, KubernetesRig

from commonage.domain.images import EnvironmentState
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import ClusterAdmissionDenied, PodNotPrepared, WaitingForCluster
from commonage.domain.reasons.nodes import NodeRefusedPods
from commonage.domain.statuses import Phase
from commonage.engines.kubernetes import client
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.translate import pod_name
from commonage.engines.settings import Mount
from commonage.testing.behaviour import TERMINATED, Behaviour
from commonage.testing.engine_rig import FOREVER
from commonage.testing.fakes.kubernetes.cluster import FakeCluster
from commonage.testing.fakes.kubernetes.store import CONFIG_MAPS, EVENTS, PODS, Kind

pytestmark = pytest.mark.anyio


@dataclass
class Site:
    cluster: FakeCluster
    rig: KubernetesRig


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with FakeCluster(tmp_path / "cluster", nodes=["node-1"], images=[IMAGE]) as cluster:
        rig = KubernetesRig(tmp_path / "data", "commonage", "node-1", kubeconfig=cluster.kubeconfig, lost_after_s=0.0)
        yield Site(cluster, rig)
        await rig.end_all(forget=True)


async def test_attempt_is_followed_after_a_watch_that_is_too_old(site: Site) -> None:
    request = await site.rig.started(site.rig.start_request(FOREVER))
    site.cluster.server.expire()
    await (await site.rig.engine()).stop(request.attempt_id, 60)
    assert (await site.rig.phase(request.attempt_id, Phase.ENDED)).exit_code == TERMINATED


async def test_outage_of_the_api_server_loses_and_doubles_nothing(site: Site) -> None:
    engine = await site.rig.engine()
    running = await site.rig.started(site.rig.start_request(FOREVER))
    late = site.rig.start_request(Behaviour(prints=("late",), exit_code=4))
    site.cluster.server.set_outage(True)
    await asyncio.gather(engine.start(late), engine.stop(running.attempt_id, 60))

    async def is_noticed() -> bool:
        return any(node.faults for node in await engine.nodes())

    await site.rig.until(is_noticed, "the outage is reported")
    assert not [one for one in await engine.statuses() if one.phase is Phase.ENDED]
    site.cluster.server.set_outage(False)
    assert (await site.rig.phase(running.attempt_id, Phase.ENDED)).exit_code == TERMINATED
    assert (await site.rig.phase(late.attempt_id, Phase.ENDED)).exit_code == 4
    assert await site.rig.lines(late.attempt_id) == ["late"]


async def test_pull_of_an_image_waits_for_the_end_of_an_outage(site: Site) -> None:
    engine, environment = await site.rig.engine(), site.rig.start_request.environment
    site.cluster.server.set_outage(True)
    told: list[Reason] = []
    pulling = asyncio.create_task(engine.prepare(environment, "node-1", lambda reason, _: told.append(reason)))

    async def waits() -> bool:
        return WaitingForCluster() in told

    await site.rig.until(waits, "it waits for the cluster")
    site.cluster.server.set_outage(False)
    await pulling
    (status,) = await engine.environments()
    assert (status.name, status.state) == (environment.name, EnvironmentState.READY)


async def test_end_of_an_outage_is_noticed_before_anything_changes_in_the_cluster(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_WATCH_S", 86_400)  # a watch without changes does not end, either
    engine = await site.rig.engine()

    async def is_away() -> bool:
        return any(node.faults for node in await engine.nodes())

    async def is_back() -> bool:
        return not await is_away()

    site.cluster.server.set_outage(True)
    await site.rig.until(is_away, "the outage is reported")
    site.cluster.server.set_outage(False)
    await site.rig.until(is_back, "the nodes take work again")


async def test_attempt_of_a_node_that_returns_runs_on(site: Site) -> None:
    engine = await site.rig.engine()
    request = await site.rig.started(site.rig.start_request(FOREVER))

    async def is_gone() -> bool:
        return (await engine.nodes())[0].gone

    async def is_back() -> bool:
        return not await is_gone()

    site.cluster.lose_node("node-1")
    await site.rig.until(is_gone, "the node is given up")
    await engine.stop(request.attempt_id, 60)
    await site.rig.phase(request.attempt_id, Phase.RUNNING)
    site.cluster.return_node("node-1")
    await site.rig.until(is_back, "the node is back")
    assert (await site.rig.phase(request.attempt_id, Phase.ENDED)).exit_code == TERMINATED


async def test_refusal_by_a_policy_becomes_the_reason(site: Site) -> None:
    def refuse(kind: Kind, _manifest: Manifest) -> str:
        return "no Pods today" if kind is PODS else ""

    site.cluster.admit_by(refuse)
    end = await site.rig.ended(site.rig.start_request(FOREVER))
    assert isinstance(end.reason, ClusterAdmissionDenied)
    assert "no Pods today" in end.reason.error


async def test_pod_that_its_node_does_not_prepare_returns_to_the_queue(site: Site) -> None:
    mounts = (Mount("/not-there", "/data", writable=False),)
    site.rig.settings = replace(site.rig.settings, mounts=mounts, prepare_timeout_s=1.0)
    end = await site.rig.ended(site.rig.start_request(FOREVER))
    assert isinstance(end.reason, PodNotPrepared)
    assert "FailedMount: MountVolume.SetUp failed" in end.reason.error
    assert end.exit_code is None, "it never ran"
    (node,) = await (await site.rig.engine()).nodes()
    (fault,) = node.faults
    assert isinstance(fault, NodeRefusedPods)
    assert fault.cause == end.reason


async def test_node_that_prepares_a_pod_late_but_in_time_runs_it(site: Site) -> None:
    mounts = (Mount("/late", "/data", writable=False),)
    site.rig.settings = replace(site.rig.settings, mounts=mounts, room_timeout_s=0.1)
    request = site.rig.start_request(Behaviour(exit_code=3))
    await (await site.rig.engine()).start(request)

    async def has_warned() -> bool:
        return bool(list(site.cluster.store.all(EVENTS)))

    await site.rig.until(has_warned, "the volume cannot be mounted")
    await site.rig.pass_time(0.5)
    (site.cluster.folder / "node-1" / "host" / "late").mkdir(parents=True)
    site.cluster.store.create(CONFIG_MAPS, {"metadata": {"name": "wakes", "namespace": "commonage"}})
    assert (await site.rig.phase(request.attempt_id, Phase.ENDED)).exit_code == 3


async def test_kill_at_the_memory_limit_is_told(site: Site) -> None:
    request = await site.rig.started(site.rig.start_request(FOREVER))
    site.cluster.kill_for_memory("commonage", pod_name(request.attempt_id))
    assert (await site.rig.phase(request.attempt_id, Phase.ENDED)).oom


async def test_bookmark_tells_a_watch_the_version_of_other_writes(site: Site) -> None:
    speaker = Speaker.open(site.cluster.kubeconfig, "commonage", "node-1", IMAGE)
    async with speaker.http:
        path = speaker.path("configmaps")
        version = (await speaker.ask("GET", path))["metadata"]["resourceVersion"]
        params = {"watch": "1", "resourceVersion": version, "labelSelector": "none=such"}
        async with speaker.http.stream("GET", path, params=params) as answer:
            made = await speaker.ask("POST", path, config_map("other", {}))
            site.cluster.server.bookmark()
            event = json.loads(await anext(answer.aiter_lines()))
    assert event["type"] == "BOOKMARK"
    assert event["object"]["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
