"""Signing in, tokens, routes, and the supervised hub and proxy: real ones, through the proxy as a browser goes."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator

import httpx2
import psutil
import pytest
from tests.fakes.waiting import until
from tests.integration.hub_installation import Installation

from commonage.domain.errors import Conflict, Forbidden, InvalidInput, NotFound, Unauthenticated
from commonage.domain.principals import Principal, Scope
from commonage.wire.hub import PORTAL_PATH

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    async with Installation(tmp_path_factory.mktemp("hub") / "data") as installation:
        yield installation


async def test_a_user_signs_in_and_lands_on_the_portal(here: Installation) -> None:
    async with here.browser() as browser:
        page = await here.sign_in(browser, "Alice", here.secrets.users_password)
        assert page.url.path == PORTAL_PATH
        found = await here.oauth(browser)
    assert found == Principal("alice", frozenset({Scope.READ, Scope.SUBMIT, Scope.MANAGE}))


async def test_the_admin_signs_in_with_a_password_of_their_own(here: Installation) -> None:
    async with here.browser() as browser:
        await here.sign_in(browser, "admin", here.secrets.admin_password)
        found = await here.oauth(browser)
    assert found is not None
    assert found.holds(Scope.ADMIN)


@pytest.mark.parametrize("user", ["alice", "admin"])
async def test_a_wrong_password_is_refused(here: Installation, user: str) -> None:
    async with here.browser() as browser:
        wrong = here.secrets.users_password if user == "admin" else "open-sesame"
        page = await here.sign_in(browser, user, wrong)
        assert page.status_code == 403
        assert "Invalid username or password" in page.text
        assert (await browser.get("/hub/home")).url.path == "/hub/login"


@pytest.mark.parametrize("user", ["alice", "admin"])
async def test_nobody_shares_a_session(here: Installation, user: str) -> None:
    """Only the control plane lets visitors in, as their roles permit."""
    await here.identity.ensure_user(user)
    await here.identity.ensure_user("bob")
    async with here.as_service() as client:
        made = await client.post(f"users/{user}/tokens", json={"note": "all of my rights"})
    headers = {"Authorization": f"token {made.json()['token']}"}
    url = f"{here.plan.hub_url}/hub/api/"
    async with httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=30) as own:
        for path, body in ((f"shares/{user}/", {"user": "bob"}), (f"share-codes/{user}/", {})):
            assert (await own.post(path, json=body)).status_code in (403, 404), path
        assert (await own.get("user")).status_code == 200
    async with here.as_service() as client:
        assert (await client.get(f"shares/{user}/")).json()["items"] == []


async def test_a_token_expires_after_the_longest_lifetime_by_default(here: Installation) -> None:
    await here.identity.ensure_user("carol")
    made = await here.identity.mint_token("carol", [Scope.READ], "a script", None)
    assert made.expires_at == pytest.approx(time.time() + 30 * 24 * 3600, abs=3600)
    async with here.browser() as browser:
        await here.sign_in(browser, "carol", here.secrets.users_password)
        page = await browser.get("/hub/token")
    assert "at the latest after\n    30 days" in page.text
    assert '<option selected="selected"value="2592000">1 Month' in page.text.replace('" value', '"value')
    assert "365 days" not in page.text and "1 Year" not in page.text


async def test_a_code_is_good_once(here: Installation) -> None:
    async with here.browser() as browser:
        await here.sign_in(browser, "alice", here.secrets.users_password)
        back = await browser.get(here.identity.authorize_url("s"))
    code = back.url.params["code"]
    await here.identity.exchange(code)
    with pytest.raises(Unauthenticated):
        await here.identity.exchange(code)


async def test_tokens_carry_the_scopes_they_were_made_with(here: Installation) -> None:
    await here.identity.ensure_user("carol")
    reader = (await here.identity.mint_token("carol", [Scope.READ], "a script", 60)).text
    assert await here.identity.whois(reader) == Principal("carol", frozenset({Scope.READ}))
    writer = (await here.identity.mint_token("carol", [Scope.SUBMIT], "a script", None)).text
    found = await here.identity.whois(writer)
    assert found is not None
    assert found.scopes == {Scope.READ, Scope.SUBMIT}
    with pytest.raises(Forbidden, match="not held by User carol"):
        await here.identity.mint_token("carol", [Scope.ADMIN], "too much", None)
    with pytest.raises(NotFound):
        await here.identity.mint_token("nobody", [Scope.READ], "", None)
    assert await here.identity.whois("nonsense") is None


async def test_an_admin_by_whatever_way_has_our_scope(here: Installation) -> None:
    await here.identity.ensure_user("dora")
    async with here.as_service() as hub:
        (await hub.patch("users/dora", json={"admin": True})).raise_for_status()
    found = await here.identity.whois((await here.identity.mint_token("dora", [Scope.ADMIN], "", 60)).text)
    assert found is not None
    assert found.holds(Scope.ADMIN)


@pytest.mark.parametrize("name", ["../etc", "a b", "", "x" * 300, ".hidden"])
async def test_names_that_could_be_no_folder(here: Installation, name: str) -> None:
    with pytest.raises((InvalidInput, NotFound)):
        await here.identity.ensure_user(name)


async def test_paths_of_notebooks_reach_the_other_side_as_they_are(here: Installation) -> None:
    path = f"{PORTAL_PATH}50%25%20done%3F/a%2Fb%23%3B%5C.ipynb"
    async with here.browser() as browser:
        answer = await browser.get(path, headers={"X_Forwarded_For": "10.0.0.1"})
    assert answer.json()["here"] == path
    assert answer.json()["headers"]["x-forwarded-for"] == "127.0.0.1"
    assert "x_forwarded_for" not in answer.json()["headers"]


async def test_a_killed_hub_is_back_and_routes_held_meanwhile(here: Installation) -> None:
    async with here.browser() as browser:
        for _ in range(5):  # it may be back before it is asked; the supervisor waits longer after each time
            before = await until(lambda: here.child("hub").pid)
            restarts = here.child("hub").restarts
            os.kill(before, signal.SIGKILL)
            await until(lambda restarts=restarts: here.child("hub").restarts > restarts)
            away = await browser.get("/hub/login", headers={"Accept": "text/html"})
            if away.status_code != 200:
                break
        assert (away.status_code, "This page reloads" in away.text) == (503, True)
        assert (await browser.get(PORTAL_PATH)).status_code == 200
        await until(lambda: here.child("hub").ready and here.child("hub").pid != before)
        await here.sign_in(browser, "alice", here.secrets.users_password)
        assert await here.oauth(browser)


async def test_a_killed_proxy_is_back_with_its_routes(here: Installation) -> None:
    before = here.child("proxy").pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    await until(lambda: here.child("proxy").ready and here.child("proxy").pid != before)

    async def served() -> bool:
        async with here.browser() as browser:
            try:
                answers = [await browser.get(PORTAL_PATH), await browser.get("/hub/login")]
            except httpx2.TransportError:
                return False
        return all(answer.status_code == 200 for answer in answers)

    await until(served)


async def test_started_again_all_is_as_it_was_and_stopped_nothing_is_left(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("twice") / "data"
    async with Installation(folder) as first:
        await first.identity.ensure_user("erin")
        token = (await first.identity.mint_token("erin", [Scope.READ], "kept", None)).text
        pids = [first.child(name).pid for name in ("hub", "proxy")]
    assert all(pid is not None and not psutil.pid_exists(pid) for pid in pids)
    async with Installation(folder) as second:  # on other ports, with the routes of the first still in the file
        found = await second.identity.whois(token)
        assert found is not None
        assert found.name == "erin"
        async with second.browser() as browser, asyncio.timeout(60):
            answer = await browser.get(PORTAL_PATH)
            while answer.status_code == 503:  # until the proxy has read that the first one's route is no more
                await asyncio.sleep(0.1)
                answer = await browser.get(PORTAL_PATH)
            assert answer.json()["here"] == PORTAL_PATH


async def test_a_renamed_user_keeps_tokens_and_groups(here: Installation) -> None:
    await here.identity.ensure_user("gina")
    async with here.as_service() as hub:
        (await hub.post("groups/optics", json={"users": ["gina"]})).raise_for_status()
    token = (await here.identity.mint_token("gina", [Scope.READ], "", 600)).text
    assert (await here.identity.whois(token)) == Principal("gina", frozenset({Scope.READ}), ("optics",))
    await here.identity.rename_user("gina", "regina")
    await here.identity.rename_user("gina", "regina")
    assert (await here.identity.whois(token)) == Principal("regina", frozenset({Scope.READ}), ("optics",))
    assert await here.identity.account("gina") is None
    found = await here.identity.account("regina")
    assert found is not None
    assert (found.groups, found.tokens, found.admin) == (("optics",), 1, False)
    assert "regina" in [one.name for one in await here.identity.accounts()]
    await here.identity.ensure_user("gina")
    with pytest.raises(Conflict):
        await here.identity.rename_user("regina", "gina")


async def test_a_removed_user_has_no_token_and_no_sign_in(here: Installation) -> None:
    async with here.browser() as browser:
        await here.sign_in(browser, "henry", here.secrets.users_password)
        assert await here.oauth(browser) is not None
        token = (await here.identity.mint_token("henry", [Scope.READ], "", 600)).text
        assert await here.identity.whois(token) is not None
        await here.identity.revoke_tokens("henry")
        await here.identity.revoke_tokens("henry")
        assert await here.identity.whois(token) is None
        found = await here.identity.account("henry")
        assert found is not None
        assert found.tokens == 0
        await here.identity.remove_user("henry")
        await here.identity.remove_user("henry")
        assert await here.identity.account("henry") is None
        assert (await browser.get("/hub/home")).url.path == "/hub/login"


async def test_members_of_a_renamed_group_are_in_the_new_one(here: Installation) -> None:
    for name in ("ines", "jane"):
        await here.identity.ensure_user(name)
    async with here.as_service() as hub:
        (await hub.post("groups/acoustics", json={"users": ["ines", "jane"]})).raise_for_status()
    await here.identity.rename_group("acoustics", "sound")
    await here.identity.rename_group("acoustics", "sound")
    assert await here.identity.group("acoustics") is None
    assert sorted(await here.identity.group("sound") or ()) == ["ines", "jane"]
    await here.identity.remove_group("sound")
    await here.identity.remove_group("sound")
    assert await here.identity.group("sound") is None
    assert await here.identity.account("ines") is not None
