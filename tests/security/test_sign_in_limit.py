"""Guessing passwords, at a real hub behind a real proxy: by the form, and by the API that takes passwords as well."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx2
import pytest
from tests.integration.hub_installation import Installation

pytestmark = pytest.mark.anyio
MAX = 4


@pytest.fixture(scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    """A hub whose limit is per 1e6 s instead of per minute: no guess becomes allowed again during a test."""
    folder = tmp_path_factory.mktemp("hub")
    slow = folder / "slow.py"
    slow.write_text("from commonage.hub import sign_in_limit\nsign_in_limit._MINUTE_S = 1e6\n")
    async with Installation(folder / "data", max_failed_sign_ins_per_minute=MAX, hub_config=slow) as installation:
        yield installation


async def guess(browser: httpx2.AsyncClient, name: str, password: str) -> httpx2.Response:
    auth = {"auth": {"username": name, "password": password}}
    return await browser.post(f"/hub/api/users/{name}/tokens", json=auth)


async def test_who_guesses_a_password_is_stopped_wherever_it_is_taken_and_others_are_not(here: Installation) -> None:
    # A proxy on this machine names the client.
    mallory = {"X-Forwarded-For": "203.0.113.9, 198.51.100.7"}
    async with here.browser() as form, here.browser() as api, here.browser() as other:
        form.headers |= mallory
        api.headers |= mallory
        answers = [(await here.sign_in(form, "admin", f"wrong-{number}")).status_code for number in range(MAX + 3)]
        assert answers == [403] * MAX + [429] * 3
        # Nor does another spelling of the name, a forged address, or the other way in help.
        for name in ("Admin", " admin "):
            page = await here.sign_in(form, name, here.secrets.admin_password)
            assert page.status_code == 429
        assert f"at most {MAX} a minute" in page.text
        assert int(page.headers["Retry-After"]) > 0
        # The API takes passwords, too, and says 403 to whatever is wrong: here the password is the right one.
        api.headers["X-Forwarded-For"] = "192.0.2.1, 198.51.100.7"
        other.headers["X-Forwarded-For"] = "192.0.2.8"
        assert (await guess(api, "admin", here.secrets.admin_password)).status_code == 403
        assert (await guess(other, "admin", here.secrets.admin_password)).status_code == 201
        # Many names at the same time are too many for the address. From elsewhere people sign in.
        await here.identity.ensure_user("alice")
        many = await asyncio.gather(*(guess(api, f"user{number}", "wrong") for number in range(60)))
        assert {one.status_code for one in many} == {403}
        assert (await guess(api, "alice", here.secrets.users_password)).status_code == 403
        assert (await guess(other, "alice", here.secrets.users_password)).status_code == 201
        await here.sign_in(form, "alice", here.secrets.users_password)
        assert (await form.get("/hub/home")).url.path == "/hub/login"
        await here.sign_in(other, "alice", here.secrets.users_password)
        assert await here.oauth(other) is not None


async def test_who_reaches_the_hub_past_the_proxy_cannot_forge_an_address(here: Installation) -> None:
    """As any Pod of a cluster that ignores NetworkPolicies could."""
    await here.identity.ensure_user("carol")
    async with httpx2.AsyncClient(base_url=here.plan.hub_url, trust_env=False) as past, here.browser() as through:
        for number in range(MAX + 1):
            past.headers["X-Forwarded-For"] = past.headers["X-Real-Ip"] = f"203.0.113.{number}"
            assert (
                await guess(past, "carol", "wrong" if number < MAX else here.secrets.users_password)
            ).status_code == 403
        through.headers["X-Forwarded-For"] = "192.0.2.60"
        assert (await guess(through, "carol", here.secrets.users_password)).status_code == 201


async def test_signing_in_rightly_is_never_slowed(here: Installation) -> None:
    async def arrives(number: int) -> int:
        async with here.browser() as browser:
            browser.headers["X-Forwarded-For"] = "192.0.2.55"
            return (await here.sign_in(browser, f"student{number}", here.secrets.users_password)).status_code

    assert {await arrives(number) for number in range(6 * MAX)} == {200}


async def test_a_large_request_is_not_kept_in_memory_by_the_hub(here: Installation) -> None:
    async with here.browser() as browser:
        with contextlib.suppress(httpx2.TransportError):  # the hub hangs up, perhaps before the client has sent all
            with_much = await browser.post("/hub/login", content=bytes(4 * 1024 * 1024))
            # 400 by the hub; 502 or 503 by the proxy, when the hub hung up while the proxy was still sending.
            assert with_much.status_code in (400, 413, 502, 503)
        assert (await browser.get("/hub/login")).status_code == 200
        assert (await browser.get("/hub/login", headers={"X": "y" * 100_000})).status_code == 431
