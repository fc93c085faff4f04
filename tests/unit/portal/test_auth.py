"""Sign-in at the hub, the session cookie, and refusals."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.requests import Request
from tests.fakes.portal import SECRET, FakeIdentity, Portal
from tests.unit.portal.conftest import Person

from commonage.portal.auth import SESSION_S, PortalAuth, SignInNeeded
from commonage.testing.fakes.clock import FakeClock
from commonage.wire.hub import CALLBACK_PATH, PORTAL_PATH

pytestmark = pytest.mark.anyio


async def _state(person: Person, path: str = "") -> str:
    answer = await person.get(path)
    assert answer.status_code == 302
    return parse_qs(urlsplit(answer.headers["location"]).query)["state"][0]


async def test_a_stranger_is_sent_to_the_hub_and_comes_back_to_where_they_wanted(portal: Portal) -> None:
    person = Person(portal)
    state = await _state(person, "workloads?state=running&text=a%20b")
    answer = await person.client.get(CALLBACK_PATH, params={"state": state, "code": "code-ann"})
    assert answer.status_code == 302
    assert answer.headers["location"] == f"{PORTAL_PATH}workloads?state=running&text=a%20b"
    assert (await person.get("workloads")).status_code == 200


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(portal: Portal) -> None:
    person = Person(portal)
    cookie = (await person.sign_in("ann")).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert f"path={PORTAL_PATH}" in cookie
    assert "token-ann" not in cookie
    assert "secure" not in cookie  # plain HTTP here


async def test_the_cookie_is_for_https_only_where_there_is_https(portal: Portal) -> None:
    person = Person(portal)
    person.client.base_url = "https://portal.test"
    assert "secure" in (await person.sign_in("ann")).headers["set-cookie"].lower()


async def test_a_sign_in_begun_in_another_browser_is_refused(portal: Portal) -> None:
    attacker, victim = Person(portal), Person(portal)
    state = await _state(attacker)
    await victim.get("")
    answer = await victim.client.get(CALLBACK_PATH, params={"state": state, "code": "code-attacker"})
    assert answer.status_code == 401
    assert "began in another browser" in answer.text
    assert (await victim.get("workloads")).status_code == 302


@pytest.mark.parametrize("state", ["", "nonsense", "gAAAAABnonsense", "ä"])
async def test_forged_state_is_refused(portal: Portal, state: str) -> None:
    answer = await Person(portal).client.get(CALLBACK_PATH, params={"state": state, "code": "code-ann"})
    assert answer.status_code == 401


async def test_unknown_code_is_refused(portal: Portal) -> None:
    person = Person(portal)
    answer = await person.client.get(CALLBACK_PATH, params={"state": await _state(person), "code": "stale"})
    assert answer.status_code == 401
    assert "sign in again" in answer.text


async def test_refusal_by_the_hub_is_shown(portal: Portal) -> None:
    answer = await Person(portal).client.get(CALLBACK_PATH, params={"error": "access_denied<script>"})
    assert answer.status_code == 401
    assert "access_denied&lt;script&gt;" in answer.text


@pytest.mark.parametrize("path", ["https://evil.test/", "//evil.test", "/hub/logout", f"{PORTAL_PATH}a\\b"])
async def test_sign_in_redirects_only_to_the_portal(portal: Portal, path: str) -> None:
    person = Person(portal)
    await person.get("")
    browser = person.client.cookies["commonage-sign-in"]
    state = portal.auth._seal("sign-in", {"browser": browser, "next": path})
    answer = await person.client.get(CALLBACK_PATH, params={"state": state, "code": "code-ann"})
    assert answer.headers["location"] == PORTAL_PATH


async def test_a_restart_signs_nobody_out_and_another_secret_everybody(portal: Portal, clock: FakeClock) -> None:
    sealed = portal.auth._seal("session", {"token": "token-ann", "nonce": "n"})
    again = PortalAuth(FakeIdentity(), clock, SECRET)
    assert again._open("session", sealed, SESSION_S) is not None
    assert PortalAuth(FakeIdentity(), clock, "another")._open("session", sealed, SESSION_S) is None


async def test_a_session_ends_with_its_time(ann: Person, clock: FakeClock) -> None:
    clock._now += SESSION_S + 1
    assert (await ann.get("workloads")).status_code == 302


async def test_a_session_ends_with_its_token(portal: Portal, ann: Person) -> None:
    portal.identity.revoked.add("token-ann")
    assert (await ann.get("workloads")).status_code == 302
    part = await ann.get("live/workloads", HX_Request="true")
    assert part.status_code == 401
    assert part.headers["hx-refresh"] == "true"


async def test_sign_in_state_is_no_session(portal: Portal) -> None:
    person = Person(portal)
    person.client.cookies.set("commonage-session", await _state(person))
    assert (await person.get("workloads")).status_code == 302


async def test_unavailable_hub_gives_error_page(portal: Portal, ann: Person) -> None:
    portal.identity.down = True
    answer = await ann.get("workloads")
    assert answer.status_code == 503
    assert "the hub does not answer now" in answer.text
    assert "Try again" in answer.text


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({"sec_fetch_site": "cross-site"}, None),
        ({"sec_fetch_site": "same-site"}, None),
        ({"origin": "http://evil.test"}, None),
        ({}, ""),
        ({}, "0" * 64),
        ({}, "ä"),
    ],
)
async def test_a_forged_form_changes_nothing(ann: Person, headers: dict[str, str], token: str | None) -> None:
    data = {} if token is None else {"csrf": token}
    answer = await ann.post("sign-out", data, **headers)
    assert answer.status_code == 403
    assert (await ann.get("workloads")).status_code == 200


async def test_csrf_token_of_another_user_is_refused(portal: Portal, ann: Person, root: Person) -> None:
    answer = await root.post("nodes/local/gpu-1/drain", {"csrf": await ann.csrf(), "drain": "1"})
    assert answer.status_code == 403


@pytest.mark.parametrize("headers", [{"sec_fetch_site": "same-origin"}, {"origin": "http://portal.test"}, {}])
async def test_signing_out_forgets_the_session_and_goes_on_to_the_hub(ann: Person, headers: dict[str, str]) -> None:
    answer = await ann.post("sign-out", **headers)
    assert answer.status_code == 200
    assert "/hub/logout" in answer.text
    assert (await ann.get("workloads")).status_code == 302


@pytest.mark.parametrize("dest", ["empty", "iframe", "object", "image", "serviceworker"])
async def test_pages_are_shown_to_people_and_not_to_scripts_and_frames_of_others(portal: Portal, dest: str) -> None:
    person = Person(portal)
    await person.sign_in("ann")
    refused = await person.get("launch", Sec_Fetch_Dest=dest, Sec_Fetch_Site="same-origin")
    assert refused.status_code == 403
    token = await person.csrf()
    assert token
    assert token not in refused.text
    shown = await person.get("launch", Sec_Fetch_Dest=dest, Sec_Fetch_Site="same-origin", X_CSRF_Token=token)
    assert shown.status_code == 200
    assert (await person.get("launch", Sec_Fetch_Dest="document")).status_code == 200


async def test_refused_form_does_not_reveal_the_token(portal: Portal) -> None:
    person = Person(portal)
    await person.sign_in("ann")
    refused = await person.post("launch", {"csrf": "wrong"})
    assert refused.status_code == 403
    assert await person.csrf() not in refused.text


async def test_cookies_have_a_prefix_where_servers_of_users_have_names_below_ours(
    portal: Portal, clock: FakeClock
) -> None:
    auth = PortalAuth(FakeIdentity(), clock, SECRET, host_cookies=True)
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "scheme": "https"})
    cookie = auth.to_sign_in(request, PORTAL_PATH).headers["set-cookie"]
    assert cookie.startswith("__Host-commonage-sign-in=")
    assert "; path=/;" in cookie.lower()
    assert "secure" in cookie.lower()
    assert "domain" not in cookie.lower()
    forged = [(b"cookie", b"commonage-session=forged")]
    with pytest.raises(SignInNeeded):
        await auth.visitor(Request({"type": "http", "headers": forged}))
