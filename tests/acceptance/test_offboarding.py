"""An admin renames and removes users in the browser: plan, confirmation, steps, and the remaining data."""

import re
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.acceptance.browser import DESK, PHONE, await_refreshed, chromium, go, overflow, person
from tests.acceptance.served import ADMIN_PASSWORD, Served, served
from tests.contract.harness.small_session import session_daemon
from tests.fakes.waiting import wait_until

from commonage.sdk import Client
from commonage.sdk.errors import ApiError
from commonage.wire.workloads import WorkloadOut

pytestmark = [pytest.mark.timeout(900), pytest.mark.needs("chromium")]
RESOURCES = """
kind: Tenant
name: optics
members:
  - {{user: ann, role: manager}}
  - {{user: bea, role: member}}
---
kind: PlatformRole
name: operator
users: [ann]
---
kind: Volume
name: spectra
source: {folder}/spectra/{{user}}
mode: rw
"""


@pytest.fixture(scope="module", params=["process", pytest.param("docker", marks=pytest.mark.needs("docker"))])
def installation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, variables = tmp_path_factory.mktemp("offboarding"), dict[str, str]()
    with ExitStack() as ending:
        if request.param == "docker":
            variables = ending.enter_context(session_daemon())
        flags = ("--engine", request.param, "--gpus", "none")
        running = ending.enter_context(served(folder, *flags, variables=variables))
        (folder / "optics.commonage.yml").write_text(RESOURCES.format(folder=folder))
        applied = running.cli("apply", "--yes", "optics.commonage.yml", token=running.token("admin", "--admin"))
        assert applied.returncode == 0, applied.stdout + applied.stderr
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def settle(installation: Served, user: str) -> Client:
    """A session and a job that run, files in the home and in a volume, and a cron job; a client with their token."""
    token = installation.token(user)
    session = {"cpus": "0.2", "memory": "1GiB", "tenant": "optics"}
    asked = installation.hub("POST", f"/users/{user}/servers/", json=session)
    assert asked.status_code in (201, 202), asked.text
    script = f"echo {user} > ~/thesis.txt; echo light > $COMMONAGE_VOLUME_SPECTRA/one.txt; echo written; sleep 3600"
    for options in (("--volume", "spectra:rw", "-d", "--name", "train"), ("--schedule", "@yearly", "--name", "report")):
        made = installation.cli(
            "run", "--tenant", "optics", "--cpus", "0.2", *options, "--", "sh", "-c", script, token=token
        )
        assert made.returncode == 0, made.stderr
    client = Client(installation.url, token)

    def has_settled() -> bool:
        running = [one for one in client.workloads(state=["running"]) if one.owner == user]
        written = (installation.folder / "spectra" / user / "one.txt").exists()
        return {one.kind for one in running} == {"session", "job"} and written

    wait_until(has_settled, f"the work of {user}", within_s=400)
    return client


def follow(page: Page) -> None:
    """Until the page of the change says that all its steps are done."""
    page.wait_for_url("**/offboard/o*")
    name = page.get_by_role("region", name="Name")
    await_refreshed(page, page.url, lambda: expect(name).to_be_visible(timeout=5000), within_s=120)
    assert set(re.findall(r": (\w+)", page.get_by_role("region", name="Steps").inner_text())) == {"done"}


def packed(archives: Path) -> Iterator[str]:
    """The names of the files in all archives."""
    for one in archives.iterdir():
        with tarfile.open(one) as archive:
            yield from (Path(name).name for name in archive.getnames())


def of(client: Client, name: str) -> list[WorkloadOut]:
    return [one for one in client.workloads() if one.owner == name]


def test_a_removed_user_is_planned_confirmed_and_gone(installation: Served, browser: Browser) -> None:
    ann, admin = settle(installation, "ann"), installation.client("admin", "--admin")
    with person(browser, installation.url, "admin", ADMIN_PASSWORD, size=DESK) as (page, problems):
        go(page, "people")
        row = page.get_by_role("row", name=re.compile("^ann "))
        expect(row).to_contain_text("operator")
        row.get_by_role("link", name="Remove").click()
        page.get_by_role("button", name="Show plan").click()
        plan = page.get_by_role("region", name="Plan")
        for said in (
            "Stop 1 session ", "Stop 1 workload", "Revoke ", "Remove the user ann from JupyterHub", "Pack ", "spectra",
            "Remove the roles in optics", "Remove the roles operator on the platform", "Remove 1 cron job (report)",
            "Retire the name",
        ):  # fmt: skip
            expect(plan).to_contain_text(said)
        assert overflow(page) == []
        assert {one.state for one in of(admin, "ann")} == {"running"}, "a plan changes nothing"
        page.get_by_role("button", name="Remove user ann as planned").click()
        follow(page)
        assert overflow(page) == []
        assert {one.state for one in of(admin, "ann")} == {"stopped"}
        assert admin.cron_jobs() == []
        with pytest.raises(ApiError) as refused:
            ann.cron_jobs()
        assert refused.value.status in (401, 403)
        assert {"thesis.txt", "one.txt"} <= set(packed(installation.data / "archive"))
        assert not (installation.folder / "spectra" / "ann").exists()
        assert installation.hub("GET", "/users/ann").status_code == 404
        go(page, "people")
        expect(page.get_by_role("row", name=re.compile("^ann "))).to_contain_text("retired")
        go(page, "usage")
        expect(page.get_by_role("row", name=re.compile("^ann "))).to_be_visible()
        assert problems.found == []


def test_a_renamed_user_keeps_the_cron_job_the_home_and_the_work(installation: Served, browser: Browser) -> None:
    bea, admin = settle(installation, "bea"), installation.client("admin", "--admin")
    with person(browser, installation.url, "admin", ADMIN_PASSWORD, size=PHONE, dark=True) as (page, problems):
        go(page, "people")
        page.get_by_role("row", name=re.compile("^bea ")).get_by_role("link", name="Rename").click()
        page.get_by_role("button", name="Show plan").click()
        expect(page.get_by_role("alert")).to_contain_text("A rename needs the new name")
        page.get_by_label("New name").fill("beatrice")
        page.get_by_label("Live jobs and services").select_option("hand-over")
        page.get_by_role("button", name="Show plan").click()
        expect(page.get_by_role("region", name="Plan")).to_contain_text("Hand over to beatrice: 1 cron job (report)")
        assert overflow(page) == []
        page.get_by_role("button", name="Rename user bea as planned").click()
        follow(page)
        assert overflow(page) == []
        assert [(one.name, one.owner) for one in admin.cron_jobs()] == [("report", "beatrice")]
        assert of(admin, "bea") == []
        moved = installation.folder / "spectra" / "beatrice" / "one.txt"
        assert moved.read_text() == "light\n"
        wait_until(
            lambda: [
                one for one in admin.workloads(state=["running"]) if (one.owner, one.name) == ("beatrice", "train")
            ],
            "the job runs again for the new name",
            within_s=120,
        )
        assert {one.owner for one in bea.workloads()} == {"beatrice"}, "the token stays valid"
        problems.allowed = ("422",)
        assert [one for one in problems.found if not one.startswith("422 ")] == []
