"""Materials through the API, with a real git server: sync, copies in homes, reset, credentials, webhook, failures."""

from __future__ import annotations

import hmac
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fakes.waiting import until
from tests.integration.api_world import SPAWNER, Api, serving
from tests.integration.git_server import GitServer, PushedRepository

from commonage.domain.permissions import Role, RoleBinding, SubjectKind
from commonage.domain.tenants import Rules, Tenant
from commonage.testing.behaviour import Behaviour

pytestmark = pytest.mark.anyio
TEACHER = RoleBinding(SubjectKind.USER, "bob", Role.TEACHER)
RULES = Rules((Tenant("optics", members=(TEACHER,)), Tenant("course")))


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(tmp_path, rules=RULES) as running:
        running.identity.groups["ann"] = ("optics",)
        running.engine.behave(Behaviour(lasts_s=None))
        yield running


async def declare(root: httpx2.AsyncClient, course: PushedRepository, **material: Any) -> None:
    volume = {"tenants": ["optics"], "always": True}
    document = {**volume, "material": {"repository": course.url, "poll": "1h", **material}}
    done = await root.put("/resources/Volume/course", json={"document": document}, headers={"If-None-Match": "*"})
    assert done.status_code == 200, done.text


async def synced(client: httpx2.AsyncClient, commit: str) -> dict[str, Any]:
    async def find() -> dict[str, Any] | None:
        found: dict[str, Any] = (await client.get("/materials/course")).json()
        return found if found["commit"] == commit else None

    done: dict[str, Any] = await until(find, f"commit {commit}")
    return done


async def failed(client: httpx2.AsyncClient) -> dict[str, Any]:
    async def find() -> dict[str, Any] | None:
        found: dict[str, Any] = (await client.get("/materials/course")).json()
        return found if found["state"] == "failing" else None

    done: dict[str, Any] = await until(find, "a failure")
    return done


async def session(api: Api) -> str:
    """Ann's, as the hub's spawner starts it."""
    ask = {"kind": "session", "environment": "notebook", "owner": "ann", "groups": ["optics"], "tenant": "optics"}
    async with api.client(SPAWNER) as hub:
        made = (await hub.post("/workloads", json=ask)).json()["workload"]

        async def runs() -> bool:
            return bool((await hub.get(f"/workloads/{made['id']}")).json()["state"] == "running")

        await until(runs, "a running session")
    return str(made["id"])


def files(folder: Path) -> dict[str, str]:
    return {str(one.relative_to(folder)): one.read_text() for one in folder.rglob("*") if one.is_file()}


async def test_push_reaches_running_session(
    api: Api, root: httpx2.AsyncClient, ann: httpx2.AsyncClient, course: PushedRepository, tmp_path: Path
) -> None:
    home = tmp_path / "homes/ann/materials/course"
    first = course.push({"week-1/lab.ipynb": "one", "readme.md": "hello", "run.sh": "#!/bin/sh"})
    await declare(root, course)
    shown = await synced(ann, first)
    assert (shown["files"], shown["state"], shown["mine"], shown["repository"]) == (3, "current", None, None)
    await session(api)
    assert files(home) == {"week-1/lab.ipynb": "one", "readme.md": "hello", "run.sh": "#!/bin/sh"}
    (home / "week-1/lab.ipynb").write_text("my answer")
    (home / "readme.md").unlink()

    second = course.push({"week-1/lab.ipynb": "two", "week-2/lab.ipynb": "new", "readme.md": "hi"})
    assert (await root.post("/materials/course/sync")).status_code == 202

    async def has_copy() -> Any:
        found = (await ann.get("/materials/course")).json()
        return found if found["mine"]["commit"] == second else None

    mine = (await until(has_copy, "the copy"))["mine"]
    assert mine["is_current"] and mine["edited"] == ["week-1/lab.ipynb"] and mine["deleted"] == ["readme.md"]
    [offered] = mine["offered"]
    assert files(home) == {
        "week-1/lab.ipynb": "my answer", offered: "two", "week-2/lab.ipynb": "new", "run.sh": "#!/bin/sh",
    }  # fmt: skip

    done = (await ann.post("/materials/course/reset", json={"files": ["week-1/lab.ipynb"]})).json()
    assert done["mine"]["edited"] == [] and "my answer" in files(home).values()
    assert files(home)["week-1/lab.ipynb"] == "two" and "readme.md" not in files(home)
    await ann.post("/materials/course/reset")
    assert files(home)["readme.md"] == "hi"


async def test_volume_leads_to_the_version_in_force(
    api: Api, root: httpx2.AsyncClient, ann: httpx2.AsyncClient, course: PushedRepository, tmp_path: Path
) -> None:
    course.push({"sub/a": "one", "b": "not in the folder"})
    commit = course.push({"sub/a": "two"})
    await declare(root, course, folder="sub")
    await synced(ann, commit)
    await session(api)
    [run] = api.engine.world.runs.values()
    [mount] = run.request.mounts
    assert (mount.source, mount.target, mount.writable) == (f"{tmp_path}/materials/course", "/volumes/course", False)
    assert files(Path(mount.source) / "current") == {"a": "two"}
    listed = (await ann.get("/files", params={"volume": "course"})).json()
    assert ([one["name"] for one in listed["items"]], listed["place"]["writable"]) == (["a"], False)
    assert (await ann.get("/files/content", params={"volume": "course", "path": "a"})).text == "two"
    assert not os.access(Path(mount.source) / "current/a", os.W_OK) or os.geteuid() == 0
    assert not list((tmp_path / "materials/course").glob("**/*.git"))


async def test_reset_at_start_keeps_edits(
    api: Api, root: httpx2.AsyncClient, ann: httpx2.AsyncClient, course: PushedRepository, tmp_path: Path
) -> None:
    home = tmp_path / "homes/ann/materials/course"
    commit = course.push({"demo.py": "one"})
    await declare(root, course, reset_at_start=True)
    await synced(ann, commit)
    started = await session(api)
    (home / "demo.py").write_text("mine")
    await ann.post(f"/workloads/{started}/stop")
    await session(api)
    found = files(home)
    assert found.pop("demo.py") == "one" and list(found.values()) == ["mine"]


async def test_force_push_and_deletion_lose_nothing(
    api: Api, root: httpx2.AsyncClient, ann: httpx2.AsyncClient, course: PushedRepository, tmp_path: Path
) -> None:
    home = tmp_path / "homes/ann/materials/course"
    await declare(root, course)
    course.push({"a": "one", "b": "one"})
    await root.post("/materials/course/sync")
    await synced(ann, course.git("rev-parse", "HEAD"))
    await session(api)
    (home / "b").write_text("mine")
    commit = course.push({"b": None, "c": "new"}, force=True)
    await root.post("/materials/course/sync")
    await synced(ann, commit)

    async def has_copy() -> Any:
        return (await ann.get("/materials/course")).json()["mine"]["commit"] == commit

    await until(has_copy, "the copy")
    assert files(home) == {"a": "one", "b": "mine", "c": "new"}
    assert (await ann.get("/materials/course")).json()["mine"]["withdrawn"] == ["b"]


async def test_unreachable_repository_keeps_the_version(
    api: Api,
    root: httpx2.AsyncClient,
    ann: httpx2.AsyncClient,
    git: GitServer,
    course: PushedRepository,
    tmp_path: Path,
) -> None:
    first = course.push({"a": "one"})
    await declare(root, course)
    await synced(ann, first)
    git.stop()
    await root.post("/materials/course/sync")
    shown = await failed(ann)
    assert shown["error"]["code"] == "MaterialUnreachable" and shown["error"]["params"]["detail"] == ""
    assert (await root.get("/materials/course")).json()["error"]["params"]["detail"] != ""
    await session(api)
    assert files(tmp_path / "homes/ann/materials/course") == {"a": "one"}
    events = (await root.get("/events?limit=200")).json()["items"]
    assert {"MaterialPublished", "MaterialUnreachable"} <= {one["reason"]["code"] for one in events if one["reason"]}
    git.start()
    second = course.push({"a": "two"})
    await root.post("/materials/course/sync")
    assert (await synced(ann, second))["error"] is None


@pytest.mark.parametrize(
    ("material", "code"),
    [
        ({"branch": "later"}, "MaterialBranchMissing"),
        ({"folder": "later"}, "MaterialFolderMissing"),
        ({"folder": "a"}, "MaterialFolderMissing"),
        ({"size": "1MiB"}, "MaterialTooLarge"),
    ],
)
async def test_reason_why_a_version_is_refused(
    root: httpx2.AsyncClient, course: PushedRepository, material: dict[str, str], code: str
) -> None:
    course.push({"a": "one", "large": os.urandom(2 * 1024 * 1024)})
    await declare(root, course, **material)
    assert (await failed(root))["error"]["code"] == code


async def test_session_starts_before_the_first_sync(
    api: Api,
    root: httpx2.AsyncClient,
    ann: httpx2.AsyncClient,
    git: GitServer,
    course: PushedRepository,
    tmp_path: Path,
) -> None:
    git.stop()
    await declare(root, course)
    await session(api)
    assert (await ann.post("/materials/course/reset")).json()["code"] == "material-without-version"
    git.start()
    commit = course.push({"a": "one"})
    await root.post("/materials/course/sync")
    await synced(ann, commit)
    await until(lambda: files(tmp_path / "homes/ann/materials/course") == {"a": "one"})


async def test_webhook_needs_its_signature(
    api: Api, root: httpx2.AsyncClient, ann: httpx2.AsyncClient, course: PushedRepository
) -> None:
    first = course.push({"a": "one"})
    await declare(root, course)
    await synced(ann, first)
    access = (await root.get("/materials/course/access")).json()
    assert access["deploy_key"].startswith("ssh-ed25519 ") and not access["has_token"]
    body, secret = b'{"ref": "refs/heads/main"}', access["webhook_secret"]
    signature = "sha256=" + hmac.new(secret.encode(), body, "sha256").hexdigest()
    second = course.push({"a": "two"})
    async with api.client(None) as server:
        for headers in ({}, {"X-Hub-Signature-256": "sha256=00"}, {"X-Gitlab-Token": "guess"}):
            assert (await server.post("/materials/course/webhook", content=body, headers=headers)).status_code == 401
        changed = await server.post(
            "/materials/course/webhook", content=body + b" ", headers={"X-Hub-Signature-256": signature}
        )
        assert changed.status_code == 401
        missing = await server.post("/materials/none/webhook", content=body, headers={"X-Gitlab-Token": secret})
        assert missing.status_code == 401
        good = {"X-Hub-Signature-256": signature}
        assert (await server.post("/materials/course/webhook", content=body, headers=good)).status_code == 202
        await synced(ann, second)
        third = course.push({"a": "three"})
        gitlab = await server.post("/materials/course/webhook", content=b"{}", headers={"X-Gitlab-Token": secret})
        assert gitlab.status_code == 202
    await synced(ann, third)


async def test_students_may_not_manage_a_material_and_others_do_not_see_it(
    api: Api, root: httpx2.AsyncClient, ann: httpx2.AsyncClient, bob: httpx2.AsyncClient, course: PushedRepository
) -> None:
    first = course.push({"a": "one"})
    await declare(root, course)
    await synced(root, first)
    for call in (ann.post("/materials/course/sync"), ann.get("/materials/course/access")):
        assert (await call).json()["code"] in ("permission-missing", "scope-missing")
    async with api.client("other") as other:
        listed = await other.get("/materials")
        assert listed.status_code == 401 or listed.json()["items"] == []
    assert [one["may_manage"] for one in (await bob.get("/materials")).json()["items"]] == [False]
    assert (await root.get("/materials/course")).json()["may_manage"] is True


async def test_token_is_kept_and_never_shown(
    root: httpx2.AsyncClient, course: PushedRepository, tmp_path: Path
) -> None:
    course.push({"a": "one"})
    await declare(root, course)
    done = await root.put("/materials/course/token", json={"token": "ghp_secret"})
    assert done.json()["has_token"] and "ghp_secret" not in done.text
    [kept] = (tmp_path / "credentials/course").glob("token")
    assert kept.stat().st_mode & 0o777 == 0o600
    exported = (await root.get("/export")).text
    assert "ghp_secret" not in exported and course.url in exported
    assert not (await root.put("/materials/course/token", json={"token": ""})).json()["has_token"]


async def test_material_that_is_deleted_leaves_copies(
    api: Api, root: httpx2.AsyncClient, ann: httpx2.AsyncClient, course: PushedRepository, tmp_path: Path
) -> None:
    first = course.push({"a": "one"})
    await declare(root, course)
    await synced(ann, first)
    started = await session(api)
    await ann.post(f"/workloads/{started}/stop")
    deleted = await root.delete("/resources/Volume/course", headers={"If-Match": '"1"'}, params={"force": "true"})
    assert deleted.status_code in (200, 204), deleted.text
    await until(lambda: not (tmp_path / "materials/course").exists() and not (tmp_path / "credentials/course").exists())
    assert files(tmp_path / "homes/ann/materials/course") == {"a": "one"}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"material": {"repository": "file:///etc"}}, "no address"),
        ({"material": {"repository": "/srv/git/course"}}, "no address"),
        ({"material": {"repository": "ext::sh -c id"}}, "no address"),
        ({"material": {"repository": "https://ann:secret@example.org/x"}}, "password or token"),
        ({"material": {"repository": "https://example.org/x", "branch": "--upload-pack=x"}}, "branch"),
        ({"material": {"repository": "https://example.org/x", "folder": "../x"}}, "folder"),
        ({"material": {"repository": "https://example.org/x", "poll": "1s"}}, "at least 10"),
        ({"material": {"repository": "https://example.org/x"}, "source": "/srv/x"}, "remove the source"),
        ({"material": {"repository": "https://example.org/x"}, "mode": "rw"}, "remove the mode"),
        ({"material": {"repository": "https://example.org/x"}, "sites": ["north"]}, "remove the sites"),
        ({"material": {"repository": "https://example.org/x"}, "type": "scratch"}, "is a folder"),
    ],
)
async def test_invalid_materials_are_refused(root: httpx2.AsyncClient, document: dict[str, Any], says: str) -> None:
    refused = await root.put("/resources/Volume/course", json={"document": document}, headers={"If-None-Match": "*"})
    assert refused.status_code == 422 and says in refused.json()["detail"]
