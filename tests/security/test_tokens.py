"""An attacker has got hold of a token for a moment and wants one that lasts, by the API or by the hub itself."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from tests.integration.api_world import make_control
from tests.integration.hub_installation import Installation
from tests.security.attacker import SignedIn

from commonage.api.app import create_app
from commonage.api.auth import Auth
from commonage.domain.principals import Scope
from commonage.wire.hub import API_PATH

pytestmark = pytest.mark.anyio

DAY_S = 24 * 3600


class Site(Installation):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "data")
        control, _ = make_control(folder, identity=self.identity)
        self.api = create_app(control, Auth(self.identity))

    async def ask_api(self, token: str, **fields: Any) -> httpx2.Response:
        transport = httpx2.ASGITransport(app=self.api)
        async with httpx2.AsyncClient(transport=transport, base_url="http://api") as client:
            headers = {"Authorization": f"Bearer {token}"}
            return await client.post(f"{API_PATH}/tokens", json=fields, headers=headers)

    async def ask_hub(self, token: str | None, user: str, **fields: Any) -> httpx2.Response:
        """Ask the hub for a token, with a token or as the fields say."""
        headers = {} if token is None else {"Authorization": f"token {token}"}
        async with self.browser() as browser:
            return await browser.post(f"/hub/api/users/{user}/tokens", json=fields, headers=headers)

    async def lasts_s(self, token: str) -> float | None:
        expires_at = await self.identity.expires_at(token)
        return None if expires_at is None else expires_at - datetime.now().timestamp()


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with Site(tmp_path_factory.mktemp("tokens")) as running:
        await running.identity.ensure_user("bob")
        yield running


async def from_the_page(site: Site, **fields: Any) -> str:
    """Bob's token from the hub's page: it may do all that he may."""

    def made() -> str:
        with SignedIn(site.url, "bob", site.secrets.users_password) as bob:
            return bob.token("bob", **fields)

    return await asyncio.to_thread(made)


async def test_the_api_makes_none_that_lasts_longer(site: Site) -> None:
    short = await from_the_page(site, expires_in=60)
    for asked in ({"expires_s": 3600}, {"expires_s": 366 * DAY_S}, {"expires_s": 60}):
        refused = await site.ask_api(short, **asked)
        assert refused.status_code == 422, refused.text
        assert refused.json()["field"] == "expires_s"
    made = await site.ask_api(short)
    assert made.status_code == 201, made.text
    lasts_s, of_the_first_s = await site.lasts_s(made.json()["token"]), await site.lasts_s(short)
    assert lasts_s is not None
    assert of_the_first_s is not None
    assert 0 < lasts_s <= of_the_first_s


async def test_the_api_makes_none_that_may_do_more(site: Site) -> None:
    reader = await site.identity.mint_token("bob", [Scope.READ, Scope.TOKENS], "", 60)
    assert (await site.ask_api(reader.text, scopes=[Scope.SUBMIT.value])).status_code == 403
    child = (await site.ask_api(reader.text)).json()
    assert child["scopes"] == [Scope.READ.value]
    assert (await site.ask_api(child["token"])).status_code == 403


async def test_the_hub_makes_none_with_a_token(site: Site) -> None:
    short = await from_the_page(site, expires_in=60)
    for fields in ({}, {"expires_in": 10}, {"scopes": ["self"]}):
        assert (await site.ask_hub(short, "bob", **fields)).status_code == 403
    async with site.as_service() as hub:
        admins = (await hub.post("users/admin/tokens", json={"expires_in": 60})).json()["token"]
    assert (await site.ask_hub(admins, "bob")).status_code == 403
    assert (await site.ask_hub(admins, "admin")).status_code == 403


async def test_the_token_of_a_session_makes_none_and_lasts_as_long_as_the_session(site: Site) -> None:
    await site.identity.start_session("bob", "", {})
    id = await site.control.submitted()
    token = site.control.bodies[id]["secrets"]["COMMONAGE_TOKEN"]
    who = await site.identity.whois(token)
    assert who is not None
    assert who.scopes == {Scope.READ, Scope.SUBMIT}
    for fields in ({}, {"expires_s": 20}, {"scopes": [Scope.READ.value]}):
        assert (await site.ask_api(token, **fields)).status_code == 403
    assert (await site.ask_hub(token, "bob")).status_code == 403
    assert await site.lasts_s(token) is None
    await site.identity.stop_session("bob", "")


async def test_the_token_of_the_portal_makes_none(site: Site) -> None:
    for name, password in (("bob", site.secrets.users_password), ("admin", site.secrets.admin_password)):
        async with site.browser() as browser:
            await site.sign_in(browser, name, password)
            back = await browser.get(site.identity.authorize_url("some-state"))
        token = await site.identity.exchange(parse_qs(urlsplit(str(back.url)).query)["code"][0])
        assert (await site.ask_api(token)).status_code == 403
        assert (await site.ask_hub(token, name)).status_code == 403


async def test_tokens_expire_by_default(site: Site) -> None:
    with_password = {"username": "bob", "password": site.secrets.users_password}
    made = await site.ask_hub(None, "bob", auth=with_password)
    from_password = made.json()["token"]
    by_service = (await site.identity.mint_token("bob", [Scope.READ], "", None)).text
    for token in (await from_the_page(site), from_password, by_service):
        lasts_s = await site.lasts_s(token)
        assert lasts_s is not None
        assert lasts_s <= 90 * DAY_S
    refused = await site.ask_hub(None, "bob", auth=with_password, expires_in=90 * DAY_S + 1)
    assert refused.status_code == 400
