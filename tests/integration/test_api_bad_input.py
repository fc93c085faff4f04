"""Errors of clients: each has its code, status and text."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fakes.waiting import until
from tests.integration.api_world import URL, Api, serving

from commonage.api.problems import PROBLEMS
from commonage.testing.behaviour import Behaviour
from commonage.wire.hub import API_PATH

pytestmark = pytest.mark.anyio
JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(tmp_path) as api:
        yield api


def problem_in(response: httpx2.Response, code: str) -> dict[str, Any]:
    """The problem document, which must be whole and of this code."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    found = response.json()
    kind = PROBLEMS[code]
    assert (found["code"], found["status"], found["title"]) == (code, kind.status, kind.title), found
    assert response.status_code == kind.status
    assert found["type"] == f"urn:commonage:problem:{code}"
    assert found["detail"]
    return found


@pytest.mark.parametrize(
    ("ask", "code", "field", "words"),
    [
        ({"environment": "torch"}, "unknown-environment", "environment", "EnvironmentNotOffered"),
        ({"environment": "notebook"}, "unknown-environment", "environment", "EnvironmentNotOffered"),
        ({"gpus": "H900:0"}, "invalid-gpus", "gpus", "requests no GPU of a model"),
        ({"gpus": "H900:1"}, "unschedulable", None, "H900"),
        ({"gpus": "80GiB"}, "unschedulable", None, "24576"),
        ({"gpus": "2"}, "unschedulable", None, "GPU"),
        ({"gpus": "much"}, "unschedulable", None, "much"),
        ({"gpus": "1/0"}, "invalid-gpus", "gpus", "divides by nothing"),
        ({"gpus": -1}, "invalid-gpus", "gpus", "is not a share of a GPU"),
        ({"gpus": "9999999PiB"}, "invalid-gpus", "gpus", "PiB"),
        ({"gpus": True}, "invalid-gpus", "gpus", "gpus"),
        ({"memory_mib": "6GiB"}, "invalid-memory", "memory_mib", "a number of MiB in JSON"),
        ({"memory_mib": 0}, "invalid-memory", "memory_mib", "a number of MiB in JSON"),
        ({"memory_mib": 10**30}, "invalid-memory", "memory_mib", "a number of MiB in JSON"),
        ({"memory_mib": 64 * 1024}, "unschedulable", None, "64 GiB"),
        ({"cpus": 0}, "invalid-cpus", "cpus", "above 0"),
        ({"cpus": "two"}, "invalid-cpus", "cpus", "'two' is not a number of cores"),
        ({"cpus": 64}, "unschedulable", None, "64"),
        ({"time_limit_s": -5}, "invalid-time", "time_limit_s", "a number of seconds in JSON"),
        ({"time_limit_s": "90m"}, "invalid-time", "time_limit_s", "a number of seconds in JSON"),
        ({"time": 90}, "unknown-field", "time", "time"),
        ({"grace_s": -1}, "invalid-time", "grace_s", "a number of seconds in JSON"),
        ({"name": "x" * 300}, "invalid-name", "name", "300 characters; at most 128"),
        ({"name": "bell\x07"}, "invalid-name", "name", "not allowed"),
        ({"command": []}, "invalid-command", "command", "needs a command"),
        ({"command": "python train.py"}, "invalid-command", "command", "list"),
        ({"command": ["x\x00y"]}, "invalid-command", "command.0", "not allowed"),
        ({"command": ["x" * 131_073]}, "invalid-command", "command.0", "131073 characters; at most 131072"),
        ({"command": ["x" * 70_000, "x" * 70_000]}, "too-large", "command", "128 KiB"),
        ({"variables": {"A": "x" * 70_000}, "secrets": {"B": "x" * 70_000}}, "too-large", "variables", "128 KiB"),
        ({"array": 10_000, "secrets": {"A": "x" * 7000}}, "too-large", "secrets", "64 MiB"),
        ({"array": 0}, "invalid-array", "array", "greater than or equal to 1"),
        ({"array": 10_001}, "invalid-array", "array", "10000"),
        ({"kind": "service", "array": 3}, "invalid-array", "array", "only jobs"),
        ({"kind": "batch"}, "invalid-input", "kind", "'session', 'job' or 'service'"),
        ({"depends_on": [{"id": "nothing"}]}, "unknown-dependency", "depends_on", "does not exist"),
        ({"variables": {"1A": "x"}}, "invalid-input", "variables.1A", "not allowed"),
        ({"bundle": "abc"}, "invalid-bundle", "bundle", "not allowed"),
        ({"tenant": "physics"}, "not-a-member", None, "physics"),
        ({"priority": 5}, "not-admin", None, "only admins"),
        ({"priority": "5"}, "not-admin", None, "only admins"),
        ({"priority": "500"}, "invalid-input", "priority", "from -100 to 100"),
        ({"priority": "hihg"}, "unknown-priority", "priority", "scavenger (-50), low (-10)"),
        ({"priority": "urgent"}, "not-admin", None, "'urgent'"),
        ({"priority": 500}, "invalid-input", "priority", "less than or equal to 100"),
        ({"on": {"a b": "c"}}, "invalid-input", "on.a b", "not allowed"),
        ({"gpus": "A100|:1"}, "invalid-gpus", "gpus", "names no model"),
        ({"gpus": "A100|" * 100 + "A100:1"}, "invalid-gpus", "gpus", "506 characters; at most 256"),
        ({"gpus": "|".join(f"A{one}" for one in range(17))}, "invalid-gpus", "gpus", "17 models; at most 16"),
        ({"cpus": "1" * 40}, "invalid-cpus", "cpus", "40 characters; at most 32"),
        ({"nodes": 2, "array": 2}, "invalid-array", "nodes", "either"),
        ({"nodes": 5000}, "invalid-array", "nodes", "1024"),
        ({"nodes": 2, "kind": "service"}, "invalid-array", "array", "only jobs"),
        ({"gpu": "6GiB"}, "unknown-field", "gpu", "unknown field 'gpu'"),
    ],
)  # fmt: skip
async def test_refuses_invalid_submission(
    ann: httpx2.AsyncClient, ask: dict[str, Any], code: str, field: str | None, words: str
) -> None:
    whole = {"command": ["true"], **ask}
    for path in ("/workloads", "/workloads/dry-run"):
        if path.endswith("dry-run") and code == "unknown-dependency":
            continue  # what it waits for is not part of a dry run
        found = problem_in(await ann.post(path, json=whole), code)
        assert found.get("field") == field
        assert words in f"{found['detail']} {found.get('reason')}"


async def test_problem_lists_all_invalid_fields(ann: httpx2.AsyncClient) -> None:
    ask = {"command": ["true"], "name": "x" * 300, "retries": -1, "speed": 9}
    found = problem_in(await ann.post("/workloads", json=ask), "invalid-name")
    assert [(one["field"], one["code"]) for one in found["errors"]] == [
        ("name", "invalid-name"),
        ("retries", "invalid-input"),
        ("speed", "unknown-field"),
    ]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"command": [', "invalid-json"),
        (b"", "invalid-json"),
        (b"command: [true]", "invalid-json"),
        (b'{"command": ["\xff\xfe"]}', "invalid-encoding"),
        ('{"command": ["x"]}'.encode("utf-16"), "invalid-encoding"),
        (b'{"command": ["\\ud800"]}', "invalid-json"),
        (b"[]", "invalid-input"),
        (b"null", "invalid-input"),
        (b"[" * 100_000, "invalid-json"),
        (b'{"cpus": 1e999, "command": ["x"]}', "invalid-cpus"),
        (b'{"cpus": NaN, "command": ["x"]}', "invalid-cpus"),
    ],
)
async def test_refuses_body_that_is_not_json(ann: httpx2.AsyncClient, body: bytes, code: str) -> None:
    problem_in(await ann.post("/workloads", content=body, headers=JSON), code)


async def test_refuses_other_content_types(ann: httpx2.AsyncClient) -> None:
    problem_in(
        await ann.post(
            "/workloads", content=b"command=x", headers={"Content-Type": "application/x-www-form-urlencoded"}
        ),
        "unsupported-media-type",
    )
    problem_in(await ann.post("/bundles", json={}), "unsupported-media-type")


async def test_a_job_file_of_10_mb_is_refused_before_it_is_read(ann: httpx2.AsyncClient) -> None:
    found = problem_in(await ann.post("/workloads", content=b" " * 10 * 1024 * 1024, headers=JSON), "too-large")
    assert "1 MiB" in found["detail"]


async def test_large_body_without_length_is_refused_at_the_limit(api: Api) -> None:
    asked = 0

    async def receive() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        return {"type": "http.request", "body": b" " * 400_000, "more_body": True}

    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": f"{API_PATH}/workloads",
        "raw_path": f"{API_PATH}/workloads".encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"authorization", b"token ann"), (b"content-type", b"application/json")],
    }
    await api.app(scope, receive, send)
    assert sent[0]["status"] == 413
    assert asked == 3


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ("limit=0", "invalid-parameter", "limit"),
        ("limit=501", "invalid-parameter", "limit"),
        ("limit=many", "invalid-parameter", "limit"),
        ("state=sleeping", "invalid-parameter", "state.0"),
        ("kind=batch", "invalid-parameter", "kind"),
        ("cursor=nonsense", "invalid-cursor", "cursor"),
        ("text=%00", "invalid-parameter", "text"),
        ("stat=running", "unknown-field", "stat"),
    ],
)
async def test_refuses_invalid_query(ann: httpx2.AsyncClient, query: str, code: str, field: str | None) -> None:
    assert problem_in(await ann.get(f"/workloads?{query}"), code).get("field") == field


@pytest.mark.parametrize(
    "path",
    [
        "/workloads/nothing",
        "/workloads/0000000000000",
        "/workloads/%00",
        "/workloads/%FF%FE",
        "/workloads/1M7YR8J67AXC1/logs",
        "/workloads/..%2F/events",
    ],
)
async def test_unknown_workload_is_not_found(ann: httpx2.AsyncClient, path: str) -> None:
    response = await ann.get(path)
    problem_in(response, "not-found" if "%2F" in path else "workload-not-found")


async def test_unknown_path_is_not_found(ann: httpx2.AsyncClient) -> None:
    for path in ("/nothing", "/workload", "/workloads/", "/", "/a%0Ab"):
        problem_in(await ann.get(path), "not-found")
    response = await ann.delete("/workloads")
    problem_in(response, "method-not-allowed")
    assert response.headers["allow"] == "GET, POST"
    response = await ann.get("/workloads/dry-run")
    problem_in(response, "method-not-allowed")
    assert response.headers["allow"] == "POST"


async def test_unknown_program_fails_with_a_reason(api: Api, ann: httpx2.AsyncClient) -> None:
    api.engine.default = Behaviour(exit_code=127)
    made = (await ann.post("/workloads", json={"command": ["pyhton"]})).json()["workload"]
    await until(lambda: not api.control.queries.live_counts())
    found = (await ann.get(f"/workloads/{made['id']}")).json()
    assert (found["state"], found["exit_code"]) == ("failed", 127)
    assert found["reason"]["code"] == "CommandNotFound"


async def test_ended_workload_cannot_be_stopped(api: Api, ann: httpx2.AsyncClient) -> None:
    made = (await ann.post("/workloads", json={"command": ["true"]})).json()["workload"]
    await until(lambda: not api.control.queries.live_counts())
    problem_in(await ann.post(f"/workloads/{made['id']}/stop"), "already-ended")


# --- who asks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [None, "", "ann", "Basic YW5uOmFubg==", "Bearer", "Bearer ", "Bearer stranger", "token stranger", "Bearer a b",
     "Bearer " + "x" * 5000, "Bearer \xe9"],
)  # fmt: skip
async def test_refuses_requests_without_token(api: Api, header: str | None) -> None:
    async with api.client(None) as client:
        headers = {} if header is None else {"Authorization": header.encode("latin-1")}
        for method, path in (("GET", "/workloads"), ("POST", "/workloads"), ("GET", "/info"), ("POST", "/bundles")):
            response = await client.request(method, path, headers=headers)
            problem_in(response, "unauthenticated")
            assert response.headers["www-authenticate"] == 'Bearer realm="commonage"'


async def test_cookie_does_not_authenticate(api: Api) -> None:
    async with api.client(None) as client:
        response = await client.get(
            "/workloads", headers={"Cookie": "commonage-session=ann; jupyterhub-session-id=ann"}
        )
        problem_in(response, "unauthenticated")


@pytest.mark.parametrize("word", ["token", "Token", "bearer", "Bearer", "BEARER"])
async def test_accepts_bearer_and_token_schemes(api: Api, word: str) -> None:
    async with api.client(None) as client:
        assert (await client.get("/info", headers={"Authorization": f"{word} ann"})).json()["user"] == "ann"


async def test_refuses_token_without_scope(api: Api) -> None:
    async with api.client("read:ann") as reader, api.client("none:ann") as nothing:
        for path in ("/workloads", "/workloads/dry-run"):
            found = problem_in(await reader.post(path, json={"command": ["true"]}), "scope-missing")
            assert "custom:commonage:submit" in found["detail"]
        problem_in(
            await reader.post("/bundles", content=b"x", headers={"Content-Type": "application/gzip"}), "scope-missing"
        )
        for path in ("/workloads", "/nodes", "/events", "/usage", "/environments", "/launch-options"):
            problem_in(await nothing.get(path), "scope-missing")
        assert (await nothing.get("/info")).json()["scopes"] == []


@pytest.mark.parametrize("name", ["hub", "_operator"])
async def test_refuses_reserved_user_names(api: Api, name: str) -> None:
    async with api.client(f"admin:{name}") as pretender:
        problem_in(await pretender.get("/workloads"), "reserved-name")


# --- what is our own fault ----------------------------------------------------------------------------------------


async def test_unavailable_while_the_hub_is_down(api: Api, ann: httpx2.AsyncClient) -> None:
    api.identity.trouble = True
    response = await ann.get("/workloads")
    assert problem_in(response, "unavailable")["retryable"] is True
    assert response.headers["retry-after"] == "1"


async def test_internal_error_is_logged_and_not_shown(
    api: Api, ann: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret of the house")

    monkeypatch.setattr(type(api.control.queries), "workloads", broken)
    with caplog.at_level(logging.ERROR):
        found = problem_in(await ann.get("/workloads"), "internal")
    assert "secret" not in json.dumps(found)
    fault = found["detail"].rpartition(" ")[2]
    assert fault in caplog.text
    assert "the secret of the house" in caplog.text


async def test_paths_outside_the_api_are_not_handled_by_it(api: Api) -> None:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=api.app), base_url=URL) as client:
        assert (await client.get("/elsewhere")).status_code == 404
