"""Several sites through the API: resources decide where workloads run while the server runs, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fakes.waiting import until
from tests.integration.api_world import STORES, Api, make_store, serving

from commonage.domain.images import Environment, EnvironmentStatus
from commonage.domain.nodes import NodeKey, NodeReport, NodeState
from commonage.domain.statuses import LogLine, Measurement, ProcessOwner, StartRequest, Status
from commonage.domain.tenants import Rules, Tenant
from commonage.engines.process.engine import ProcessEngine
from commonage.engines.settings import ProcessSettings
from commonage.ports.agents import OnProgress, ignore_progress
from commonage.ports.execs import ExecStream, Terminal
from commonage.testing import factories
from commonage.testing.behaviour import Behaviour
from commonage.testing.fakes.engine import FakeEngine

pytestmark = pytest.mark.anyio
RULES = Rules((Tenant("optics"), Tenant("course")))


async def add_site(api: Api, name: str, gpus: int = 1, kind: type[FakeEngine] = FakeEngine) -> FakeEngine:
    node = factories.node("gpu-1", gpus).report
    engine = kind(name, [node], api.control.clock, default=Behaviour(lasts_s=None))
    await engine.open()
    api.control.engines.add(engine)
    ready = lambda: is_ready(api, NodeKey(name, "gpu-1"))  # noqa: E731  # one line reads better
    await until(ready, f"the node of {name}")
    return engine


def is_ready(api: Api, key: NodeKey) -> bool:
    node = api.control.live_state.nodes.get(key)
    return node is not None and node.state is NodeState.READY


@pytest.fixture(params=STORES)
async def api(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Api]:
    store = make_store(request.param, tmp_path, request)
    async with serving(tmp_path, store, rules=RULES) as running:
        running.engine.behave(Behaviour(lasts_s=None))
        running.identity.groups["ann"] = ("optics",)
        await add_site(running, "east")
        yield running


async def apply(root: httpx2.AsyncClient, *documents: dict[str, Any]) -> None:
    answer = await root.post("/apply", json={"documents": list(documents)})
    assert answer.status_code == 200, answer.text


async def submit(client: httpx2.AsyncClient, **fields: Any) -> str:
    answer = await client.post("/workloads", json={"command": ["x"], "gpus": 1, **fields})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["workload"]["id"])


async def site_of(client: httpx2.AsyncClient, workload_id: str) -> str:
    """The site at which it runs, once it does."""

    async def running() -> Any:
        found = (await client.get(f"/workloads/{workload_id}")).json()
        return found["site"] if found["state"] == "running" else None

    return str(await until(running, "the start"))


async def stop(client: httpx2.AsyncClient, workload_id: str) -> None:
    assert (await client.post(f"/workloads/{workload_id}/stop")).status_code == 200

    async def ended() -> bool:
        return (await client.get(f"/workloads/{workload_id}")).json()["ended_at"] is not None

    await until(ended, "the end")


async def placed(client: httpx2.AsyncClient, **fields: Any) -> str:
    """The site that takes a workload; the workload is stopped again."""
    workload_id = await submit(client, **fields)
    site = await site_of(client, workload_id)
    await stop(client, workload_id)
    return site


async def test_changed_order_of_sites_changes_the_placement(ann: httpx2.AsyncClient, root: httpx2.AsyncClient) -> None:
    assert await placed(ann) == "east"  # by name
    await apply(root, {"kind": "Site", "name": "local", "order": -1})
    assert await placed(ann) == "local"
    await apply(root, {"kind": "Site", "name": "east", "order": -2})
    assert await placed(ann) == "east"


async def test_changed_prices_and_policy_of_the_tenant_change_the_placement(
    ann: httpx2.AsyncClient, bob: httpx2.AsyncClient, root: httpx2.AsyncClient
) -> None:
    await apply(
        root,
        {"kind": "Site", "name": "east", "price_per_gpu_h": 3},
        {"kind": "Site", "name": "local", "price_per_gpu_h": 2, "order": 1},
        {"kind": "Tenant", "name": "optics", "site_policy": "cheapest"},
    )
    assert (await ann.get("/tenants/optics")).json()["site_policy"] == "cheapest"
    assert (await placed(ann), await placed(bob)) == ("local", "east")
    await apply(root, {"kind": "Site", "name": "east", "price_per_gpu_h": 1})
    assert await placed(ann) == "east"
    await apply(root, {"kind": "Tenant", "name": "optics", "site_policy": "least-used"})
    held = await submit(bob, on={"site": "east"}, gpus="4GiB")
    await site_of(bob, held)
    assert await placed(ann, gpus="4GiB") == "local"


async def test_tenants_of_a_site_keep_others_out_until_they_change(
    ann: httpx2.AsyncClient, bob: httpx2.AsyncClient, root: httpx2.AsyncClient
) -> None:
    await apply(root, {"kind": "Site", "name": "east", "tenants": ["optics"], "order": -1})
    assert await placed(ann) == "east"
    first, second = await submit(bob), await submit(bob)
    assert await site_of(bob, first) == "local"
    refused = [await bob.post("/workloads", json={"command": ["x"], "on": {"site": name}}) for name in ("east", "none")]
    assert [(one.status_code, one.json()["code"]) for one in refused] == [(422, "unknown-site")] * 2
    assert refused[0].text.replace("east", "none") == refused[1].text
    explained = (await bob.get(f"/workloads/{second}/explanation")).json()
    assert "east" not in str(explained)
    by_admin = (await root.get(f"/workloads/{second}/explanation")).json()
    assert [(one["site"], one["is_candidate"], one["reason"]["code"]) for one in by_admin["sites"]] == [
        ("local", True, "InsufficientGpus"),
        ("east", False, "SiteOfOtherTenants"),
    ]
    await apply(root, {"kind": "Site", "name": "east"})
    assert await site_of(bob, second) == "east"


async def test_changed_sites_of_a_tenant_reach_what_waits(
    ann: httpx2.AsyncClient, bob: httpx2.AsyncClient, root: httpx2.AsyncClient
) -> None:
    await apply(root, {"kind": "Tenant", "name": "optics", "sites": ["local"]})
    taken = await submit(bob, on={"site": "local"})
    await site_of(bob, taken)
    waiting = await submit(ann)
    explained = (await ann.get(f"/workloads/{waiting}/explanation")).json()
    assert {reason["params"]["node"] for reason in explained["reasons"]} == {"gpu-1", "cpu-1"}
    await apply(root, {"kind": "Tenant", "name": "optics", "sites": ["local", "east"]})
    assert await site_of(ann, waiting) == "east"


async def test_a_job_in_the_queue_of_one_site_moves_to_the_one_that_is_free_first(
    ann: httpx2.AsyncClient, bob: httpx2.AsyncClient
) -> None:
    held = {site: await submit(bob, on={"site": site}) for site in ("local", "east")}
    assert {site: await site_of(bob, one) for site, one in held.items()} == {"local": "local", "east": "east"}
    waiting = await submit(ann)
    shown_at = (await ann.get(f"/workloads/{waiting}/explanation")).json()["site"]
    other = next(site for site in held if site != shown_at)
    await stop(bob, held[other])
    assert await site_of(ann, waiting) == other


async def test_near_a_volume(ann: httpx2.AsyncClient, root: httpx2.AsyncClient) -> None:
    await apply(
        root,
        {"kind": "Volume", "name": "scans", "source": "/srv/scans", "sites": ["local"]},
        {"kind": "Volume", "name": "plates", "source": "/srv/plates", "sites": ["east"]},
        {"kind": "Volume", "name": "secret", "source": "/srv/secret", "tenants": ["course"]},
        {"kind": "Volume", "name": "tmp", "type": "scratch"},
    )
    near = await submit(ann, near="scans")
    assert await site_of(ann, near) == "local"
    assert (await ann.get(f"/workloads/{near}")).json()["near"] == "scans"
    assert await placed(ann, near="plates") == "east"
    waiting = await submit(ann, volumes=["scans"])  # the workload must be where the volume is
    sites = (await ann.get(f"/workloads/{waiting}/explanation")).json()["sites"]
    assert [(one["site"], one["reason"]["code"]) for one in sites] == [
        ("local", "InsufficientGpus"),
        ("east", "VolumeNotAtSite"),
    ]
    await apply(root, {"kind": "Volume", "name": "scans", "source": "/srv/scans"})
    assert await site_of(ann, waiting) == "east"  # now it is at all sites
    shown = {one["name"]: one["sites"] for one in (await ann.get("/volumes")).json()["items"]}
    assert (shown["plates"], shown["scans"], "secret" in shown) == (["east"], None, False)


async def test_near_is_checked(ann: httpx2.AsyncClient, root: httpx2.AsyncClient) -> None:
    await apply(
        root,
        {"kind": "Volume", "name": "plates", "source": "/srv/plates", "sites": ["east"]},
        {"kind": "Volume", "name": "secret", "source": "/srv/secret", "tenants": ["course"]},
        {"kind": "Volume", "name": "tmp", "type": "scratch"},
        {"kind": "Site", "name": "far"},
        {"kind": "Volume", "name": "lost", "source": "/srv/lost", "sites": ["far"]},
        {"kind": "Tenant", "name": "optics", "sites": ["local"]},
    )

    async def refused(**fields: Any) -> dict[str, Any]:
        answer = await ann.post("/workloads/dry-run", json={"command": ["x"], **fields})
        assert answer.status_code == 422, answer.text
        return dict(answer.json())

    unknown, hidden = await refused(near="nothing"), await refused(near="secret")
    assert (unknown["code"], hidden["code"]) == ("unknown-volume", "unknown-volume")
    assert str(hidden).replace("secret", "nothing") == str(unknown)
    assert (await refused(near="tmp"))["code"] == "invalid-volume"
    assert (await refused(near="plates"))["code"] == "volume-at-no-site"
    assert (await refused(near="lost"))["code"] == "volume-at-no-site"
    assert (await refused(volumes=["plates"]))["code"] == "volume-at-no-site"


async def test_resources_that_contradict_each_other_are_refused(root: httpx2.AsyncClient) -> None:
    for documents in (
        [{"kind": "Site", "name": "east", "tenants": ["nobody"]}],
        [{"kind": "Volume", "name": "v", "source": "/srv/v", "sites": ["nowhere"]}],
        [
            {"kind": "Site", "name": "east", "tenants": ["course"]},
            {"kind": "Tenant", "name": "optics", "sites": ["east"]},
        ],
    ):
        answer = await root.post("/apply", json={"documents": documents})
        assert (answer.status_code, answer.json()["code"]) == (422, "unknown-reference"), documents


async def test_plan_names_what_runs_at_a_site_that_is_closed(ann: httpx2.AsyncClient, root: httpx2.AsyncClient) -> None:
    await apply(root, {"kind": "Site", "name": "east"})
    held = await submit(ann, on={"site": "east"})
    await site_of(ann, held)
    documents = [{"kind": "Site", "name": "east", "tenants": ["course"]}]
    (change,) = (await root.post("/plan", json={"documents": documents})).json()["changes"]
    assert [(one["reason"]["code"], [each["id"] for each in one["workloads"]]) for one in change["affected"]] == [
        ("SiteNotAllowed", [held])
    ]


# --- a site that does not answer --------------------------------------------------------------------------------------


class Hanging(FakeEngine):
    """Answers until `hangs`; then no method returns any more."""

    hangs = False

    async def _answer(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()

    async def nodes(self) -> Sequence[NodeReport]:
        await self._answer()
        return await super().nodes()

    async def environments(self) -> Sequence[EnvironmentStatus]:
        await self._answer()
        return await super().environments()

    async def measure(self) -> Sequence[Measurement]:
        await self._answer()
        return await super().measure()

    async def statuses(self) -> Sequence[Status]:
        await self._answer()
        return await super().statuses()

    async def watch(self) -> AsyncIterator[Status]:
        async for status in super().watch():
            await self._answer()
            yield status

    async def logs(
        self, attempt_id: str, *, offset: int = 0, tail: int | None = None, follow: bool = False
    ) -> AsyncIterator[LogLine]:
        await self._answer()
        async for line in super().logs(attempt_id, offset=offset, tail=tail, follow=follow):
            yield line

    async def start(self, request: StartRequest) -> None:
        await self._answer()
        await super().start(request)

    async def stop(self, attempt_id: str, grace_s: float) -> None:
        await self._answer()
        await super().stop(attempt_id, grace_s)

    async def forget(self, attempt_id: str) -> None:
        await self._answer()
        await super().forget(attempt_id)

    async def exec(self, attempt_id: str, command: Sequence[str], terminal: Terminal | None = None) -> ExecStream:
        await self._answer()
        return await super().exec(attempt_id, command, terminal)

    async def owners(self, pids: Collection[int]) -> Sequence[ProcessOwner]:
        await self._answer()
        return await super().owners(pids)

    async def prepare(
        self, environment: Environment, node: str | None = None, on_progress: OnProgress = ignore_progress
    ) -> None:
        await self._answer()
        await super().prepare(environment, node, on_progress)

    async def close(self) -> None:
        await self._answer()


def process_engine(folder: Path) -> Callable[[], ProcessEngine]:
    return lambda: ProcessEngine("local", folder, settings=ProcessSettings(node_name="here"))


async def test_a_site_that_hangs_in_every_method_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One site runs processes, the other is a fake that stops to answer with workloads on it and on their way to it."""
    monkeypatch.setattr("commonage.control.engines.CLOSE_TIMEOUT_S", 0.2)  # the hanging site is waited for at the end
    async with serving(tmp_path, engine=process_engine(tmp_path)) as api, api.client("ann") as ann:
        far = await add_site(api, "far", kind=Hanging)
        assert isinstance(far, Hanging)
        stuck = await submit(ann, gpus=None, on={"site": "far"})
        assert await site_of(ann, stuck) == "far"
        far.hangs = True
        more = [await submit(ann, gpus=None, on={"site": "far"}) for _ in range(3)]
        await ann.post(f"/workloads/{stuck}/stop")
        reading = asyncio.create_task(ann.get(f"/workloads/{stuck}/logs"))

        async def ended(workload_id: str) -> Any:
            found = (await ann.get(f"/workloads/{workload_id}")).json()
            return found if found["ended_at"] is not None else None

        for number in range(5):
            job = await submit(
                ann, gpus=None, on={"site": "local"}, memory_mib=64, command=["sh", "-c", f"echo {number}"]
            )
            assert (await until(lambda job=job: ended(job), "the job here"))["state"] == "succeeded"
            assert str(number) in (await ann.get(f"/workloads/{job}/logs")).text
        held = await submit(ann, gpus=None, on={"site": "local"}, memory_mib=64, command=["sleep", "1000"])
        assert await site_of(ann, held) == "local"
        await stop(ann, held)
        rounds = api.control.sampling.iterations.health()
        await until(lambda: api.control.sampling.iterations.health() != rounds, "samples here")
        lost = NodeKey("far", "gpu-1")
        await until(lambda: not is_ready(api, lost), "a judgement of the silent node")
        free = await submit(ann, gpus=None, memory_mib=64, command=["true"])
        assert (await until(lambda: ended(free), "the job anywhere"))["site"] == "local"
        assert is_ready(api, NodeKey("local", "here"))
        assert not reading.done()
        reading.cancel()
        states = [(await ann.get(f"/workloads/{one}")).json()["state"] for one in more]
        assert set(states) <= {"starting", "queued"}
