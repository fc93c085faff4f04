"""Environments that tenants build, through the API: built, shown, replaced, removed, and kept from others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fakes.waiting import until
from tests.integration.api_world import Api, make_store, serving

from commonage.control.catalogue.builds import COMMAND
from commonage.domain.builds import BuildResult, result_lines
from commonage.domain.permissions import Role, RoleBinding, SubjectKind
from commonage.domain.tenants import Rules, Tenant
from commonage.testing.behaviour import Behaviour

pytestmark = pytest.mark.anyio
RULES = Rules((Tenant("lab", members=(RoleBinding(SubjectKind.USER, "ann", Role.MANAGER),)), Tenant("optics")))
ASK = {"name": "lab/nlp", "source": "requirements", "text": "numpy\n", "title": "Language"}
PATH = "/environments/lab/nlp"


@pytest.fixture
async def api(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(tmp_path, make_store("sqlite", tmp_path, request), rules=RULES) as running:
        running.identity.groups = {"ann": ("lab",), "bob": ("optics",), "root": ()}
        lines = tuple(result_lines(BuildResult(("ipykernel==7.0", "numpy==2.1"))))
        running.engine.behave(Behaviour(prints=lines), command=COMMAND)
        yield running


@pytest.fixture
async def manager(api: Api) -> AsyncIterator[httpx2.AsyncClient]:
    async with api.client("manage:ann") as client:
        yield client


@pytest.fixture
async def stranger(api: Api) -> AsyncIterator[httpx2.AsyncClient]:
    async with api.client("manage:bob") as client:
        yield client


async def declared(root: httpx2.AsyncClient) -> None:
    """The builder as docs/operate/images.md has it."""
    builder = {"image": "builder:1", "kinds": ["job"]}
    answer = await root.put("/resources/Environment/builder", json={"document": builder})
    assert answer.status_code == 200, answer.text


async def built(api: Api, manager: httpx2.AsyncClient) -> dict[str, Any]:
    answer = await manager.post("/environments", json=ASK)
    assert answer.status_code == 201, answer.text
    job: dict[str, Any] = answer.json()
    await until(lambda: getattr(api.control.catalogue.get("lab/nlp"), "built_by", "") == job["id"])
    return job


async def test_an_environment_is_built_shown_replaced_and_removed(
    api: Api, root: httpx2.AsyncClient, manager: httpx2.AsyncClient, stranger: httpx2.AsyncClient
) -> None:
    await declared(root)
    job = await built(api, manager)
    assert (job["kind"], job["tenant"], job["owner"], job["variables"]) == ("job", "lab", "ann", {})
    again = await built(api, manager)
    shown = (await manager.get(PATH)).json()
    environment = shown["environment"]
    assert (environment["name"], environment["title"], environment["tenant"]) == ("lab/nlp", "Language", "lab")
    assert (environment["built_by"], shown["may_change"]) == (again["id"], True)
    started = await manager.post("/workloads", json={"command": ["true"], "environment": "lab/nlp"})
    assert started.status_code == 201, started.text
    for answer in (await stranger.get(PATH), await stranger.delete(PATH)):
        assert (answer.status_code, answer.json()["code"]) == (404, "environment-not-found"), answer.text
    removed = await manager.delete(PATH)
    assert (removed.status_code, removed.json()["name"]) == (200, "lab/nlp")
    assert (await manager.get(PATH)).json()["code"] == "environment-not-found"


async def test_only_managers_build_and_only_in_their_tenant(
    api: Api, root: httpx2.AsyncClient, manager: httpx2.AsyncClient, stranger: httpx2.AsyncClient
) -> None:
    without = await manager.post("/environments", json=ASK)
    assert (without.status_code, without.json()["code"]) == (409, "no-builder")
    await declared(root)
    refusals = [
        await stranger.post("/environments", json=ASK),
        await manager.post("/environments", json={**ASK, "name": "optics/nlp"}),
    ]
    assert [(one.status_code, one.json()["field"]) for one in refusals] == [(422, "name")] * 2
    mere = await stranger.post("/environments", json={**ASK, "name": "optics/nlp"})
    assert (mere.status_code, mere.json()["code"]) == (403, "permission-missing"), mere.text
    fixed = await manager.delete("/environments/base")
    assert (fixed.status_code, fixed.json()["code"]) == (404, "environment-not-found")


async def test_nobody_submits_to_a_declared_builder(
    api: Api, root: httpx2.AsyncClient, manager: httpx2.AsyncClient
) -> None:
    await declared(root)
    for client in (manager, root):
        ask = {"command": ["true"], "environment": "builder"}
        for path in ("/workloads", "/workloads/dry-run"):
            refused = await client.post(path, json=ask)
            assert (refused.status_code, refused.json()["code"]) == (422, "unknown-environment"), refused.text
        names = [one["name"] for one in (await client.get("/environments")).json()["items"]]
        assert "builder" not in names
    await built(api, manager)
