"""Volumes through the API: lists, permissions, mounts, and removal while a workload is queued."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fakes.waiting import until
from tests.integration.api_world import STORES, Api, make_store, serving

from commonage.domain.tenants import Rules, Tenant
from commonage.testing.behaviour import Behaviour

pytestmark = pytest.mark.anyio
RULES = Rules((Tenant("optics"), Tenant("course")))


@pytest.fixture(params=STORES)
async def api(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(tmp_path, make_store(request.param, tmp_path, request), rules=RULES) as running:
        running.identity.groups["ann"] = ("optics",)
        running.engine.behave(Behaviour(lasts_s=None))
        yield running


async def test_users_see_volumes_of_their_tenants(api: Api, ann: httpx2.AsyncClient) -> None:
    listed = (await ann.get("/volumes")).json()
    assert listed["home"] is None
    found = {one["name"]: one for one in listed["items"]}
    assert list(found) == ["datasets", "results"]
    assert found["datasets"] | {"place": "/volumes/datasets", "writable": False, "notes": []} == found["datasets"]
    assert found["results"]["tenants"] == ["commons", "optics"]
    async with api.client("admin:root") as root:
        assert "exam" in [one["name"] for one in (await root.get("/volumes")).json()["items"]]
    offered = (await ann.get("/launch-options")).json()["volumes"]
    assert [one["name"] for one in offered] == ["datasets", "results"]


async def test_requested_volumes_are_mounted(api: Api, ann: httpx2.AsyncClient) -> None:
    ask = {"command": ["x"], "volumes": ["datasets", "results:rw@/out"], "environment": "base"}
    made = (await ann.post("/workloads", json=ask)).json()["workload"]
    assert made["volumes"] == ["datasets:ro", "results:rw@/out"]
    await until(lambda: api.engine.world.runs)
    [run] = api.engine.world.runs.values()
    told = [(one.source, one.target, one.writable) for one in run.request.mounts]
    assert told == [("/srv/datasets", "/volumes/datasets", False), ("/srv/optics/ann", "/out", True)]
    assert (await ann.get(f"/workloads/{made['id']}")).json()["volumes"] == made["volumes"]


@pytest.mark.parametrize(
    ("volumes", "status", "code", "says"),
    [
        (["datsets"], 422, "unknown-volume", "there are: datasets, results"),
        (["datasets@etc"], 422, "invalid-volume", "not an absolute path"),
        (["datasets", "datasets"], 422, "invalid-volume", "twice"),
        (["datasets:rw"], 403, "volume-read-only", "ask for datasets:ro"),
        (["exam"], 422, "unknown-volume", "there is no volume 'exam' for members of optics"),
    ],
)
async def test_refuses_unavailable_volumes(
    api: Api, ann: httpx2.AsyncClient, volumes: list[str], status: int, code: str, says: str
) -> None:
    for path in ("/workloads", "/workloads/dry-run"):
        refused = await ann.post(path, json={"command": ["x"], "volumes": volumes})
        assert (refused.status_code, refused.json()["code"]) == (status, code)
        assert says in refused.json()["detail"]


async def test_volume_removed_while_queued_ends_the_workload(
    api: Api, ann: httpx2.AsyncClient, root: httpx2.AsyncClient
) -> None:
    holder = (await ann.post("/workloads", json={"command": ["x"], "gpus": 1})).json()["workload"]
    await until(lambda: api.engine.world.runs)
    ask: dict[str, Any] = {"command": ["x"], "gpus": 1, "volumes": ["results:rw"]}
    waiting = (await ann.post("/workloads", json=ask)).json()["workload"]["id"]
    read_only = {"source": "/srv/{tenant}/{user}", "mode": "ro"}
    changed = await root.put("/resources/Volume/results", json={"document": read_only})
    assert changed.status_code == 200, changed.text
    await ann.post(f"/workloads/{holder['id']}/stop")

    await until(lambda: api.control.live_state.get(waiting) is None)
    ended = (await ann.get(f"/workloads/{waiting}")).json()
    assert ended["state"] == "failed"
    assert ended["reason"]["code"] == "StartFailed"
    error = ended["reason"]["params"]["error"]
    assert "its volumes have changed since it was submitted: the volume results is read-only" in error
