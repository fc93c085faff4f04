"""One link to a user's own server must not give its owner the reader's account, or the platform.

Mallory's session is a real Jupyter server with a handler of hers. A member and an admin, signed in with a real browser,
open a link to it, and her page tries what a script can: where sessions have origins of their own, as `commonage up` and
an edge with HTTPS give them, and where they share the origin of hub and portal.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Page, Response, expect
from tests.acceptance.browser import Problems, await_live, await_page, chromium, go, load, person, retry
from tests.acceptance.served import ADMIN_PASSWORD, USERS_PASSWORD, Served, served
from tests.fakes.waiting import wait_until
from tests.security.malicious_server import HUB_TOKEN, PORTAL_TOKEN, MaliciousServer

from commonage.server.processes.ports import free_port
from commonage.wire.hub import API_PATH, PORTAL_PATH

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
NAME = "hub.commonage.test"
BROWSER = (f"--host-resolver-rules=MAP *.commonage.test 127.0.0.1,MAP {NAME} 127.0.0.1", "--ignore-certificate-errors")
SECRET_COOKIES = ("commonage-session", "commonage-sign-in", "hub-login", "_xsrf")


@dataclass(frozen=True)
class Deployment:
    """An installation, as browsers reach it: hub and portal at `hub`, Mallory's server at `mallory.link`."""

    installation: Served
    hub: str
    sessions: str
    mallory: MaliciousServer


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium(*BROWSER) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all deployments, one after the other: the environment of sessions is made once."""
    return tmp_path_factory.mktemp("origins")


@contextlib.contextmanager
def _deployed(folder: Path, hub: str, sessions: str, port: int, **variables: str) -> Iterator[Deployment]:
    with served(folder, "--gpus", "none", port=port, variables=variables) as installation:
        mallory = MaliciousServer(installation, sessions.replace("*", "mallory"), hub)
        mallory.start()
        yield Deployment(installation, hub, sessions, mallory)
        mallory.stop()


@contextlib.contextmanager
def _by_name_on_this_node(folder: Path) -> Iterator[Deployment]:
    """As `make up` has it."""
    port = free_port()
    with _deployed(folder, f"http://localhost:{port}", f"http://*.localhost:{port}", port) as made:
        yield made


@contextlib.contextmanager
def _by_https(folder: Path) -> Iterator[Deployment]:
    """Behind the Caddy of deploy/, by its own Caddyfile."""
    port, edge = free_port(), free_port()
    settings = {"COMMONAGE_PUBLIC_URL": f"https://{NAME}:{edge}", "COMMONAGE_SESSION_HOST": f"*.{NAME}"}
    with (
        _caddy(folder / "caddy", COMMONAGE_SITE=f"{NAME}:{edge}", COMMONAGE_SESSION_HOST=f"*.{NAME}:{edge}", port=port),
        _deployed(folder, f"https://{NAME}:{edge}", f"https://*.{NAME}:{edge}", port, **settings) as made,
    ):
        yield made


@contextlib.contextmanager
def _caddy(folder: Path, *, port: int, **variables: str) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    uv = Path(sys.executable).with_name("uv")
    wanted = ["--require-hashes", "--requirement", ROOT / "deploy/caddy/requirements.txt"]
    subprocess.run([uv, "pip", "install", "--quiet", "--target", folder / "program", *wanted], check=True)
    [program] = [one for one in folder.glob("program/**/caddy") if one.is_file() and os.access(one, os.X_OK)]
    file = folder / "Caddyfile"
    written = (ROOT / "deploy/caddy/Caddyfile").read_text().replace("/var/lib/caddy", str(folder / "data"))
    # Port 80 belongs to the tests of `--domain`, which may run at the same time.
    file.write_text(written.replace("\tadmin off\n", f"\tadmin off\n\thttp_port {free_port()}\n"))
    environment = {**os.environ, **variables, "COMMONAGE_PORT": str(port), "HOME": str(folder)}
    with (folder / "log").open("ab") as log:
        running = subprocess.Popen(
            [program, "run", "--config", file, "--adapter", "caddyfile"], env=environment, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        running.terminate()
        running.wait(30)


@contextlib.contextmanager
def _at_one_origin(folder: Path) -> Iterator[Deployment]:
    """Protection that remains without a wildcard name."""
    port = free_port()
    here = f"http://127.0.0.1:{port}"
    with _deployed(folder, here, here, port, COMMONAGE_SESSION_HOST="none") as made:
        yield made


@pytest.fixture(scope="module", params=[_by_name_on_this_node, _by_https, _at_one_origin])
def deployment(request: pytest.FixtureRequest, folder: Path) -> Iterator[Deployment]:
    with request.param(folder) as running:
        yield running


@pytest.fixture
def alice(browser: Browser, deployment: Deployment) -> Iterator[Page]:
    with person(browser, deployment.hub, "alice", USERS_PASSWORD) as (page, _):
        yield page


@pytest.fixture
def admin(browser: Browser, deployment: Deployment) -> Iterator[Page]:
    with person(browser, deployment.hub, "admin", ADMIN_PASSWORD) as (page, _):
        yield page


def _open_link(page: Page, mallory: MaliciousServer, query: str = "") -> Page:
    opened = page.context.new_page()
    answer = load(opened, f"{mallory.link}page{query}")
    assert answer is not None and answer.status == 200
    assert opened.title() == "Evil"
    return opened


def test_member_who_opens_link_keeps_their_account(deployment: Deployment, alice: Page) -> None:
    mallory = deployment.mallory
    evil = _open_link(alice, mallory)
    loot = mallory.read(evil, f"{PORTAL_PATH}launch", PORTAL_TOKEN)
    loot |= {f"hub: {way}": token for way, token in mallory.read(evil, "/hub/home", HUB_TOKEN).items()}
    mallory.submit_job(evil, next(iter(loot.values()), ""))
    assert [one.name for one in deployment.installation.client("alice").workloads(kind="job")] == []
    assert loot == {}


def test_admin_who_opens_link_keeps_platform(deployment: Deployment, admin: Page) -> None:
    mallory, hub = deployment.mallory, deployment.installation.hub
    evil = _open_link(admin, mallory)
    loot = mallory.read(evil, "/hub/admin", HUB_TOKEN)
    loot |= {f"portal: {way}": token for way, token in mallory.read(evil, f"{PORTAL_PATH}nodes", PORTAL_TOKEN).items()}
    mallory.take_over_platform(evil, next(iter(loot.values()), ""))
    assert hub("GET", "/users/mallory").json()["admin"] is False
    tokens = hub("GET", "/users/admin/tokens").json()["api_tokens"]
    assert [one for one in tokens if one["note"] == "stolen"] == []
    assert loot == {}


def test_answers_of_api_are_not_read_with_cookies(deployment: Deployment, admin: Page) -> None:
    mallory = deployment.mallory
    evil = _open_link(admin, mallory)
    for path in ("/hub/api/user", "/hub/api/users", f"{API_PATH}/workloads", f"{PORTAL_PATH}live/overview"):
        assert mallory.read(evil, path, '("name": ?"admin"|"items"|<hx-partial)') == {}


def test_service_worker_does_not_take_over_origin(deployment: Deployment, alice: Page) -> None:
    evil = _open_link(alice, deployment.mallory)
    scope = deployment.mallory.takes_over_origin(evil)
    assert not f"{deployment.hub}{PORTAL_PATH}".startswith(scope or "nothing")


def _forge_cookies(evil: Page, domain: str) -> None:
    """Set cookies of the names of hub and portal for a name above the page's own, in all ways."""
    for name in ("commonage-session", "jupyterhub-hub-login"):
        for path in ("/", "/hub/", PORTAL_PATH):
            for prefix, end in (("", ""), ("", "; secure"), ("__Host-", "; secure")):
                text = f"{prefix}{name}=forged; path={path}{end}; domain={domain}"
                evil.evaluate("(text) => { document.cookie = text }", text)


def test_link_signs_nobody_out_or_in(deployment: Deployment, alice: Page) -> None:
    evil = _open_link(alice, deployment.mallory, "?clear=1")
    if deployment.sessions != deployment.hub:  # at one origin, scripts may set every cookie: docs/operate/origins.md
        _forge_cookies(evil, deployment.hub.partition("://")[2].partition(":")[0])
    go(alice, "workloads")
    expect(alice.get_by_role("heading", name="My workloads")).to_be_visible()
    expect(alice.locator(".menu-who strong")).to_have_text("alice")
    load(alice, f"{deployment.hub}/hub/home")
    expect(alice.locator("body")).to_contain_text("alice")


def test_secret_cookies_do_not_reach_users_servers(deployment: Deployment, alice: Page) -> None:
    _open_link(alice, deployment.mallory)
    received = deployment.mallory.received_cookies()
    assert [name for name in SECRET_COOKIES if name in received] == []


def test_own_session_opens_from_portal(deployment: Deployment, alice: Page) -> None:
    installation = deployment.installation
    options = {"environment": "notebook", "cpus": "0.5", "memory": "1GiB"}
    assert installation.hub("POST", "/users/alice/server", json=options).status_code in (201, 202)
    wait_until(lambda: list(installation.client("alice").workloads(kind="session", state=["running"])), within_s=300)
    try:
        go(alice, "workloads")
        own = f"{deployment.sessions.replace('*', 'alice')}/user/alice/lab**"
        link = alice.get_by_role("link", name="Open").first
        address = link.get_attribute("href") or ""
        with alice.context.expect_page() as opened:
            link.click()
        lab = opened.value

        def is_shown() -> None:
            lab.wait_for_url(own, timeout=60_000)
            expect(lab.locator("#jp-main-dock-panel")).to_be_visible(timeout=60_000)

        await_page(lab, address, is_shown)
        before = f"{deployment.hub}/user/alice/lab"  # its name before sessions had host names
        load(alice, before)
        await_page(alice, before, lambda: alice.wait_for_url(own, timeout=60_000))
    finally:
        installation.hub("DELETE", "/users/alice/server")
        wait_until(lambda: not list(installation.client("alice").workloads(state=["running"])))


def test_portal_is_live(deployment: Deployment, alice: Page) -> None:
    problems = Problems()
    problems.listen(alice)
    go(alice, "")
    await_live(alice)

    def request_a_token() -> int:
        load(alice, f"{deployment.hub}/hub/token", wait_until="networkidle")  # its scripts send the form
        with alice.expect_response("**/hub/api/users/alice/tokens?*") as made:
            alice.locator("#request-token-form button[type=submit]").click()
        return made.value.status

    assert retry(request_a_token) == 201
    assert problems.found == []


def test_admins_are_warned_where_origins_are_shared(deployment: Deployment, admin: Page, alice: Page) -> None:
    shared = deployment.sessions == deployment.hub
    text = "Sessions share one origin with hub and portal"
    go(admin, "")
    expect(admin.get_by_text(text)).to_have_count(int(shared))
    expect(alice.get_by_text(text)).to_have_count(0)
    assert (text in deployment.installation.output.rpartition("is ready after")[2]) is shared
    examined = deployment.installation.cli("doctor", "--data-dir", str(deployment.installation.data)).stdout
    assert ("sessions share the origin" in examined) is shared


def test_programs_reach_api_at_any_address_and_people_are_led_to_right_one(deployment: Deployment) -> None:
    installation = deployment.installation
    assert installation.cli("ps", token=installation.token("alice")).returncode == 0
    page = httpx2.get(f"{installation.url}{PORTAL_PATH}launch", headers={"Accept": "text/html,*/*"}, timeout=60)
    if deployment.sessions == deployment.hub:
        assert "/hub/api/oauth2/authorize" in page.headers["location"]
        return
    assert page.headers["location"] == f"{deployment.hub}{PORTAL_PATH}launch"
    host = deployment.sessions.partition("://")[2].replace("*", "mallory")
    for path in ("/hub/home", f"{PORTAL_PATH}launch", f"{API_PATH}/health"):
        at_session = httpx2.get(f"{installation.url}{path}", headers={"Host": host}, timeout=60)
        assert (at_session.status_code, at_session.headers["location"]) == (302, f"{deployment.hub}{path}")
    at_alices = {"Host": host.replace("mallory", "alice")}
    stopped = httpx2.get(f"{installation.url}/user/alice/lab", headers=at_alices, timeout=60)
    assert stopped.headers["location"] == f"{deployment.hub}/hub/user/alice/lab"


def test_refused_page_says_why_and_what_to_do(deployment: Deployment, alice: Page) -> None:
    if deployment.sessions != deployment.hub:
        answer = load(alice, f"{deployment.hub}/services/commonage/refused")
    else:  # JupyterLab's own link to the hub leads there
        evil = _open_link(alice, deployment.mallory)

        def leave() -> Response | None:
            load(evil, f"{deployment.mallory.link}page")
            evil.evaluate("() => { location.href = '/hub/home' }")
            evil.wait_for_url("**/hub/home")
            return evil.reload()

        answer = retry(leave)
        alice = evil
    assert answer is not None and answer.status == 403
    expect(alice.locator("main")).to_contain_text(re.compile("enter (its address|this site.s name)"))
