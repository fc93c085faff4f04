"""Sign-in from a learning platform: forged and replayed launches at a real hub, and an attacker at the same site."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx2
import jwt
import pytest
from tests.fakes.identity_providers import served
from tests.fakes.learning_platform import CLAIM, PROFESSOR, ROLE, LearningPlatform, new_key
from tests.integration.hub_installation import Installation

pytestmark = pytest.mark.anyio
HUB, HELPER = "https://hub.example.test", "gpu-help@example.org"
OVERVIEW = "/services/commonage/"


@dataclass
class World:
    hub: Installation
    platform: LearningPlatform


@pytest.fixture(scope="module")
async def module_world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("lti")
    async with served(LearningPlatform()) as (platform, url):
        platform.tool, config = HUB, folder / "sign-in.py"
        options = {
            "issuer": platform.ISSUER,
            "client_id": platform.CLIENT,
            "deployment_ids": {platform.DEPLOYMENT},
            "authorize_url": f"{url}/auth",
            "jwks_url": f"{url}/keys",
            "allowed_courses": {platform.COURSE: "ml101", "43": "stats"},
        }
        config.write_text("".join(f"c.LtiAuthenticator.{name} = {value!r}\n" for name, value in options.items()))
        settings = {"authenticator_class": "lti", "hub_config": config, "contact": HELPER, "public_url": HUB}
        settings |= {"admin_users": "lti-1", "max_failed_sign_ins_per_minute": 2}
        async with Installation(folder / "data", **settings) as hub:
            yield World(hub, platform)


@pytest.fixture
def world(module_world: World) -> World:
    platform = module_world.platform
    platform.visitor, platform.roles, platform.changed = "2", ["Learner"], {}
    platform.target, platform.signs_with = f"{HUB}{OVERVIEW}", platform.key
    return module_world


class Browser:
    """Follows one launch step by step, over plain HTTP behind an edge. httpx sends no secure cookies there."""

    def __init__(self, world: World, **headers: str) -> None:
        self.world, self.cookies = world, SimpleCookie()
        self.client = httpx2.AsyncClient(base_url=world.hub.url, headers=headers, timeout=30, trust_env=False)

    async def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        cookie = "; ".join(f"{one.key}={one.coded_value}" for one in self.cookies.values())
        answer = await self.client.request(method, path, headers={"Cookie": cookie}, **options)
        for line in answer.headers.get_list("set-cookie"):
            self.cookies.load(line)
        return answer

    async def begin(self, **changed: str) -> httpx2.Response:
        return await self.ask("POST", "/hub/lti/login", data=self.world.platform.initiation | changed)

    async def message(self) -> dict[str, str]:
        """Begin a sign-in; the form that the platform makes the browser post."""
        begun = await self.begin()
        assert begun.status_code == 303, begun.text
        query = {name: values[0] for name, values in parse_qs(urlsplit(begun.headers["location"]).query).items()}
        assert query["redirect_uri"] == f"{HUB}/hub/lti/launch"
        return {"state": query["state"], "id_token": self.world.platform.message(query["nonce"])}

    async def launch(self, form: dict[str, str]) -> httpx2.Response:
        return await self.ask("POST", "/hub/lti/launch", data=form)

    async def sign_in(self) -> httpx2.Response:
        return await self.launch(await self.message())

    async def user(self) -> str | None:
        """The user who is signed in at the hub."""
        found = re.search(r'user: "([^"]+)"', (await self.ask("GET", "/hub/token")).text)
        return found and found[1]


async def is_refused(browser: Browser, answer: httpx2.Response, *said: str, status: int = 403) -> None:
    assert answer.status_code == status, answer.text
    for one in said:
        assert one in answer.text, answer.text
    assert await browser.user() is None


async def test_a_launch_signs_in_and_leads_to_the_page_that_the_platform_signed(world: World) -> None:
    browser = Browser(world)
    world.platform.target = f"{HUB}/services/commonage/classes/ml101/session?a=b"
    answer = await browser.sign_in()
    assert answer.status_code == 303
    target = quote("/services/commonage/classes/ml101/session?a=b", safe="")
    assert answer.headers["location"] == f"/services/commonage/sign-in?next={target}"
    assert await browser.user() == "lti-2"
    assert not await world.hub.identity.is_admin("lti-2")


async def test_cookie_of_a_sign_in_is_for_this_host_and_may_come_from_the_platforms_form(world: World) -> None:
    begun = await Browser(world).begin()
    [cookie] = [line for line in begun.headers.get_list("set-cookie") if "commonage-lti" in line]
    assert cookie.startswith("__Host-commonage-lti=")
    parts = {one.strip().lower() for one in cookie.split(";")[1:]}
    assert parts >= {"secure", "httponly", "samesite=none", "path=/", "max-age=600"}
    assert not [one for one in parts if one.startswith("domain")]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"aud": "another-tool"}, "client id"),
        ({"aud": ["commonage-tool", "another-tool"]}, "client id"),
        ({"aud": ["commonage-tool", "another-tool"], "azp": "another-tool"}, "client id"),
        ({"iss": "https://evil.example"}, "issuer"),
        ({"exp": int(time.time()) - 3600}, "has expired"),
        ({"iat": int(time.time()) - 7200, "exp": int(time.time()) + 7200}, "has expired"),
        ({"iat": int(time.time()) + 7200, "exp": int(time.time()) + 9000}, "has expired"),
        ({"exp": None}, "exp"),
        ({"nonce": "of-another-sign-in"}, "did not begin in this browser"),
        ({"nonce": None}, "nonce"),
        ({f"{CLAIM}deployment_id": "8"}, "the deployment &#34;8&#34;"),
        ({f"{CLAIM}deployment_id": None}, "deployment_ids"),
        ({f"{CLAIM}message_type": "LtiDeepLinkingRequest"}, "deep linking"),
        ({f"{CLAIM}version": "1.1"}, "version 1.1"),
        ({"sub": None}, "did not send `sub`"),
        ({f"{CLAIM}context": {"id": "99", "title": "<b>Cooking</b>"}}, "&lt;b&gt;Cooking&lt;/b&gt;&#34; (id 99)"),
        ({f"{CLAIM}context": None}, "outside of all courses"),
    ],
)
async def test_a_message_that_is_not_for_this_sign_in_is_refused_and_says_what_to_do(
    world: World, changed: dict[str, Any], said: str
) -> None:
    browser = Browser(world)
    world.platform.changed = changed
    await is_refused(browser, await browser.sign_in(), said, HELPER)


async def test_a_message_that_somebody_else_signed_is_refused(world: World) -> None:
    browser = Browser(world)
    world.platform.signs_with = new_key()
    await is_refused(browser, await browser.sign_in(), "signature", "jwks_url")
    # Messages without a signature, or signed with the public key, are refused, too.
    for algorithm, key in (("none", None), ("HS256", "x" * 32)):
        form = await browser.message()
        claims = jwt.decode(form["id_token"], options={"verify_signature": False})
        form["id_token"] = jwt.encode(claims, key, algorithm=algorithm, headers={"kid": "1"})
        await is_refused(browser, await browser.launch(form), "signature")
    for text in ("", "nonsense", "a.b.c"):
        form = await browser.message() | {"id_token": text}
        await is_refused(browser, await browser.launch(form), "LTI 1.3 does not allow", HELPER)


async def test_a_launch_is_used_once(world: World) -> None:
    browser, copy = Browser(world), Browser(world)
    form = await browser.message()
    copy.cookies = SimpleCookie(browser.cookies.output(header="", sep=";"))
    assert (await browser.launch(form)).status_code == 303
    await is_refused(Browser(world), await Browser(world).launch(form), "did not begin in this browser")
    # The browser has forgotten the cookie; a thief who copied it before comes too late.
    assert (await browser.launch(form)).status_code == 403
    await is_refused(copy, await copy.launch(form), "was used before")


async def test_an_attackers_launch_does_not_sign_in_the_browser_of_another(world: World) -> None:
    attacker, victim = Browser(world), Browser(world)
    world.platform.visitor = "666"
    form = await attacker.message()
    await is_refused(victim, await victim.launch(form), "did not begin in this browser")
    await victim.begin()
    await is_refused(victim, await victim.launch(form), "did not begin in this browser")
    # The attacker's state with the victim's cookie, and the reverse.
    begun = await victim.message()
    await is_refused(victim, await victim.launch(form | {"state": begun["state"]}), "did not begin in this browser")


async def test_what_is_posted_to_the_form_or_the_api_of_the_hub_is_no_launch(world: World) -> None:
    claims = {"sub": "1", "username": "lti-1", "password": "x", f"{CLAIM}context": {"id": "42"}}
    api = Browser(world)
    for _ in range(2):
        answer = await api.ask("POST", "/hub/api/users/lti-1/tokens", json={"auth": claims})
        assert answer.status_code == 403
    page = await api.ask("GET", "/hub/login")
    token = page.text.partition('name="_xsrf" value="')[2].partition('"')[0] or api.cookies["_xsrf"].value
    form = {"_xsrf": token, **{name: str(value) for name, value in claims.items()}}
    assert (await api.ask("POST", "/hub/login", data=form)).status_code in (403, 429)
    assert await api.user() is None
    # None of these count against those who come from the platform.
    assert (await Browser(world).sign_in()).status_code == 303


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/services/commonage/",
        "https://hub.example.test.evil.example/services/commonage/",
        "https://hub.example.test@evil.example/services/commonage/",
        "//evil.example/services/commonage/",
        "https://hub.example.test//evil.example",
        "https://hub.example.test/hub/logout",
        "https://hub.example.test/user/mallory/",
        "javascript:alert(1)",
        "",
    ],
)
async def test_a_link_elsewhere_leads_to_the_overview(world: World, target: str) -> None:
    world.platform.target = target
    answer = await Browser(world).sign_in()
    assert answer.headers["location"] == f"/services/commonage/sign-in?next={quote(OVERVIEW, safe='')}"


async def test_the_unsigned_target_and_next_are_not_used(world: World) -> None:
    browser = Browser(world)
    begun = await browser.begin(target_link_uri="https://evil.example/", next="https://evil.example/")
    query = parse_qs(urlsplit(begun.headers["location"]).query)
    form = {"state": query["state"][0], "id_token": world.platform.message(query["nonce"][0])}
    answer = await browser.ask("POST", "/hub/lti/launch?next=https://evil.example/", data=form)
    assert answer.headers["location"] == f"/services/commonage/sign-in?next={quote(OVERVIEW, safe='')}"


@pytest.mark.parametrize(
    ("changed", "said", "status"),
    [
        ({"iss": "https://evil.example"}, "takes no sign-ins from the platform", 403),
        ({"client_id": "another"}, "client id &#34;another&#34;", 403),
        ({"login_hint": ""}, "login_hint", 400),
    ],
)
async def test_a_login_that_another_platform_begins_is_refused(
    world: World, changed: dict[str, str], said: str, status: int
) -> None:
    browser = Browser(world)
    await is_refused(browser, await browser.begin(**changed), said, status=status)


async def test_an_error_of_the_platform_is_shown(world: World) -> None:
    browser = Browser(world)
    form = {"state": (await browser.message())["state"], "error": "login_required", "error_description": "<b>"}
    await is_refused(browser, await browser.launch(form), "login_required &lt;b&gt;")


async def test_only_a_role_in_the_course_makes_a_teacher_and_courses_leave_other_groups(world: World) -> None:
    async def groups() -> list[str]:
        account = await world.hub.identity.account("lti-9")
        assert account is not None
        return sorted(account.groups)

    platform, browser = world.platform, Browser(world)
    platform.visitor = "9"
    platform.changed = {f"{CLAIM}roles": [f"{ROLE}Learner", PROFESSOR]}
    await browser.sign_in()
    assert await groups() == ["ml101"]
    platform.changed = {
        f"{CLAIM}roles": [f"{ROLE}Instructor"],
        f"{CLAIM}context": {"id": "43", "title": "ml101:teachers", "label": "gpu-admins"},
    }
    await browser.sign_in()
    assert await groups() == ["ml101", "stats", "stats:teachers"]
    platform.changed[f"{CLAIM}roles"] = [f"{ROLE}Learner"]
    await browser.sign_in()
    assert await groups() == ["ml101", "stats"]


async def test_ids_that_differ_in_upper_case_only_are_two_users(world: World) -> None:
    seen = set()
    for visitor in ("Ab1", "aB1", "ab1"):
        world.platform.visitor = visitor
        browser = Browser(world)
        assert (await browser.sign_in()).status_code == 303
        seen.add(await browser.user())
    assert len(seen) == 3


async def test_refusals_of_a_whole_class_do_not_keep_others_out(world: World) -> None:
    edge = {"X-Forwarded-For": "203.0.113.5"}
    for visitor in range(30, 45):
        world.platform.visitor = str(visitor)
        world.platform.changed = {f"{CLAIM}context": {"id": "99"}}
        assert (await Browser(world, **edge).sign_in()).status_code == 403
    world.platform.changed = {}
    assert (await Browser(world, **edge).sign_in()).status_code == 303


async def test_a_platform_at_the_same_site_may_post_and_other_pages_there_may_not(world: World) -> None:
    same_site = {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "document", "Sec-Fetch-Mode": "navigate"}
    browser = Browser(world, **same_site)
    assert (await browser.sign_in()).status_code == 303
    # The proxy leads these to a page of the portal; its stub here takes no POST.
    page = await browser.ask("POST", "/hub/login", data={})
    assert page.json() == {"detail": "Method Not Allowed"}
    framed = Browser(world, **same_site | {"Sec-Fetch-Dest": "iframe"})
    assert (await framed.begin()).json() == {"detail": "Method Not Allowed"}


async def test_the_keys_are_read_once_for_many(world: World) -> None:
    before = world.platform.keys_read
    for _ in range(3):
        await Browser(world).sign_in()
    assert world.platform.keys_read <= before + 1


async def test_the_tool_describes_itself(world: World) -> None:
    found = (await Browser(world).ask("GET", "/hub/lti/config")).json()
    assert found["oidc_initiation_url"] == f"{HUB}/hub/lti/login"
    assert found["redirect_uris"] == [f"{HUB}/hub/lti/launch"]
    assert found["target_link_uri"] == f"{HUB}{OVERVIEW}"
    keys = await Browser(world).ask("GET", urlsplit(found["public_jwk_url"]).path)
    assert keys.json() == {"keys": []}
