"""Sessions that another user opens in the browser: the roles of the tenant decide, at every entry point.

A real hub, proxy and Jupyter server; the session runs here, and on an appliance, whose answers come through a tunnel.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.acceptance.browser import chromium, go, load, person
from tests.acceptance.served import ADMIN_PASSWORD, USERS_PASSWORD, Served, served
from tests.fakes.waiting import wait_until

from commonage.sdk.errors import ApiError
from commonage.server.processes.ports import free_port

pytestmark = [pytest.mark.timeout(900), pytest.mark.needs("chromium")]
TENANTS = """
kind: Tenant
name: course
members:
  - {user: grace, role: teacher}
  - {user: vic, role: viewer}
  - {user: alice, role: member}
  - {user: max, role: member}
---
kind: Tenant
name: other
members:
  - {user: olga, role: manager}
---
kind: PlatformRole
name: operator
users: [nils]
"""
SITES = ("local", "clinic")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("visits")
    port = str(free_port())
    address = {
        "COMMONAGE_SITE_ADDRESS": "127.0.0.1",
        "COMMONAGE_SITES_BIND": "127.0.0.1",
        "COMMONAGE_SITES_PORT": port,
        "COMMONAGE_JOINING_BIND": "127.0.0.1",
        "COMMONAGE_JOINING_PORT": str(free_port()),
    }
    flags = ("--gpus", "simulated:1x24GiB")
    with served(folder, *flags, variables=address) as running:
        (folder / "tenants.commonage.yml").write_text(TENANTS)
        admin = running.token("admin", "--admin")
        applied = running.cli("apply", "--yes", "tenants.commonage.yml", token=admin)
        assert applied.returncode == 0, applied.stdout + applied.stderr
        agent = join(running, folder / "clinic", admin)
        try:
            yield running
        finally:
            agent.send_signal(signal.SIGTERM)
            agent.wait(60)


def join(running: Served, folder: Path, admin: str) -> subprocess.Popen[bytes]:
    """Join this machine as the appliance `clinic`, with a data folder of its own, and start its agent."""
    folder.mkdir()
    token = folder / "token"
    made = running.cli("site", "token", "clinic", token=admin)
    assert made.returncode == 0, made.stderr
    token.write_text(made.stdout.strip().splitlines()[-1])
    options = ["--data-dir", str(folder / "data")]
    joined = running.cli("site", "join", "--token-file", str(token), *options)
    assert joined.returncode == 0, joined.stdout + joined.stderr
    command = [sys.executable, "-m", "commonage", "site", "agent", *options]
    environment = {**os.environ, "COMMONAGE_GPUS": "simulated:1x24GiB"}
    with (folder / "agent.log").open("wb") as log:
        agent = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment)
    client = running.client("admin", "--admin")

    def is_there() -> bool:
        assert agent.poll() is None, (folder / "agent.log").read_text()
        return any(node.site == "clinic" for node in client.nodes())

    wait_until(is_there, "the node of the appliance", within_s=120)
    return agent


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def start(installation: Served, site: str) -> str:
    """Alice's session in the tenant `course` on this site; its id once it answers."""
    name = f"on-{site}"
    options = {"environment": "notebook", "cpus": "0.2", "memory": "1GiB", "tenant": "course", "on": {"site": site}}
    alice = installation.client("alice")
    asked = installation.hub("POST", f"/users/alice/servers/{name}", json=options)
    assert asked.status_code in (201, 202), asked.text

    def running() -> str | None:
        server = installation.hub("GET", "/users/alice").json()["servers"].get(name, {})
        found = [one.id for one in alice.workloads(kind="session", state=["running"]) if one.name == name]
        return found[0] if found and server.get("ready") else None

    return wait_until(running, within_s=400)


def open_lab(page: Page, address: str) -> None:
    """JupyterLab, loaded again if a change of the network has cut off one of its files."""
    failures: list[str | None] = []
    page.on("requestfailed", lambda request: failures.append(request.failure))
    menu = page.get_by_role("menubar").first
    load(page, f"{address}lab")
    try:
        expect(menu).to_be_visible(timeout=60_000)
    except AssertionError:
        if "net::ERR_NETWORK_CHANGED" not in failures:
            raise
        load(page, f"{address}lab")
        expect(menu).to_be_visible(timeout=60_000)


def visit(page: Page, address: str) -> int:
    """The status of a session's page for a user who follows a link to it, and agrees to sign in there."""
    answer = load(page, address)
    if page.get_by_role("button", name="Authorize").count():
        with page.expect_navigation() as moved:
            page.get_by_role("button", name="Authorize").click()
        answer = moved.value
    assert answer is not None
    return answer.status


@pytest.mark.parametrize("site", SITES)
def test_a_teacher_opens_a_members_session_and_loses_it_with_the_role(
    installation: Served, browser: Browser, site: str
) -> None:
    workload = start(installation, site)
    alice = installation.client("alice")
    assert alice.workload(workload).site == site
    address = alice.workload(workload).url or ""
    status = f"{address}api/status"

    with person(browser, installation.url, "grace", USERS_PASSWORD) as (page, _):
        assert visit(page, status) == 403, "a role gives no access before the owner is notified"
        go(page, f"workloads/{workload}")
        with page.context.expect_page() as opened:
            page.get_by_role("button", name="Open session of alice").click()
        tab = opened.value
        tab.get_by_role("button", name="Authorize").click()
        expect(tab).to_have_url(re.compile(re.escape(address)))
        assert visit(page, status) == 200
        open_lab(page, address)

        for other in alice.workloads(kind="session", state=["running"]):
            if other.id != workload:
                assert visit(page, f"{other.url}api/status") == 403, "one session was opened, not all"
        told = [event.reason.message for event in alice.event_page(workload).items]
        assert "grace opened this session in the browser." in told
        with person(browser, installation.url, "alice", USERS_PASSWORD) as (own, _):
            go(own, f"workloads/{workload}")
            expect(own.locator("#events")).to_contain_text("grace opened this session")
            expect(own.locator("#facts")).to_contain_text("grace (teacher)")

        (installation.folder / "without.commonage.yml").write_text(TENANTS.replace("user: grace", "user: nobody"))
        admin = installation.token("admin", "--admin")
        try:
            assert installation.cli("apply", "--yes", "without.commonage.yml", token=admin).returncode == 0
            wait_until(lambda: visit(page, status) == 403, within_s=120)
            with pytest.raises(ApiError) as refused:
                installation.client("grace").open_session(workload)
            assert refused.value.status in (403, 404)
        finally:
            assert installation.cli("apply", "--yes", "tenants.commonage.yml", token=admin).returncode == 0


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize(
    ("user", "refusal"), [("vic", 403), ("nils", 403), ("max", 404), ("olga", 404), ("stranger", 404), ("admin", None)]
)
def test_others_are_refused_at_the_session_and_at_its_opening(
    installation: Served, browser: Browser, site: str, user: str, refusal: int | None
) -> None:
    workload = next(one for one in installation.client("alice").workloads(kind="session", state=["running"])
                    if one.name == f"on-{site}")  # fmt: skip
    password = ADMIN_PASSWORD if user == "admin" else USERS_PASSWORD
    with person(browser, installation.url, user, password) as (page, _):
        assert visit(page, f"{workload.url}api/status") == 403, "also for admins: the owner is notified first"
    client = installation.client(user, *(["--admin"] if user == "admin" else []))
    if refusal is None:
        assert client.open_session(workload.id).url == workload.url
        return
    with pytest.raises(ApiError) as refused:
        client.open_session(workload.id)
    assert refused.value.status == refusal
