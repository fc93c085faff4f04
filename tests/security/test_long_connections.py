"""A revoked or expired token, and a user who is no longer an admin, keep no connection open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import httpx2
import pytest
from tests.fakes.waiting import until
from tests.integration.api_world import PLENTY
from tests.security.api_site import STREAM, Site, site

from commonage.control import request_limits
from commonage.control.request_limits import Connection
from commonage.testing.behaviour import Behaviour
from commonage.wire.hub import PORTAL_PATH

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    """A server that checks identities ten times a second."""
    async with site(tmp_path, limits=replace(PLENTY, recheck_s=0.1)) as made:
        made.api.engine.default = Behaviour(lasts_s=None, prints=("one",))
        yield made


async def last_event(response: httpx2.Response) -> tuple[str, dict[str, object]]:
    found = [one async for one in httpx2.EventSource(response) if one.data]
    return found[-1].event, json.loads(found[-1].data)


@pytest.mark.parametrize("path", ["/events", "/workloads/{job}/events", "/workloads/{job}/logs"])
async def test_a_revoked_token_keeps_no_stream(here: Site, path: str) -> None:
    job = await here.running()
    async with here.client() as ann, ann.stream("GET", path.format(job=job), headers=STREAM) as response:
        await until(lambda: here.control.connections.count(Connection.STREAM, "ann") == 1)
        await asyncio.sleep(0.3)
        assert here.control.connections.count(Connection.STREAM, "ann") == 1
        here.api.identity.not_valid.add("ann")
        event, problem = await asyncio.wait_for(last_event(response), 30)
        assert (event, problem["status"], problem["code"]) == ("error", 401, "unauthenticated")
    await until(lambda: not here.control.connections.count(Connection.STREAM))


async def test_a_revoked_token_follows_no_log_as_text(here: Site) -> None:
    job = await here.running()
    async with here.client() as ann, ann.stream("GET", f"/workloads/{job}/logs?follow=true") as response:
        await until(lambda: here.control.connections.count(Connection.STREAM, "ann") == 1)
        here.api.identity.not_valid.add("ann")
        text = (await asyncio.wait_for(response.aread(), 30)).decode()
    assert text.startswith("one\n")
    assert "[commonage: the output ends here: the hub does not know this token" in text


async def test_a_revoked_token_keeps_no_shell(here: Site) -> None:
    job = await here.running()
    async with aiohttp.ClientSession() as http, here.shell(http, job) as shell:
        await shell.send_json({"command": ["cat"]})
        assert (await shell.receive_json())["started"]
        await shell.send_bytes(b"still there")
        assert (await shell.receive()).data in (b"\x01still there", '{"taken":11}')
        here.api.identity.not_valid.add("ann")
        said = [one async for one in shell]
        problem = json.loads(said[-1].data)["problem"]
        assert (problem["status"], problem["code"]) == (401, "unauthenticated")
        assert shell.closed
    [attempt] = here.api.engine.execs
    assert [one.code for one in here.api.engine.execs[attempt]] != [None]


async def test_a_shell_that_has_not_said_its_command_is_ended_too(here: Site) -> None:
    job = await here.running()
    async with aiohttp.ClientSession() as http, here.shell(http, job) as shell:
        here.api.identity.not_valid.add("ann")
        said = [one async for one in shell]
        assert json.loads(said[-1].data)["problem"]["code"] == "unauthenticated"


async def test_an_admin_who_is_none_any_more_sees_and_runs_nothing_of_others(here: Site) -> None:
    job = await here.running()
    token = "admin:root"
    async with (
        here.client(token) as root,
        aiohttp.ClientSession() as http,
        root.stream("GET", "/events", headers=STREAM) as response,
        here.shell(http, job, token) as shell,
    ):
        await shell.send_json({"command": ["cat"]})
        assert (await shell.receive_json())["started"]
        here.api.identity.lost_rights.add(token)
        event, problem = await asyncio.wait_for(last_event(response), 30)
        assert (event, problem["status"], problem["code"]) == ("error", 403, "forbidden")
        said = [one async for one in shell]
        assert json.loads(said[-1].data)["problem"]["code"] == "forbidden"


@pytest.mark.parametrize("page", ["live/workloads", "live/overview", "workloads/{job}/live"])
async def test_a_page_of_the_portal_that_stays_open_ends_with_its_sign_in(here: Site, page: str) -> None:
    job = await here.running()
    async with here.browser("ann") as browser:
        path = f"{PORTAL_PATH}{page.format(job=job)}"
        async with browser.stream("GET", path) as response:
            assert response.status_code == 200
            await until(lambda: here.control.connections.count(Connection.STREAM, "ann") == 1)
            here.api.identity.not_valid.add("ann")
            await asyncio.wait_for(response.aread(), 30)
        assert (await browser.get(path)).status_code == 302
    await until(lambda: not here.control.connections.count(Connection.STREAM))


async def test_a_hub_that_is_away_for_a_moment_ends_nothing(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async with here.client() as ann, ann.stream("GET", "/events", headers=STREAM) as response:
        await until(lambda: here.control.connections.count(Connection.STREAM, "ann") == 1)
        here.api.identity.trouble = True
        await asyncio.sleep(0.5)
        assert here.control.connections.count(Connection.STREAM, "ann") == 1
        # But not forever: a user who can keep the hub down must not keep revoked access.
        monkeypatch.setattr(request_limits, "UNCONFIRMED_S", 0.0)
        event, problem = await asyncio.wait_for(last_event(response), 30)
        assert (event, problem["code"]) == ("error", "unavailable")
