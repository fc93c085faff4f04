"""Two customers with an appliance each: join, a job, a session through the tunnel, and a link that is cut and restored.

The steps are those of docs/get-started/two-sites.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from tests.acceptance.appliances import CONTROL_PLANE, Appliance, appliances
from tests.acceptance.browser import await_page, await_state, chromium, go, launch, load, overflow, person
from tests.acceptance.kernel import run_notebook
from tests.acceptance.served import ADMIN_PASSWORD, USERS_PASSWORD, Served, served
from tests.fakes.waiting import wait_until

from commonage.server.processes.ports import free_port

pytestmark = [pytest.mark.timeout(900), pytest.mark.needs("chromium"), pytest.mark.needs("docker")]
EXAMPLES = Path(__file__).parents[2] / "examples"
SITES = ("north", "south")
MANAGERS = {"north": "nora", "south": "sara"}
PLATFORM = """
kind: Tenant
name: commons
sites: [local]
"""
CUSTOMER = """---
kind: Tenant
name: {site}
sites: [{site}]
members: [{{user: {manager}, role: manager}}]
"""
COUNTS = "for i in $(seq 40); do echo line $i; sleep 0.5; done"


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Appliance]]:
    with appliances(tmp_path_factory.mktemp("appliances"), *SITES) as made:
        yield made


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, machines: list[Appliance]) -> Iterator[Served]:
    variables = {
        "COMMONAGE_SITE_ADDRESS": CONTROL_PLANE,
        "COMMONAGE_JOINING_PORT": str(free_port()),
        "COMMONAGE_SITES_PORT": str(free_port()),
        "COMMONAGE_GPUS": "simulated:1x24GiB",
    }
    with served(tmp_path_factory.mktemp("two-sites"), variables=variables) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def joined(platform: Served, machines: list[Appliance], browser: Browser) -> list[Appliance]:
    """Both appliances have joined, each with a token from the portal, and their tenants exist."""
    with person(browser, platform.url, "admin", ADMIN_PASSWORD) as (page, problems):
        for machine in machines:
            go(page, "sites")
            page.locator("#name").fill(machine.name)
            page.get_by_role("button", name="Create token").click()
            token = page.locator("#token").inner_text()
            done = machine.commonage("site", "join", "--token-file", "-", stdin=token)
            assert done.returncode == 0, done.stderr
            machine.start()
        admin = platform.client("admin", "--admin")
        wait_until(lambda: {node.site for node in admin.nodes()} == {"local", *SITES}, within_s=60)
        go(page, "sites")
        assert page.get_by_text("Connected").count() == len(SITES)
        assert overflow(page) == []
        assert problems.found == []
    files = platform.folder / "tenants.commonage.yml"
    files.write_text(PLATFORM + "".join(CUSTOMER.format(site=site, manager=MANAGERS[site]) for site in SITES))
    applied = platform.cli("apply", "--yes", str(files), token=platform.token("admin", "--admin"))
    assert applied.returncode == 0, applied.stderr
    return machines


def test_each_manager_sees_and_uses_the_own_appliance_only(
    platform: Served, joined: list[Appliance], browser: Browser
) -> None:
    for site, manager in MANAGERS.items():
        other = next(one for one in SITES if one != site)
        client = platform.client(manager)
        assert {node.site for node in client.nodes()} == {"local", site}
        done = platform.cli(
            "run", "--no-files", "--tenant", site, "--gpus", "6GiB", "--", "cat", "/proc/self/cgroup",
            token=platform.token(manager),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        (job,) = client.workloads(owner=manager)
        assert (job.site, job.node) == (site, "dgx-1")
        with person(browser, platform.url, manager, USERS_PASSWORD) as (page, problems):
            go(page, "nodes")
            expect(page.get_by_text(f"{site}/dgx-1")).to_be_visible()
            assert f"{other}/dgx-1" not in page.content()
            assert load(page, page.url.replace("nodes", "sites")).status == 403  # type: ignore[union-attr]
            problems.found.clear()
    assert list(platform.client("sara").workloads(owner="nora")) == []


def test_session_on_an_appliance_opens_through_the_tunnel(
    platform: Served, joined: list[Appliance], browser: Browser
) -> None:
    # The packages of the environment are downloaded here; the appliances have no way to do it.
    made = platform.cli("run", "--no-files", "--env", "notebook", "--", "true", token=platform.token("alice"))
    assert made.returncode == 0, made.stderr
    with person(browser, platform.url, "nora", USERS_PASSWORD) as (page, problems):
        go(page, "launch")
        page.get_by_text("Scheduling").click()
        workload_id = launch(page, "session", gpus="8GiB")
        await_state(page, "Running", within_s=300)
        session = platform.client("nora").workload(workload_id)
        assert (session.site, session.node) == ("north", "dgx-1")
        with page.context.expect_page() as opened:
            page.get_by_role("link", name="Open session").click()
        lab = opened.value
        await_page(lab, f"{session.url}lab", lambda: lab.locator(".jp-Launcher").wait_for(timeout=90_000))
        assert problems.found == []
    token = platform.hub("POST", "/users/nora/tokens", json={"note": "test", "expires_in": 3600}).json()["token"]
    assert session.url is not None
    with ThreadPoolExecutor(1) as beside_the_browser:  # whose loop runs in this thread
        texts = beside_the_browser.submit(
            asyncio.run, run_notebook(session.url, token, EXAMPLES / "digits.ipynb")
        ).result()
    assert any("accuracy" in text for text in texts)
    assert any("8192" in text or "8 GiB" in text for text in texts), "the notebook shows its share"
    platform.client("nora").stop(workload_id)


def test_job_survives_a_cut_of_the_link(platform: Served, joined: list[Appliance], browser: Browser) -> None:
    client, north = platform.client("nora"), joined[0]
    with person(browser, platform.url, "nora", USERS_PASSWORD) as (page, _):
        done = platform.cli(
            "run", "--detach", "--no-files", "--tenant", "north", "--", "sh", "-c", COUNTS, token=platform.token("nora")
        )
        assert done.returncode == 0, done.stderr
        job = next(one.id for one in client.workloads(owner="nora", state=["queued", "starting", "running"]))
        wait_until(lambda: client.workload(job).state == "running")
        north.cut()
        try:
            go(page, f"workloads/{job}")
            expect(page.get_by_text("has been unreachable since").first).to_be_visible(timeout=60_000)
            go(page, "nodes")
            expect(page.get_by_text("has been unreachable since").first).to_be_visible(timeout=60_000)
            south = platform.cli("run", "--no-files", "--tenant", "south", "--", "true", token=platform.token("sara"))
            assert south.returncode == 0, south.stderr
            waiting = platform.cli(
                "run", "--detach", "--no-files", "--tenant", "north", "--", "true", token=platform.token("nora")
            )
            assert waiting.returncode == 0, waiting.stderr
        finally:
            north.restore()
    finished = client.wait(job)
    assert finished.state == "succeeded"
    assert [line.text for line in client.logs(job)] == [f"line {number}" for number in range(1, 41)]
    assert len(client.attempts(job)) == 1
    wait_until(lambda: not list(client.workloads(owner="nora", state=["queued", "starting", "running"])))
