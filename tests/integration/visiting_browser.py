"""Sign-in with Chromium at a deployed host, with its own identity providers: part of `tests.integration.visiting`.

The providers speak HTTPS and LDAPS, with a certificate of an authority that only the host's own file names.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from anyio.from_thread import start_blocking_portal
from playwright.sync_api import Page
from tests.acceptance.browser import PATIENCE_MS, chromium
from tests.fakes.identity_providers import GitHub, OpenId, served
from tests.fakes.learning_platform import CLAIM, LearningPlatform
from tests.fakes.sign_in_guide import github_at, openid_at

URL = "https://localhost"
_PORT = 9443
PROVIDER = f"https://127.0.0.1:{_PORT}"
_WITHIN_S = 60
_FORM = 'id="username_input"'
_SHOWN = {"github": "GitHub", "generic-oauth": "Example University", "ldap": _FORM, "lti": "Moodle", "pam": _FORM}

OPTIONS: dict[str, dict[str, object]] = {
    "github": github_at(PROVIDER),
    "generic-oauth": openid_at(PROVIDER),
    "ldap": {"server_address": "localhost", "server_port": _PORT, "tls_strategy": "on_connect"},
    "pam": {},
    "lti": {
        "issuer": LearningPlatform.ISSUER,
        "client_id": LearningPlatform.CLIENT,
        "deployment_ids": {LearningPlatform.DEPLOYMENT},
        "authorize_url": f"{PROVIDER}/auth",
        "jwks_url": f"{PROVIDER}/keys",
    },
}
"""Settings of each authenticator of docs/operate/sign-in.md for the providers here."""


def signed_in_by(authenticator: str, certificate: str, token: str) -> dict[str, Any]:
    """Sign in as a user who may, and as one who may not. Returns the user whom the hub greets, with the groups that it
    knows, and what the other one reads.
    """
    with httpx2.Client(base_url=f"{URL}/hub/", headers={"Authorization": f"token {token}"}, timeout=30) as hub:
        _await(hub, authenticator)
        with _PROVIDERS[authenticator](certificate) as (user, admitted, refused), chromium() as browser:
            page = browser.new_page(base_url=URL, ignore_https_errors=True)
            page.set_default_timeout(PATIENCE_MS)
            admitted(page)
            page.goto("/hub/token")
            greeted = user in page.locator("#login_widget").inner_text()
            page.context.clear_cookies()
            refused(page)
            said = page.locator(".error, .login_error").inner_text()
        groups = sorted(hub.get(f"api/users/{user}").raise_for_status().json()["groups"])
    return {"user": user if greeted else None, "groups": groups, "refusal": said}


def _await(hub: httpx2.Client, authenticator: str) -> None:
    """Until the hub has been started with it, which its sign-in page shows."""
    give_up = time.monotonic() + _WITHIN_S
    while True:
        page = ""
        with suppress(httpx2.HTTPError):
            page = hub.get("login").text
        if _SHOWN[authenticator] in page:
            return
        assert time.monotonic() < give_up, page
        time.sleep(0.2)


Steps = tuple[str, Callable[[Page], None], Callable[[Page], None]]


def _clicks(page: Page) -> None:
    page.goto("/hub/login?next=%2Fhub%2Ftoken")
    page.get_by_role("button", name="Sign in with").click()


def _fills_in(page: Page, user: str, password: str) -> None:
    page.goto("/hub/login?next=%2Fhub%2Ftoken")
    page.locator("#username_input").fill(user)
    page.locator("#password_input").fill(password)
    page.locator("#login_submit").click()


def _by_password(user: str, password: str, other: str) -> Steps:
    def admitted(page: Page) -> None:
        _fills_in(page, user, password)
        page.wait_for_url("**/hub/token")

    return user, admitted, lambda page: _fills_in(page, other, f"secret of {other}")


@contextmanager
def _serving(provider: Any, certificate: str) -> Iterator[None]:
    made = served(provider, port=_PORT, certificate=certificate)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(made):
        yield


@contextmanager
def _with_a_click(provider: Any, certificate: str, user: str, other: str) -> Iterator[Steps]:
    def as_visitor(visitor: str, page: Page) -> None:
        provider.visitor = visitor
        _clicks(page)

    def admitted(page: Page) -> None:
        as_visitor(user, page)
        page.wait_for_url("**/hub/token")

    with _serving(provider, certificate):
        yield user, admitted, lambda page: as_visitor(other, page)


def _github(certificate: str) -> Any:
    return _with_a_click(GitHub(), certificate, "mona", "mallory")


def _openid(certificate: str) -> Any:
    return _with_a_click(OpenId({"ada": ["gpu-users", "optics"]}), certificate, "ada", "bob")


@contextmanager
def _ldap(certificate: str) -> Iterator[Steps]:
    program = Path(__file__).parents[1] / "fakes" / "ldap_server.py"
    directory = subprocess.Popen([sys.executable, program, str(_PORT), certificate])
    try:
        yield _by_password("ada", "secret of ada", "bob")
    finally:
        directory.terminate()
        directory.wait(10)


@contextmanager
def _pam(certificate: str) -> Iterator[Steps]:
    yield _by_password("ada", "secret of ada", "bob")


@contextmanager
def _lti(certificate: str) -> Iterator[Steps]:
    platform = LearningPlatform()
    platform.tool, platform.target = URL, f"{URL}/services/commonage/"

    def opens_the_link(page: Page) -> None:
        page.goto(f"{PROVIDER}/course")
        page.locator("#tool").click()
        page.wait_for_url(lambda url: urlsplit(url).hostname == "localhost")

    def admitted(page: Page) -> None:
        opens_the_link(page)
        page.wait_for_url("**/services/commonage/")

    def refused(page: Page) -> None:
        platform.changed = {f"{CLAIM}context": {"id": "43", "title": "Cooking"}}
        opens_the_link(page)

    with _serving(platform, certificate):
        yield f"lti-{platform.visitor}", admitted, refused


_PROVIDERS = {"github": _github, "generic-oauth": _openid, "ldap": _ldap, "pam": _pam, "lti": _lti}
