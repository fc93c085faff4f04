"""Platform resources through the API, on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import pytest
from tests.integration.api_world import STORES, Api, make_store, serving

pytestmark = pytest.mark.anyio
LAB: dict[str, Any] = {
    "kind": "Tenant",
    "name": "vision lab/a",
    "weight": 2.0,
    "nominal": {"memory": "64GiB", "gpus": 4},
}
PATH = "/resources/Tenant/vision%20lab%2Fa"


@pytest.fixture(params=STORES)
async def api(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(tmp_path, make_store(request.param, tmp_path, request), run=False) as running:
        yield running


async def test_resource_is_changed_by_its_version(root: httpx2.AsyncClient) -> None:
    made = await root.put(PATH, json={"document": LAB})
    assert (made.status_code, made.headers["etag"], made.json()["document"]) == (200, '"1"', LAB)
    assert (await root.get("/tenants/vision%20lab%2Fa")).json()["nominal"]["gpu_milli"] == 4000
    stale = await root.put(PATH, json={"document": {"weight": 3}})
    assert (stale.status_code, stale.json()["code"]) == (409, "version-mismatch")
    changed = await root.put(PATH, json={"document": {"weight": 3}}, headers={"If-Match": '"1"'})
    assert changed.json()["document"] == {"kind": "Tenant", "name": "vision lab/a", "weight": 3.0}
    shown = await root.get(PATH)
    assert (shown.headers["etag"], shown.json()["changed_by"]) == ('"2"', "root")
    assert (await root.request("DELETE", PATH, headers={"If-Match": "*"})).status_code == 200
    assert (await root.get(PATH)).json()["code"] == "resource-not-found"


async def test_documents_are_planned_applied_and_exported(root: httpx2.AsyncClient) -> None:
    planned = (await root.post("/plan", json={"documents": [LAB]})).json()
    assert [(one["action"], one["name"]) for one in planned["changes"]] == [("create", "vision lab/a")]
    applied = await root.post("/apply", json={"documents": [LAB], "revision": planned["revision"]})
    assert applied.status_code == 200, applied.text
    assert (await root.get("/export")).json()["documents"] == [LAB]
    again = await root.post("/apply", json={"documents": [LAB], "revision": planned["revision"]})
    assert again.json()["code"] == "version-mismatch"
    (change,) = (await root.post("/plan", json={"documents": [{**LAB, "weight": 1}]})).json()["changes"]
    assert change["fields"] == [{"path": "weight", "before": 2.0, "after": None}]


async def test_errors_name_the_field_of_the_document(root: httpx2.AsyncClient) -> None:
    for bad, field in (
        ({"kind": "Tenant", "name": "a", "nominal": {"gpu": 1}}, "documents.0.nominal.gpu"),
        ({"kind": "Tenent", "name": "a"}, "documents.0.kind"),
    ):
        refused = await root.post("/plan", json={"documents": [bad]})
        assert (refused.status_code, refused.json()["field"]) == (422, field)
    refused = await root.put(PATH, json={"document": {"name": "other"}})
    assert (refused.status_code, refused.json()["field"]) == (422, "document.name")
    refused = await root.put(PATH, json={"document": {}}, headers={"If-Match": "new"})
    assert refused.json()["code"] == "invalid-parameter"


async def test_they_are_for_admins(ann: httpx2.AsyncClient) -> None:
    for path in ("/resources", "/export", PATH):
        assert (await ann.get(path)).status_code == 403
    for path in ("/plan", "/apply"):
        assert (await ann.post(path, json={"documents": []})).status_code == 403


async def test_documents_match_the_published_schema(root: httpx2.AsyncClient) -> None:
    schema = (await root.get("/schema/commonage.yml.json")).json()
    jsonschema.validate(LAB, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**LAB, "wieght": 1}, schema)
