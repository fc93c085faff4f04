"""Files of homes and volumes through the API: what each user may see, upload and change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.integration.api_world import Api, serving

from commonage.domain.permissions import Role, RoleBinding, SubjectKind
from commonage.domain.tenants import Bounds, Quota, Rules, Tenant
from commonage.domain.volumes import Extent, Volume, VolumeKind, Writers

pytestmark = pytest.mark.anyio
KEY = "ab" * 16
MANAGER = RoleBinding(SubjectKind.USER, "bob", Role.MANAGER)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    volumes = (
        Volume("sets", "Data sets", source=f"{tmp_path}/sets", writable=True, writers=Writers.MANAGERS),
        Volume("own", source=f"{tmp_path}/own/{{tenant}}/{{user}}", writable=True),
        Volume("old", source=f"{tmp_path}/old"),
        Volume("local", kind=VolumeKind.DOCKER, writable=True, per=Extent.USER),
        Volume("far", source="/srv/far", writable=True, sites=("north",)),
        Volume("exam", source=f"{tmp_path}/exam", tenants=("course",)),
    )
    for name in ("sets", "own", "old"):
        (tmp_path / name).mkdir()
    (tmp_path / "sets" / "a.csv").write_text("0123456789")
    rules = Rules((Tenant("optics", members=(MANAGER,)), Tenant("course")))
    async with serving(tmp_path, run=False, rules=rules, volumes=volumes) as running:
        running.identity.groups["ann"] = ("optics",)
        running.identity.groups["bob"] = ("optics",)
        yield running


async def upload(
    client: httpx2.AsyncClient, content: bytes, *, length: int | None = None, offset: int = 0, **query: Any
) -> httpx2.Response:
    headers = {"Upload-Offset": str(offset), "Upload-Length": str(len(content) if length is None else length)}
    return await client.patch("/files/content", params={"key": KEY, **query}, content=content, headers=headers)


async def test_places_have_roles_and_reasons(api: Api, ann: httpx2.AsyncClient, bob: httpx2.AsyncClient) -> None:
    found = [
        (one["volume"], one["tenant"], one["writable"]) for one in (await ann.get("/files/places")).json()["items"]
    ]
    assert found == [
        ("", "", True), ("sets", "commons", False), ("own", "commons", True), ("own", "optics", True),
        ("old", "commons", False), ("local", "commons", True), ("far", "commons", True),
    ]  # fmt: skip
    bobs = {(one["volume"], one["tenant"]): one for one in (await bob.get("/files/places")).json()["items"]}
    assert bobs["sets", "optics"]["writable"] is True
    for volume, gap in (("local", "docker"), ("far", "elsewhere")):
        refused = await ann.get("/files", params={"volume": volume})
        assert (refused.status_code, refused.json()["code"]) == (409, "files-not-here")
        assert refused.json()["reason"]["params"]["gap"] == gap
    for path in ("/files/places", "/files"):
        async with api.client("read:ann") as reader:
            assert (await reader.get(path)).status_code == 403


async def test_upload_in_parts_then_download_in_ranges(api: Api, ann: httpx2.AsyncClient, tmp_path: Path) -> None:
    assert (await ann.post("/files/folders", json={"path": "data"})).status_code == 201
    first = await upload(ann, b"01234", length=10, path="data/ä b.bin")
    assert first.json() == {"offset": 5, "complete": False}
    state = await ann.get("/files/uploads", params={"path": "data/ä b.bin", "key": KEY})
    assert state.json()["offset"] == 5
    assert (await upload(ann, b"x", length=10, offset=4, path="data/ä b.bin")).json()["code"] == "upload-offset"
    assert (await upload(ann, b"56789", length=10, offset=5, path="data/ä b.bin")).json() == {
        "offset": 10, "complete": True,
    }  # fmt: skip
    assert (tmp_path / "workspaces" / "ann" / "data" / "ä b.bin").read_bytes() == b"0123456789"
    whole = await ann.get("/files/content", params={"path": "data/ä b.bin"})
    assert (whole.status_code, whole.content) == (200, b"0123456789")
    assert whole.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%A4%20b.bin"
    assert "sandbox" in whole.headers["content-security-policy"]
    ranges = {"bytes=4-": b"456789", "bytes=2-3": b"23", "bytes=-3": b"789"}
    for asked, content in ranges.items():
        part = await ann.get("/files/content", params={"path": "data/ä b.bin"}, headers={"Range": asked})
        assert (part.status_code, part.content) == (206, content)
    changed = {"Range": "bytes=4-", "If-Range": '"another"'}
    again = await ann.get("/files/content", params={"path": "data/ä b.bin"}, headers=changed)
    assert (again.status_code, again.content) == (200, b"0123456789")
    beyond = await ann.get("/files/content", params={"path": "data/ä b.bin"}, headers={"Range": "bytes=10-"})
    assert (beyond.status_code, beyond.json()["code"]) == (416, "range-invalid")
    listed = (await ann.get("/files", params={"path": "/data/"})).json()
    assert [(one["name"], one["size_bytes"]) for one in listed["items"]] == [("ä b.bin", 10)]


async def test_large_upload_is_not_bound_by_limit_of_bodies(api: Api, ann: httpx2.AsyncClient, tmp_path: Path) -> None:
    content = bytes(range(256)) * 12_000
    assert (await upload(ann, content, path="big.bin")).json()["complete"] is True
    assert (tmp_path / "workspaces" / "ann" / "big.bin").read_bytes() == content
    assert (await ann.get("/files/content", params={"path": "big.bin"})).content == content


async def test_members_read_and_managers_write(api: Api, ann: httpx2.AsyncClient, bob: httpx2.AsyncClient) -> None:
    query: dict[str, Any] = {"volume": "sets", "path": "a.csv"}
    assert (await ann.get("/files/content", params=query)).content == b"0123456789"
    for refused in (
        await upload(ann, b"new", **query, replace="true"),
        await ann.delete("/files", params=query),
        await ann.post("/files/move", json={**query, "to": "b.csv"}),
        await ann.post("/files/folders", json={"volume": "sets", "path": "x"}),
        await upload(bob, b"new", volume="old", path="x"),
    ):
        assert (refused.status_code, refused.json()["code"]) == (403, "volume-read-only")
    assert (await upload(bob, b"new", **query)).json()["code"] == "file-exists"
    assert (await upload(bob, b"new", **query, replace="true")).json()["complete"] is True
    assert (await bob.post("/files/move", json={**query, "to": "b.csv"})).json() == {"path": "b.csv"}
    assert (await bob.delete("/files", params={"volume": "sets", "path": "b.csv"})).status_code == 200
    assert (await ann.get("/files", params={"volume": "sets"})).json()["items"] == []


async def test_workloads_of_members_cannot_write_either(
    api: Api, ann: httpx2.AsyncClient, bob: httpx2.AsyncClient
) -> None:
    ask = {"command": ["x"], "volumes": ["sets:rw"], "environment": "base", "tenant": "optics"}
    refused = await ann.post("/workloads/dry-run", json=ask)
    assert (refused.status_code, refused.json()["code"]) == (403, "volume-read-only")
    assert (await ann.post("/workloads/dry-run", json={**ask, "volumes": ["sets"]})).status_code == 200
    assert (await bob.post("/workloads/dry-run", json=ask)).status_code == 200
    # Not in a tenant in which bob is a member only.
    assert (await bob.post("/workloads/dry-run", json={**ask, "tenant": "commons"})).status_code == 403


async def test_each_tenant_and_user_has_own_files(api: Api, ann: httpx2.AsyncClient, bob: httpx2.AsyncClient) -> None:
    assert (await upload(ann, b"x", volume="own", path="a")).json()["code"] == "which-tenant"
    assert (await upload(ann, b"x", volume="own", tenant="optics", path="a")).json()["complete"] is True
    names = [
        [
            one["name"]
            for one in (await client.get("/files", params={"volume": "own", "tenant": tenant})).json()["items"]
        ]
        for client, tenant in ((ann, "optics"), (ann, "commons"), (bob, "optics"))
    ]
    assert names == [["a"], [], []]
    unseen = await ann.get("/files", params={"volume": "exam"})
    assert (unseen.status_code, unseen.json()["code"]) == (404, "volume-not-found")


@pytest.mark.parametrize("path", ["../ann", "a/../../x", "a\nb", "a\0b", "x" * 256, "/".join(["d"] * 65)])
async def test_refuses_bad_paths(api: Api, ann: httpx2.AsyncClient, path: str) -> None:
    refused = await ann.get("/files/content", params={"path": path})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid-path")


async def test_home_itself_is_not_removed(api: Api, ann: httpx2.AsyncClient) -> None:
    await upload(ann, b"x", path="a")
    for path in ("", "/", "."):
        assert (await ann.delete("/files", params={"path": path})).json()["code"] == "invalid-path"
    into_itself = {"path": "a", "to": "a/b"}
    assert (await ann.post("/files/move", json=into_itself)).json()["code"] == "invalid-path"


async def test_limits_of_storage_are_kept(api: Api, ann: httpx2.AsyncClient, tmp_path: Path) -> None:
    quota = Quota(per_user=Bounds(storage_mib=1))
    limited = tuple(Tenant(name, quota=quota) for name in ("commons", "optics", "course"))
    api.control.settings.declare(replace(api.control.settings.platform, tenants=limited))
    assert (await upload(ann, b"x" * 600_000, path="a")).json()["complete"] is True
    assert (await upload(ann, b"x" * 400_000, path="b")).json()["complete"] is True
    refused = await upload(ann, b"x" * 600_000, path="c")
    assert (refused.status_code, refused.json()["code"]) == (409, "storage-full")
    assert refused.json()["reason"]["code"] == "UploadTooLarge"
