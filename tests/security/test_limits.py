"""One user, or one address, that takes as much as it can get: the others go on, and the refusal names the limit."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import aiohttp
import httpx2
import pytest
from tests.fakes.waiting import until
from tests.integration.api_world import PLENTY, SPAWNER
from tests.security.api_site import STREAM, Site, site

from commonage.control.request_limits import Connection
from commonage.domain.principals import Principal
from commonage.domain.tenants import Rules, Tenant
from commonage.sdk import AsyncClient
from commonage.testing.behaviour import Behaviour
from commonage.wire.hub import PORTAL_PATH

pytestmark = pytest.mark.anyio
JOB = {"command": ["work"]}
SESSION = {"kind": "session", "environment": "notebook"}


def refused(response: httpx2.Response, code: str, limit: int) -> bool:
    """True if it is a refusal of this kind that names the limit; an assertion otherwise."""
    problem = response.json()
    assert (response.status_code, problem["code"]) == (429, code), response.text
    assert f"at most {limit} " in problem["detail"]
    return True


# --- live workloads -------------------------------------------------------------------------------------------------


async def test_a_user_who_floods_the_queue_with_arrays_leaves_it_open_to_others(tmp_path: Path) -> None:
    limits = replace(PLENTY, workloads_per_user=100, workloads_per_tenant=200, workloads=400)
    async with site(tmp_path, run=False, limits=limits) as here, here.client() as ann, here.client("bob") as bob:
        first = {**JOB, "array": 40, "key": "first"}
        assert (await ann.post("/workloads", json=first)).status_code == 201
        flood = await asyncio.gather(*(ann.post("/workloads", json={**JOB, "array": 10}) for _ in range(60)))
        accepted = [one for one in flood if one.status_code == 201]
        assert len(accepted) == 6
        assert all(refused(one, "too-many-workloads", 100) for one in flood if one not in accepted)
        assert "user ann has 100 live jobs" in (await ann.post("/workloads", json=JOB)).json()["detail"]
        assert "user ann has 100 live jobs" in (await ann.post("/workloads/dry-run", json=JOB)).json()["detail"]
        again = await ann.post("/workloads", json=first)
        assert (again.status_code, len(again.json()["ids"])) == (200, 40)
        for ask in (JOB, {**JOB, "array": 50}, SESSION):
            assert (await bob.post("/workloads", json=ask)).status_code == 201
        assert (await ann.post("/workloads", json=SESSION)).status_code == 201


async def test_users_of_a_tenant_who_flood_together_leave_room_for_other_tenants(tmp_path: Path) -> None:
    rules = Rules((Tenant("lab"), Tenant("course", max_workloads=5)))
    limits = replace(PLENTY, workloads_per_user=100, workloads_per_tenant=120, workloads=400)
    async with site(tmp_path, run=False, rules=rules, limits=limits) as here:
        here.api.identity.groups = {"ann": ("lab", "course"), "bob": ("lab", "course")}
        async with here.client() as ann, here.client("bob") as bob:
            assert (await ann.post("/workloads", json={**JOB, "array": 80, "tenant": "lab"})).status_code == 201
            refused(await bob.post("/workloads", json={**JOB, "array": 80, "tenant": "lab"}), "too-many-workloads", 120)
            assert (await bob.post("/workloads", json={**JOB, "array": 40, "tenant": "lab"})).status_code == 201
            refused(await bob.post("/workloads", json={**JOB, "array": 6, "tenant": "course"}), "too-many-workloads", 5)
            assert (await bob.post("/workloads", json={**JOB, "array": 5, "tenant": "course"})).status_code == 201
            assert (await bob.post("/workloads", json=JOB)).status_code == 201


async def test_room_is_kept_for_sessions_when_the_queue_is_full(tmp_path: Path) -> None:
    limits = replace(PLENTY, workloads_per_user=1000, workloads_per_tenant=1000, workloads=50, sessions_per_user=2)
    async with site(tmp_path, run=False, limits=limits) as here, here.client() as ann, here.client("bob") as bob:
        assert (await ann.post("/workloads", json={**JOB, "array": 45})).status_code == 201
        refused(await bob.post("/workloads", json=JOB), "too-many-workloads", 45)
        for name in ("one", "two"):
            assert (await bob.post("/workloads", json={**SESSION, "name": name})).status_code == 201
        refused(await bob.post("/workloads", json={**SESSION, "name": "three"}), "too-many-workloads", 2)
        # Nor by the hub's spawner, which asks for its users.
        async with here.client(SPAWNER) as hub:
            ask = {**SESSION, "name": "three", "owner": "bob", "key": "three"}
            refused(await hub.post("/workloads", json=ask), "too-many-workloads", 2)


# --- long connections -----------------------------------------------------------------------------------------------


@pytest.fixture
async def busy(tmp_path: Path) -> AsyncIterator[Site]:
    """A server with small limits on connections."""
    limits = replace(PLENTY, streams_per_user=5, streams=8, commands_per_user=2, commands=3)
    async with site(tmp_path, limits=limits) as here:
        here.api.engine.default = Behaviour(lasts_s=None, prints=("one",))
        yield here


async def test_a_user_who_opens_streams_without_end_gets_only_a_few(busy: Site) -> None:
    job = await busy.running()
    async with AsyncExitStack() as stack:
        ann, bob = busy.client(), busy.client("bob")
        await stack.enter_async_context(ann)
        await stack.enter_async_context(bob)
        tries = ["/events", f"/workloads/{job}/events", f"/workloads/{job}/logs", f"/workloads/{job}/logs?follow=true"]
        opened: list[int] = []
        for number in range(40):
            headers = {} if number % 4 == 3 else STREAM
            stream = ann.stream("GET", tries[number % 4], headers=headers)
            response = await stack.enter_async_context(stream)
            opened.append(response.status_code)
            if response.status_code != 200:
                await response.aread()
                refused(response, "too-many-streams", 5)
        assert opened == [200] * 5 + [429] * 35
        # The pages of the portal count as well.
        browser = await stack.enter_async_context(busy.browser("ann"))
        for page in ("live/workloads", f"workloads/{job}/live", f"workloads/{job}/log"):
            response = await browser.get(f"{PORTAL_PATH}{page}")
            assert response.status_code == 429
            assert response.headers["X-Frame-Options"] == "DENY"
            assert "at most 5 allowed" in response.text
        response = await stack.enter_async_context(bob.stream("GET", "/events", headers=STREAM))
        assert response.status_code == 200
    # Released when they end, however they end.
    await until(lambda: not busy.control.connections.count(Connection.STREAM))
    assert not busy.control.connections.count(Connection.STREAM, "ann")


async def test_streams_that_break_off_at_once_are_not_counted_for_ever(busy: Site) -> None:
    head = (
        "GET /services/commonage/api/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ann\r\n"
        "Accept: text/event-stream\r\n\r\n"
    )
    for _ in range(50):
        _, writer = await asyncio.open_connection("127.0.0.1", busy.port)
        writer.write(head.encode())
        await writer.drain()
        writer.transport.abort()
    await until(lambda: not busy.control.connections.count(Connection.STREAM))
    async with busy.client() as ann, ann.stream("GET", "/events", headers=STREAM) as response:
        assert response.status_code == 200


async def test_a_user_who_opens_shells_without_end_gets_only_a_few(busy: Site) -> None:
    job, other = await busy.running(), await busy.running("bob")
    async with aiohttp.ClientSession() as http:
        open_ones = []
        for _ in range(2):
            shell = await busy.shell(http, job)
            await shell.send_json({"command": ["cat"]})
            assert (await shell.receive_json())["started"]
            open_ones.append(shell)
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await busy.shell(http, job)
        assert caught.value.status == 429
        async with busy.client() as ann:
            refused(await ann.get(f"/workloads/{job}/exec"), "too-many-commands", 2)
        theirs = await busy.shell(http, other, "bob")
        await theirs.close()
        for shell in open_ones:
            await shell.close()
        await until(lambda: not busy.control.connections.count(Connection.COMMAND))
        again = await busy.shell(http, job)
        await again.close()


# --- bodies ---------------------------------------------------------------------------------------------------------


async def send_without_end(port: int, head: str, begin: bytes = b"") -> tuple[bytes, int]:
    """Send `begin` and zeros in chunks until the server answers, or 64 MiB. Returns the answer and what was sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}Host: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
    chunk, sent = begin + bytes(256 * 1024), 0
    while not answer.done() and sent < 64 * 1024 * 1024:
        writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        await asyncio.wait([asyncio.ensure_future(writer.drain()), answer], return_when=asyncio.FIRST_COMPLETED)
        sent += len(chunk)
        chunk = bytes(256 * 1024)
    try:
        return await asyncio.wait_for(answer, 60), sent
    except (TimeoutError, asyncio.IncompleteReadError):
        return b"", sent
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("kind", "begin"),
    [
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n'),
        ("application/x-www-form-urlencoded", b"name="),
    ],
)
async def test_a_form_without_end_is_refused_before_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, begin: bytes
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spool))
    async with site(tmp_path, run=False) as here, here.browser("ann") as browser:
        cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        head = f"POST {PORTAL_PATH}launch HTTP/1.1\r\nCookie: {cookie}\r\nContent-Type: {kind}\r\n"
        answer, sent = await send_without_end(here.port, head, begin)
        assert b" 413 " in answer.split(b"\r\n")[0]
        assert sent < 16 * 1024 * 1024
        page = await browser.post(
            f"{PORTAL_PATH}launch", content=bytes(2 * 1024 * 1024), headers={"Content-Type": kind}
        )
        assert page.status_code == 413
        assert "at most 1 MiB" in page.text
        # A request from another origin's page is refused before its body is read.
        foreign = f"{head}Sec-Fetch-Site: cross-site\r\n"
        answer, sent = await send_without_end(here.port, foreign, begin)
        assert b" 403 " in answer.split(b"\r\n")[0]
    assert list(spool.iterdir()) == []


async def test_a_body_or_headers_without_end_are_refused(tmp_path: Path) -> None:
    async with site(tmp_path, run=False) as here, here.client() as ann:
        head = "POST /services/commonage/api/v1/workloads HTTP/1.1\r\nAuthorization: Bearer ann\r\n"
        answer, sent = await send_without_end(here.port, head)
        assert b" 413 " in answer.split(b"\r\n")[0]
        assert sent < 16 * 1024 * 1024
        response = await ann.post("/workloads", content=bytes(2 * 1024 * 1024))
        assert (response.status_code, response.json()["code"]) == (413, "too-large")
        assert "at most 1 MiB" in response.json()["detail"]
        for endless in (b"X: " + bytes(72 * 1024).replace(b"\0", b"a"), b"X: y\r\n" * 12 * 1024):
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(b"GET / HTTP/1.1\r\n" + endless)
            assert b"headers are too large" in await asyncio.wait_for(reader.read(), 60)
            writer.close()


# --- rates ----------------------------------------------------------------------------------------------------------


async def test_a_user_who_asks_without_pause_is_slowed_and_others_are_not(tmp_path: Path) -> None:
    async with site(tmp_path, run=False, limits=replace(PLENTY, requests_per_s=2.0)) as here:
        async with here.client() as ann, here.client("bob") as bob, here.client(SPAWNER) as hub:
            flood = [await ann.get("/info") for _ in range(40)]
            late = [one for one in flood if one.status_code == 429]
            assert late
            assert refused(late[0], "too-many-requests", 2)
            assert int(late[0].headers["Retry-After"]) >= 1
            async with here.browser("ann") as browser:
                pages = [await browser.get(f"{PORTAL_PATH}work") for _ in range(20)]
                assert pages[-1].status_code == 429
                assert int(pages[-1].headers["Retry-After"]) >= 1
            assert (await bob.get("/info")).status_code == 200
            assert {(await hub.get("/info")).status_code for _ in range(60)} == {200}
        # The SDK waits as long as the server requests, and continues.
        async with AsyncClient(here.url, "ann") as sdk:
            for _ in range(12):
                assert (await sdk.info()).name


async def test_who_guesses_tokens_is_stopped_and_tokens_in_use_are_not(tmp_path: Path) -> None:
    limits = replace(PLENTY, failed_tokens_per_s=0.01)
    async with site(tmp_path, run=False, limits=limits) as here, here.client() as ann:
        assert (await ann.get("/info")).status_code == 200
        asked: list[str] = []
        whois = here.api.identity.whois

        async def counted(token: str) -> Principal | None:
            asked.append(token)
            return await whois(token)

        here.api.identity.whois = counted  # type: ignore[method-assign]
        answers = []
        async with here.client(None) as mallory:
            for number in range(300):
                guess = {"Authorization": f"Bearer guess-{number}"}
                answers.append((await mallory.get("/info", headers=guess)).status_code)
        assert answers.count(429) >= 90
        assert len(asked) < 210
        assert (await ann.get("/info")).status_code == 200
        # From elsewhere, as the proxy says, guesses are counted apart.
        async with here.client("bob", **{"X-Forwarded-For": "192.0.2.7"}) as bob:
            assert (await bob.get("/info")).status_code == 200
