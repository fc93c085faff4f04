"""Requests of admins about joining nodes by the API, also on a full disk."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from tests.integration.api_world import URL, serving
from tests.integration.joining_world import World, opened

from commonage.api.app import create_app
from commonage.api.auth import Auth
from commonage.control.nodes.drains import Drains
from commonage.domain.errors import Forbidden
from commonage.domain.nodes import LOCAL_SITE
from commonage.join.client import JoinRefused
from commonage.wire.hub import API_PATH, PORTAL_PATH

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path) as made:
        yield made


@asynccontextmanager
async def api(folder: Path, world: World | None) -> AsyncIterator[httpx2.AsyncClient]:
    async with serving(folder, run=False) as made:
        join_services = {} if world is None else {LOCAL_SITE: world.join_service}
        control = made.control
        control.drains = Drains(
            control.live_state, control.writer, control.nodes, control.clock, control.settings, join_services
        )
        control.node_admission = replace(control.node_admission, joining=join_services)
        app = create_app(control, Auth(made.identity))
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url=URL) as client:
            yield client


ADMIN = {"Authorization": "Bearer admin:root"}
CALLS = (
    ("POST", "/join-tokens"),
    ("DELETE", "/join-tokens"),
    ("GET", "/join-kit"),
)


async def test_admins_make_and_revoke_tokens(world: World, tmp_path: Path) -> None:
    async with api(tmp_path, world) as client:
        ask = {"for_s": 600, "cloud_init": True, "options": ["--scratch=off"]}
        made = await client.post(f"{API_PATH}/join-tokens", headers=ADMIN, json=ask)
        assert made.status_code == 201
        said = made.json()
        assert 500 < said["expires_at"] - time.time() <= 600
        assert said["token"] in said["user_data"] and "--scratch=off" in said["user_data"]
        script = await client.get(f"{PORTAL_PATH}join")
        assert script.status_code == 200
        kit = (await client.get(f"{API_PATH}/join-kit", headers=ADMIN)).json()
        assert (kit["script"], kit["script_sha256"]) == (script.text, said["script_sha256"])
        world.tokens.check(said["token"], time.time())
        assert (await client.delete(f"{API_PATH}/join-tokens", headers=ADMIN)).status_code == 200
        events = (await client.get(f"{API_PATH}/events", headers=ADMIN)).json()["items"]
        audit = [one["reason"] for one in events if one["kind"] == "audit"]
        assert [(one["code"], one["params"]["site"], one["params"]["by"]) for one in audit] == [
            ("NodeTokenCreated", "local", "root"), ("NodeTokensRevoked", "local", "root"),
        ]  # fmt: skip
        with pytest.raises(Forbidden, match="revoked"):
            world.tokens.check(said["token"], time.time())
        token = world.tokens.make([world.at], time.time())
        unknown = await client.delete(f"{API_PATH}/nodes/local/gpu-9", headers=ADMIN)
        assert (unknown.status_code, unknown.json()["code"]) == (404, "node-not-found")
        world.tokens.check(token, time.time())


class FullDisk:
    """Files of these names find no room any more, as on a real disk: none of their bytes arrive."""

    def __init__(self, patch: pytest.MonkeyPatch, *names: str) -> None:
        self._names, self._really = names, os.fsync
        patch.setattr(os, "fsync", self._fsync)

    def _fsync(self, descriptor: int) -> None:
        if any(name in os.readlink(f"/proc/self/fd/{descriptor}") for name in self._names):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._really(descriptor)


@pytest.mark.parametrize("full", ["issued", "secret"])
async def test_on_a_full_disk_a_node_is_expelled_whole_or_not_at_all(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    await world.join("gpu-9", "n9", tmp_path)
    token = world.tokens.make([world.at], time.time())
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file() and "full" not in path.parts)
    async with api(tmp_path / "full", world) as client:
        with monkeypatch.context() as patch:
            FullDisk(patch, full)
            answer = await client.delete(f"{API_PATH}/nodes/local/gpu-9", headers=ADMIN)
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert answer.json()["retryable"] is True
            assert re.search(r"the disk of \S+ is full: .* free some space, then try again", answer.json()["detail"])
        world.tokens.check(token, time.time())
        assert (world.cut, world.swarm.removed, world.swarm.token) == ([], [], 1)
        assert not world.authority.revoked()
        assert before == sorted(path for path in tmp_path.rglob("*") if path.is_file() and "full" not in path.parts)
        again = await client.delete(f"{API_PATH}/nodes/local/gpu-9", headers=ADMIN)
        assert (again.status_code, len(again.json()["done"])) == (200, 4)
    assert len(world.authority.revoked()) == 1
    with pytest.raises(Forbidden, match="revoked"):
        world.tokens.check(token, time.time())


@pytest.mark.parametrize("call", [("POST", "/join-tokens"), ("DELETE", "/join-tokens")], ids=" ".join)
async def test_on_a_full_disk_join_tokens_are_as_they_were(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: tuple[str, str]
) -> None:
    async with api(tmp_path / "full", world) as client:
        with monkeypatch.context() as patch:
            FullDisk(patch, "secret")
            answer = await client.request(call[0], f"{API_PATH}{call[1]}", headers=ADMIN)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert "the secret of the join tokens cannot be kept" in answer.json()["detail"]
        assert (world.swarm.token, list(tmp_path.glob(".secret*"))) == (1, [])
        again = await client.request(call[0], f"{API_PATH}{call[1]}", headers=ADMIN)
        assert again.status_code in (200, 201)


async def test_on_a_full_disk_a_node_that_joins_is_told(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        FullDisk(patch, "issued")
        with pytest.raises(JoinRefused, match="is full: which node has which certificate cannot be kept"):
            await world.join("gpu-1", "n1", tmp_path)


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
async def test_nobody_else_does(world: World, tmp_path: Path, call: tuple[str, str]) -> None:
    async with api(tmp_path, world) as client:
        answer = await client.request(call[0], f"{API_PATH}{call[1]}", headers={"Authorization": "Bearer ann"})
        assert (answer.status_code, answer.json()["code"]) == (403, "permission-missing")


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
async def test_where_no_node_can_join_that_is_said(tmp_path: Path, call: tuple[str, str]) -> None:
    async with api(tmp_path, None) as client:
        answer = await client.request(call[0], f"{API_PATH}{call[1]}", headers=ADMIN)
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        assert "site_address" in answer.json()["detail"]
        assert (await client.get(f"{PORTAL_PATH}join")).status_code == 404


async def test_admins_make_tokens_for_a_site_elsewhere(world: World, tmp_path: Path) -> None:
    """Its join service answers in place of the control plane's."""
    async with serving(tmp_path, run=False) as made:
        control = made.control
        control.node_admission = replace(control.node_admission, joining={"clinic": world.join_service})
        app = create_app(control, Auth(made.identity))
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=URL) as client:
            token = await client.post(f"{API_PATH}/join-tokens", headers=ADMIN, json={"site": "clinic", "for_s": 600})
            assert token.status_code == 201
            world.tokens.check(token.json()["token"], time.time())
            kit = await client.get(f"{API_PATH}/join-kit", params={"site": "clinic"}, headers=ADMIN)
            assert kit.json()["script_sha256"] == token.json()["script_sha256"]
            revoked = await client.delete(f"{API_PATH}/join-tokens", params={"site": "clinic"}, headers=ADMIN)
            assert revoked.status_code == 200
            with pytest.raises(Forbidden, match="revoked"):
                world.tokens.check(token.json()["token"], time.time())
            here = await client.post(f"{API_PATH}/join-tokens", headers=ADMIN)
            assert (here.status_code, here.json()["code"]) == (409, "conflict")
            unknown = await client.get(f"{API_PATH}/join-kit", params={"site": "ward"}, headers=ADMIN)
            assert (unknown.status_code, unknown.json()["code"]) == (404, "site-not-found")
            assert "Such sites: clinic" in unknown.json()["detail"]
            assert (await client.get(f"{PORTAL_PATH}join")).status_code == 404, "only the site serves its script"
