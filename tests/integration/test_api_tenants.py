"""Tenants and reservations through the API, on every store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fakes.waiting import until
from tests.integration.api_world import STORES, Api, make_store, serving

from commonage.domain.tenants import Bounds, Quota, Rules, Tenant
from commonage.domain.workloads import State
from commonage.testing.behaviour import Behaviour

pytestmark = pytest.mark.anyio
RULES = Rules(
    (
        Tenant("optics", "Lab of Optics", 2.0, Quota(Bounds(gpu_milli=250), Bounds(gpu_milli=500))),
        Tenant("course", quota=Quota(Bounds(gpu_milli=1000), per_user=Bounds(vram_mib=4096))),
        Tenant("art", quota=Quota(Bounds(running=1, queued=1, gpu_s_month=36_000), per_user=Bounds(gpu_milli=500))),
    )
)
SOON = {"tenant": "course", "starts_at": "now", "count": 2, "gpus": "4GiB", "cpus": 1, "memory_mib": 512}


@pytest.fixture(params=STORES)
async def api(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(tmp_path, make_store(request.param, tmp_path, request), rules=RULES) as running:
        running.identity.groups["ann"] = ("optics", "staff")
        running.engine.behave(Behaviour(lasts_s=None))
        yield running


def ending(seconds: float, **fields: Any) -> dict[str, Any]:
    return {**SOON, "ends_at": time.time() + seconds, **fields}


async def test_tenants_show_allocated_and_queued(api: Api, ann: httpx2.AsyncClient, root: httpx2.AsyncClient) -> None:
    made = (await ann.post("/workloads", json={"command": ["x"], "gpus": 0.5})).json()["workload"]
    assert made["tenant"] == "optics"  # the only one she is in
    await until(lambda: api.control.queries.live_counts().get(State.RUNNING))
    mine = (await ann.get("/tenants")).json()["items"]
    assert [one["name"] for one in mine] == ["commons", "optics"]
    optics = mine[1]
    assert (optics["title"], optics["weight"], optics["member"], optics["running"]) == ("Lab of Optics", 2.0, True, 1)
    figures = [optics[what]["gpu_milli"] for what in ("nominal", "allocated", "borrowed", "lent")]
    assert figures == [250, 500, 250, 0]
    every = {one["name"]: one for one in (await root.get("/tenants")).json()["items"]}
    assert list(every) == ["commons", "optics", "course", "art"]
    assert (every["course"]["lent"]["gpu_milli"], every["course"]["member"]) == (250, False)
    assert (await root.get("/tenants/course")).json() == every["course"]
    refused = await ann.get("/tenants/course")
    assert (refused.status_code, refused.json()["code"]) == (404, "tenant-not-found")


async def test_quotas_show_what_is_left_before_and_after_a_submission(
    api: Api, bob: httpx2.AsyncClient, ann: httpx2.AsyncClient, root: httpx2.AsyncClient
) -> None:
    api.identity.groups["bob"] = ("art",)

    async def left(**query: str) -> dict[tuple[str, str], int]:
        answer = await bob.get("/quotas", params=query)
        assert answer.status_code == 200, answer.text
        items = answer.json()["items"]
        return {(one["scope"], one["resource"]): one["remains"] for one in items}

    whole = {
        ("tenant", "running"): 1, ("tenant", "queued"): 1, ("tenant", "gpu-hours"): 36_000, ("user", "gpu"): 500,
    }  # fmt: skip
    assert await left(tenant="art") == whole
    tried = (await bob.post("/workloads/dry-run", json={"command": ["x"], "gpus": 0.5})).json()
    assert [one["params"]["resource"] for one in tried["quotas"]] == ["running", "queued", "gpu-hours", "gpu"]
    await bob.post("/workloads", json={"command": ["x"], "gpus": 0.5})
    await until(lambda: api.control.queries.live_counts().get(State.RUNNING))
    waits = (await bob.post("/workloads", json={"command": ["x"]})).json()["workload"]["id"]
    after = await left()
    assert (after["tenant", "running"], after["tenant", "queued"], after["user", "gpu"]) == (0, 0, 0)
    why = (await bob.get(f"/workloads/{waits}/explanation")).json()["reasons"]
    assert [(one["code"], one["params"]["resource"]) for one in why] == [("QuotaLimitReached", "running")]
    refused = await bob.post("/workloads", json={"command": ["x"]})
    assert (refused.status_code, refused.json()["code"]) == (429, "too-many-workloads")
    assert refused.json()["reason"]["code"] == "TooManyQueued"
    shown = (await bob.get("/tenants/art")).json()["quotas"]
    assert {one["code"] for one in shown} == {"QuotaUse"}
    assert (await ann.get("/quotas", params={"user": "bob"})).status_code == 403
    assert (await ann.get("/quotas", params={"tenant": "art"})).status_code == 404
    of_bob = (await root.get("/quotas", params={"tenant": "art", "user": "bob"})).json()["items"]
    assert [one["used"] for one in of_bob if one["scope"] == "user"] == [500]


async def test_reservation_is_created_listed_and_cancelled(ann: httpx2.AsyncClient, root: httpx2.AsyncClient) -> None:
    answer = await root.post("/reservations", json=ending(3600, title="class", owner="bob"))
    assert answer.status_code == 201, answer.text
    (one,) = answer.json()["items"]
    assert (one["tenant"], one["count"], one["title"], one["owner"], one["by"]) == ("course", 2, "class", "bob", "root")
    assert one["request"]["gpus"] == "4096MiB"
    assert (await root.get("/reservations")).json()["items"] == [one]
    assert (await ann.get("/reservations")).json()["items"] == []
    gone = await root.delete(f"/reservations/{one['id']}")
    assert (gone.status_code, gone.json()) == (200, one)
    again = await root.delete(f"/reservations/{one['id']}")
    assert (again.status_code, again.json()["code"]) == (404, "reservation-not-found")
    events = (await root.get("/events")).json()["items"]
    audit = [event["reason"] for event in events if event["kind"] == "audit"]
    assert [one["code"] for one in audit] == ["ReservationMade", "ReservationRemoved"]
    assert audit[0]["params"]["reservation"]["count"] == 2


async def test_weekly_reservation_creates_one_per_week(root: httpx2.AsyncClient) -> None:
    day = datetime.now(UTC).date() + timedelta(days=1)
    last = day + timedelta(days=15)
    weekly = {**SOON, "starts_at": f"{day} 14:00", "ends_at": "16:00", "every": "week", "last_day": str(last)}
    items = (await root.post("/reservations", json=weekly)).json()["items"]
    starts = [datetime.fromtimestamp(one["starts_at"], UTC) for one in items]
    assert [begin.date() for begin in starts] == [day, day + timedelta(days=7), day + timedelta(days=14)]
    assert {begin.hour for begin in starts} == {14}


async def test_refuses_invalid_reservations(ann: httpx2.AsyncClient, root: httpx2.AsyncClient) -> None:
    refused = await ann.post("/reservations", json=ending(3600))
    assert (refused.status_code, refused.json()["code"]) == (403, "permission-missing")
    for ask, code, words in (
        (ending(3600, tenant="physics"), "unknown-tenant", "commons, optics, course, art"),
        (ending(3600, count=7), "reservation-conflict", "room for 6 of 7 times"),
        (ending(3600, gpus="H100:1"), "unschedulable", "No GPU of the model H100"),
        (ending(-3600), "invalid-input", "before it begins"),
        (ending(3600, time_zone="Berlin"), "invalid-input", "Europe/Berlin, UTC or +01:00"),
        (ending(3600, starts_at="soon"), "invalid-input", "'soon' is no time"),
        (ending(3600, every="month"), "invalid-input", "'day' or 'week'"),
        (ending(3600, room=1), "unknown-field", "unknown field 'room'"),
    ):
        refused = await root.post("/reservations", json=ask)
        assert refused.json()["code"] == code, refused.text
        assert words in refused.json()["detail"]


async def test_groups_count_only_from_the_hub(api: Api) -> None:
    async with api.client("secret-of-the-spawner") as hub:
        ask = {"kind": "session", "owner": "bob", "groups": ["course"]}
        assert (await hub.post("/workloads", json=ask)).json()["workload"]["tenant"] == "course"
        other = await hub.post("/workloads", json={**ask, "name": "b", "groups": [], "tenant": "moon"})
        assert other.json()["code"] == "not-a-member"


async def test_launch_options_offer_allowed_tenants_and_priorities(api: Api, ann: httpx2.AsyncClient) -> None:
    mine = (await ann.get("/launch-options")).json()
    assert [one["name"] for one in mine["tenants"]] == ["commons", "optics"]
    assert mine["priorities"] == ["scavenger", "low", "normal"]
    async with api.client("secret-of-the-spawner") as hub:
        his = (await hub.get("/launch-options", params={"user": "bob", "group": ["course", "staff"]})).json()
    assert [one["name"] for one in his["tenants"]] == ["commons", "course"]
    assert his["priorities"] == mine["priorities"]


async def test_request_above_the_quota_is_refused_at_once(ann: httpx2.AsyncClient) -> None:
    for path in ("/workloads", "/workloads/dry-run"):
        refused = await ann.post(path, json={"command": ["x"], "gpus": 1})
        assert refused.json()["code"] == "unschedulable"
        assert refused.json()["reason"]["code"] == "QuotaTooSmall"
        assert refused.json()["reason"]["params"]["tenant"] == "optics"
