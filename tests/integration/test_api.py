"""The API on every store, with the fake engine: operations of clients, and visibility."""

from __future__ import annotations

import asyncio
import io
import tarfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx2
import pytest
from tests.fakes.waiting import until
from tests.integration.api_world import OPERATOR_TOKEN, SPAWNER, STORES, Api, make_store, serving

from commonage.domain.principals import Scope
from commonage.testing.behaviour import Behaviour

pytestmark = pytest.mark.anyio


@pytest.fixture(params=STORES)
async def api(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    async with serving(tmp_path, make_store(request.param, tmp_path, request)) as api:
        yield api


async def submitted(client: httpx2.AsyncClient, **ask: object) -> dict:
    response = await client.post("/workloads", json={"command": ["true"], **ask})
    assert response.status_code == 201, response.text
    return response.json()["workload"]


async def reaches(client: httpx2.AsyncClient, workload_id: str, *states: str) -> dict:
    async with asyncio.timeout(30):
        while True:
            found = (await client.get(f"/workloads/{workload_id}")).json()
            if found["state"] in states:
                return found
            await asyncio.sleep(0.02)


async def test_submitted_job_runs_and_shows_its_cost(api: Api, ann: httpx2.AsyncClient) -> None:
    api.engine.default = Behaviour(lasts_s=0.2, prints=("hello", "wörld"))
    made = await submitted(
        ann, name="greet", gpus="6GiB", memory_mib=2048, cpus="1500m", time_limit_s=600, variables={"A": "b"}
    )
    assert made["request"] == {
        "cpus_milli": 1500,
        "memory_mib": 2048,
        "gpus": "6144MiB",
        "text": "1.5 CPUs, 2 GiB of memory, 6 GiB of VRAM",
        "on": {},
        "one_numa": False,
    }
    found = await reaches(ann, made["id"], "succeeded")
    assert (found["owner"], found["exit_code"], found["node"], found["time_limit_s"]) == ("ann", 0, "gpu-1", 600)
    assert found["shares"][0]["memory_mib"] == 6144
    assert found["shares"][0]["simulated"] is True
    assert found["variables"] == {"A": "b"}
    assert (await ann.get(f"/workloads/{made['id']}/logs")).text == "hello\nwörld\n"
    tries = (await ann.get(f"/workloads/{made['id']}/attempts")).json()["items"]
    assert [(one["number"], one["state"]) for one in tries] == [(1, "succeeded")]
    used = (await ann.get(f"/workloads/{made['id']}/usage")).json()
    assert used["currency"] == "EUR"
    assert used["items"][0]["gpu_gib_h"] > 0
    assert used["items"][0]["cost"] > 0
    mine = (await ann.get("/usage")).json()["items"]
    assert [row["subject"] for row in mine] == ["ann"]


async def test_secrets_are_never_shown(api: Api, ann: httpx2.AsyncClient) -> None:
    made = await submitted(ann, secrets={"TOKEN": "hush-hush"})
    async with api.client("admin:root") as root:
        for client in (ann, root):
            for part in ("", "/events", "/attempts", "/explanation"):
                assert "hush-hush" not in (await client.get(f"/workloads/{made['id']}{part}")).text


async def test_same_key_returns_same_workload(ann: httpx2.AsyncClient) -> None:
    ask = {"command": ["true"], "key": "k1"}
    first, second = await ann.post("/workloads", json=ask), await ann.post("/workloads", json=ask)
    assert (first.status_code, second.status_code) == (201, 200)
    assert (first.json()["created"], second.json()["created"]) == (True, False)
    assert first.json()["ids"] == second.json()["ids"]
    other = await ann.post("/workloads", json={"command": ["false"], "key": "k1"})
    assert (other.status_code, other.json()["code"]) == (409, "key-reused")


async def test_array_returns_all_member_ids_for_a_repeated_key(ann: httpx2.AsyncClient) -> None:
    ask = {"command": ["true"], "array": 7, "key": "many"}
    first = (await ann.post("/workloads", json=ask)).json()
    assert (first["count"], len(set(first["ids"]))) == (7, 7)
    again = (await ann.post("/workloads", json=ask)).json()
    assert (again["created"], again["ids"]) == (False, first["ids"])
    listed = (await ann.get("/workloads", params={"array": first["workload"]["array_id"]})).json()["items"]
    assert sorted(one["array_index"] for one in listed) == list(range(7))


async def test_dry_run_creates_nothing_and_gives_same_errors(api: Api, ann: httpx2.AsyncClient) -> None:
    async with api.client("admin:root") as root:
        await root.post("/nodes/local/gpu-1/drain")
    found = (await ann.post("/workloads/dry-run", json={"command": ["x"], "gpus": "6GiB"})).json()
    assert (found["workload_id"], found["state"], found["startable_now"]) == (None, None, False)
    assert found["summary"]
    assert (await ann.get("/workloads")).json()["items"] == []


async def test_explanation_hides_names_of_other_users(api: Api, ann: httpx2.AsyncClient) -> None:
    api.engine.default = Behaviour(lasts_s=None)
    first = await submitted(ann, name="secret-project", gpus="16GiB")
    await reaches(ann, first["id"], "running")
    async with api.client("bob") as bob, api.client("admin:root") as root:
        waiting = await submitted(bob, gpus="12GiB")
        found = (await bob.get(f"/workloads/{waiting['id']}/explanation")).json()
        assert (found["state"], found["position"], found["startable_now"]) == ("queued", 1, False)
        (shortfall,) = [one["params"] for one in found["reasons"] if one["code"] == "InsufficientGpuMemory"]
        assert (shortfall["requested_mib"], shortfall["free_mib"]) == (12 * 1024, 8 * 1024)
        assert found["fits_now_gpus"]
        (holder,) = found["holders"]
        assert (holder["owner"], holder["holds"]) == ("ann", "16 GiB of GPU memory")
        assert (holder["workload_id"], holder["name"]) == (None, "")
        (seen,) = (await root.get(f"/workloads/{waiting['id']}/explanation")).json()["holders"]
        assert (seen["workload_id"], seen["name"]) == (first["id"], "secret-project")
        stopped = await ann.post(f"/workloads/{first['id']}/stop", json={"reason": "enough"})
        assert (stopped.status_code, stopped.json()["stopping"]) == (200, True)
        await reaches(bob, waiting["id"], "running")
        ended = (await reaches(ann, first["id"], "stopped"))["reason"]
        assert (ended["code"], ended["params"]) == ("StoppedBy", {"by": "ann", "comment": "enough"})
        assert ended["message"] == "Stopped by ann: enough."


async def test_lists_are_filtered_counted_and_paged(ann: httpx2.AsyncClient) -> None:
    ids = [(await submitted(ann, name=f"run-{number}"))["id"] for number in range(5)]
    await reaches(ann, ids[-1], "succeeded")
    for one in ids:
        await reaches(ann, one, "succeeded")
    page = (await ann.get("/workloads", params={"limit": 2, "counts": "true"})).json()
    assert [one["id"] for one in page["items"]] == [ids[4], ids[3]]
    assert page["counts"] == {"succeeded": 5}
    rest: list[str] = []
    while page["next_cursor"]:
        page = (await ann.get("/workloads", params={"limit": 2, "cursor": page["next_cursor"]})).json()
        rest += [one["id"] for one in page["items"]]
    assert rest == [ids[2], ids[1], ids[0]]

    async def names(**query: object) -> list[str]:
        return [one["name"] for one in (await ann.get("/workloads", params=query)).json()["items"]]

    assert await names(text="run-3") == ["run-3"]
    assert await names(state=["failed", "lost"]) == []
    assert len(await names(state=["succeeded", "lost"])) == 5
    assert await names(kind="session") == []
    assert await names(environment="notebook") == []
    assert len(await names(node="cpu-1")) + len(await names(node="gpu-1")) == 5


async def test_workloads_of_other_users_are_not_found(api: Api, ann: httpx2.AsyncClient) -> None:
    made = await submitted(ann)
    async with api.client("bob") as bob:
        for part in ("", "/logs", "/events", "/metrics", "/explanation", "/attempts", "/usage"):
            response = await bob.get(f"/workloads/{made['id']}{part}")
            assert (response.status_code, response.json()["code"]) == (404, "workload-not-found"), part
        response = await bob.post(f"/workloads/{made['id']}/stop")
        assert (response.status_code, response.json()["code"]) == (404, "workload-not-found")
        assert (await bob.get("/workloads", params={"owner": "ann"})).json()["items"] == []
        assert (await bob.get("/events")).json()["items"] == []
    async with api.client("admin:root") as root:
        assert (await root.get(f"/workloads/{made['id']}")).status_code == 200
        assert len((await root.get("/workloads", params={"owner": "ann"})).json()["items"]) == 1


async def test_session_starts_through_the_hub_and_only_the_hub_sees_its_url(api: Api, ann: httpx2.AsyncClient) -> None:
    api.engine.default = Behaviour(lasts_s=None)
    made = await submitted(ann, kind="session", command=[], name="lab", key="s1")
    assert (made["kind"], made["owner"], made["key"]) == ("session", "ann", "s1")
    found = await reaches(ann, made["id"], "running")
    assert (found["url"], found["internal_url"]) == ("/user/ann/lab/", None)
    async with api.client(SPAWNER) as hub, api.client("admin:root") as root:
        assert (await hub.get(f"/workloads/{made['id']}")).json()["internal_url"].startswith("http://127.0.0.1:")
        assert (await root.get(f"/workloads/{made['id']}")).json()["internal_url"] is None


async def test_only_the_hub_and_admins_act_for_others(api: Api, ann: httpx2.AsyncClient) -> None:
    response = await ann.post("/workloads", json={"command": ["true"], "owner": "bob"})
    assert (response.status_code, response.json()["code"]) == (403, "not-admin")
    for token in ("admin:root", SPAWNER):
        async with api.client(token) as client:
            assert (await submitted(client, owner="bob"))["owner"] == "bob"
    options = await ann.get("/launch-options", params={"user": "bob"})
    assert (options.status_code, options.json()["code"]) == (403, "not-admin")


async def test_bundle_is_uploaded_before_submit(ann: httpx2.AsyncClient) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("train.py"))
    headers = {"Content-Type": "application/gzip"}
    sent = await ann.post("/bundles", content=packed.getvalue(), headers=headers)
    assert (sent.status_code, sent.json()["size_bytes"]) == (201, len(packed.getvalue()))
    assert (await submitted(ann, bundle=sent.json()["digest"]))["bundle"] == sent.json()["digest"]
    missing = await ann.post("/workloads", json={"command": ["x"], "bundle": "0" * 64})
    assert (missing.status_code, missing.json()["code"]) == (404, "bundle-not-found")
    junk = await ann.post("/bundles", content=b"no archive", headers=headers)
    assert (junk.status_code, junk.json()["code"]) == (422, "invalid-bundle")


async def test_token_cannot_create_one_with_more_scopes(api: Api, ann: httpx2.AsyncClient) -> None:
    made = await ann.post("/tokens", json={"note": "nightly", "expires_s": 60})
    assert made.status_code == 201
    assert api.identity.minted == [("ann", (Scope.READ, Scope.SUBMIT), "nightly", 60)]
    assert made.json()["expires_at"] > time.time()
    for token, ask in (
        ("ann", {"scopes": [Scope.ADMIN.value]}),
        ("read:ann", {"scopes": [Scope.SUBMIT.value]}),
        ("none:ann", {}),
        ("ann", {"user": "bob"}),
    ):
        async with api.client(token) as client:
            assert (await client.post("/tokens", json=ask)).status_code == 403, (token, ask)
    async with api.client(SPAWNER) as hub:
        assert (await hub.post("/tokens", json={"user": "bob"})).status_code == 201
        assert (await hub.post("/tokens")).status_code == 422


@pytest.mark.parametrize(
    ("left_s", "asked_s", "status", "lasts_s"),
    [
        (None, None, 201, [30 * 86400]),
        (None, 30 * 86400 + 1, 422, []),
        (600, None, 201, range(300, 599)),
        (600, 10, 201, [10]),
        (600, 600, 422, []),
        (600, 30 * 86400, 422, []),
        (1, None, 403, []),
    ],
)
async def test_token_does_not_outlive_its_parent(
    api: Api, ann: httpx2.AsyncClient, left_s: float | None, asked_s: int | None, status: int, lasts_s: Sequence[int]
) -> None:
    if left_s is not None:
        api.identity.expiries["ann"] = time.time() + left_s
    answer = await ann.post("/tokens", json={} if asked_s is None else {"expires_s": asked_s})
    assert answer.status_code == status, answer.text
    assert [one[3] for one in api.identity.minted] in ([], *([lasts] for lasts in lasts_s))
    assert bool(api.identity.minted) is (status == 201)


async def test_a_token_that_the_hub_made_too_late_is_revoked(api: Api, ann: httpx2.AsyncClient) -> None:
    api.identity.expiries["ann"], api.identity.hub_delay_s = time.time() + 20, 30
    answer = await ann.post("/tokens")
    assert (answer.status_code, answer.json()["retryable"]) == (503, True)
    assert api.identity.revoked == [("ann", "a1")]


async def test_admin_scope_alone_creates_no_token(api: Api) -> None:
    async with api.client("only-admin:root") as client:
        refused = await client.post("/tokens")
    assert (refused.status_code, refused.json()["code"]) == (403, "scope-missing")


async def test_operator_creates_tokens_for_users_and_has_no_workloads(api: Api) -> None:
    async with api.client(OPERATOR_TOKEN) as operator:
        info = (await operator.get("/info")).json()
        assert (info["user"], info["admin"]) == ("_operator", True)
        assert (await operator.post("/tokens")).status_code == 422
        assert (await operator.post("/tokens", json={"user": "bob"})).status_code == 201
        refused = await operator.post("/workloads", json={"command": ["x"]})
        assert (refused.status_code, refused.json()["field"]) == (422, "owner")
        made = await operator.post("/workloads", json={"command": ["x"], "owner": "bob"})
        assert made.json()["workload"]["owner"] == "bob"


async def test_nodes_are_shown_measured_and_drained(api: Api, ann: httpx2.AsyncClient) -> None:
    (cpu, gpu) = (await ann.get("/nodes")).json()["items"]
    assert (cpu["name"], gpu["name"], gpu["devices"][0]["memory_mib"]) == ("cpu-1", "gpu-1", 24 * 1024)
    await until(lambda: api.control.sampling.iterations.health().age_s is not None)
    series = (await ann.get("/nodes/local/gpu-1/metrics")).json()["series"]
    assert {"allocated_cpu_cores", "allocated_memory_mib"} <= {one["metric"] for one in series}
    assert (await ann.post("/nodes/local/gpu-1/drain")).json()["code"] == "permission-missing"
    async with api.client("admin:root") as root:
        assert (await root.post("/nodes/local/gpu-1/drain")).json()["state"] == "draining"
        assert (await root.post("/nodes/local/gpu-1/resume")).json()["state"] == "ready"
        assert (await root.post("/nodes/local/gpu-1/resume?gpu=0")).status_code == 200
        none = await root.post("/nodes/local/gpu-1/resume?gpu=9")
        assert (none.status_code, none.json()["code"]) == (404, "device-not-found")
        gone = await root.post("/nodes/there/gpu-1/drain")
        assert (gone.status_code, gone.json()["code"]) == (404, "node-not-found")


async def test_drain_announces_requeues_and_empty_node_can_be_removed(api: Api, ann: httpx2.AsyncClient) -> None:
    async with api.client("admin:root") as root:
        for query, code in (
            ("by=tomorrow", "invalid-input"), ("by=0s", "invalid-time"), ("by=2h&time_zone=Mars", "invalid-input"),
            ("by=2020-01-01", "invalid-time"), ("requeue=perhaps", "invalid-parameter"), ("bye=2h", "unknown-field"),
        ):  # fmt: skip
            refused = await root.post(f"/nodes/local/gpu-1/drain?{query}")
            assert (refused.status_code, refused.json()["code"]) == (422, code), query
        machines = (await root.get("/nodes")).json()["items"]
        assert {one["state"] for one in machines} == {"ready"}, "what is refused changes nothing"
        in_use = await root.delete("/nodes/local/gpu-1")
        assert (in_use.status_code, in_use.json()["code"]) == (409, "node-in-use")
        drained = (await root.post("/nodes/local/gpu-1/drain?requeue=true&by=2h")).json()
        assert (drained["state"], drained["leave_by"]) == (
            "draining",
            pytest.approx(api.control.clock.now() + 7200, abs=5),
        )
        assert (await ann.delete("/nodes/local/gpu-1")).json()["code"] == "permission-missing"
        assert (await root.delete("/nodes/local/gpu-1?force=maybe")).status_code == 422
        (said,) = (await root.delete("/nodes/local/gpu-1")).json()["done"]
        assert said == "gpu-1 is removed; it is back if it reports again"
        assert [one["name"] for one in (await root.get("/nodes")).json()["items"]] == ["cpu-1"]
        assert (await root.delete("/nodes/local/gpu-1")).json()["code"] == "node-not-found"


async def test_requeue_setting_is_stored_and_shown(ann: httpx2.AsyncClient) -> None:
    for asked, kind, shown in ((None, "job", True), (False, "job", False), (None, "service", True)):
        ask = {"kind": kind, "command": ["true"], **({} if asked is None else {"requeue": asked})}
        made = (await ann.post("/workloads", json=ask)).json()["workload"]
        assert (made["requeue"], made["losses"]) == (shown, 0)


async def test_info_and_launch_options(api: Api, ann: httpx2.AsyncClient) -> None:
    info = (await ann.get("/info")).json()
    assert (info["user"], info["admin"], info["simulated_gpus"], info["engines"]) == ("ann", False, True, ["fake"])
    assert [one["name"] for one in (await ann.get("/environments")).json()["items"]] == ["base", "notebook"]
    options = (await ann.get("/launch-options")).json()
    assert options["max_vram_mib"] == 24 * 1024
    assert all(choice["free_now"] for choice in options["gpu_choices"])
    async with api.client(None) as nobody:
        health = await nobody.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "ok")


async def test_a_session_reports_its_activity_and_is_kept(api: Api, ann: httpx2.AsyncClient) -> None:
    api.engine.default = Behaviour(lasts_s=None)
    made = await submitted(ann, kind="session", command=[], name="lab")
    path = f"/workloads/{made['id']}"
    assert (await reaches(ann, made["id"], "running"))["activity"] == "unknown"
    said = {"attempt": 1, "idle_s": 90.0, "busy": False, "programs": []}
    answer = await ann.post(f"{path}/activity", json=said)
    assert (answer.status_code, answer.json()) == (200, {"notices": [], "next_s": 60.0})
    found = (await ann.get(path)).json()
    assert found["activity"] == "idle"
    assert time.time() - found["active_at"] >= 90
    for wrong in (
        {**said, "idle_s": -1},
        {**said, "idle_s": 1e12},
        {**said, "attempt": 0},
        {**said, "programs": ["x" * 65]},
    ):
        assert (await ann.post(f"{path}/activity", json=wrong)).status_code == 422
    assert (await ann.post(f"{path}/activity", json={**said, "attempt": 7})).json()["code"] == "not-running"
    async with api.client("bob") as bob:
        for what in ("activity", "extend", "release-gpu"):
            answer = await bob.post(f"{path}/{what}", json=said if what == "activity" else None)
            assert (answer.status_code, answer.json()["code"]) == (404, "workload-not-found")
    kept = (await ann.post(f"{path}/extend", json={"for_s": 600})).json()
    assert kept["kept_until"] == pytest.approx(time.time() + 600, abs=30)
    assert (await ann.post(f"{path}/extend", json={"for_s": 0})).status_code == 422
    refused = await ann.post(f"{path}/release-gpu")
    assert (refused.status_code, refused.json()["code"], refused.json()["detail"]) == (409, "no-gpu", "It has no GPU.")
