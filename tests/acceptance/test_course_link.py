"""A class whose students come from a learning platform: from the link in the course into JupyterLab."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from playwright.sync_api import expect
from tests.acceptance.browser import PATIENCE_MS, await_page, await_refreshed, chromium, load, retry
from tests.acceptance.served import Served, served
from tests.fakes import identity_providers
from tests.fakes.learning_platform import LearningPlatform

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.timeout(900)]

CLASS = """
kind: Tenant
name: ml101
members:
  - {{group: "ml101:teachers", role: teacher}}
---
kind: Class
name: ml101
tenant: ml101
groups: [ml101]
seats: 2
cpus: 0.5
memory: 512MiB
times:
  - {{starts: "{starts}", ends: "{ends}"}}
time_zone: UTC
"""


@pytest.fixture(scope="module")
def platform() -> Iterator[tuple[LearningPlatform, str]]:
    made = identity_providers.served(LearningPlatform())
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(made) as running:
        yield running


@pytest.fixture(scope="module")
def installation(platform: tuple[LearningPlatform, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, (moodle, url) = tmp_path_factory.mktemp("course"), platform
    config = folder / "sign-in.py"
    options = {
        "issuer": moodle.ISSUER,
        "client_id": moodle.CLIENT,
        "deployment_ids": {moodle.DEPLOYMENT},
        "authorize_url": f"{url}/auth",
        "jwks_url": f"{url}/keys",
        "allowed_courses": {moodle.COURSE: "ml101"},
    }
    config.write_text("".join(f"c.LtiAuthenticator.{name} = {value!r}\n" for name, value in options.items()))
    variables = {"COMMONAGE_AUTHENTICATOR_CLASS": "lti", "COMMONAGE_HUB_CONFIG": str(config)}
    with served(folder, variables=variables) as running:
        moodle.tool = f"http://localhost:{running.port}"
        yield running


def test_a_course_link_leads_into_the_session_of_the_class(
    installation: Served, platform: tuple[LearningPlatform, str], tmp_path: Path
) -> None:
    moodle, course = platform[0], f"{platform[1]}/course"
    file, now = tmp_path / "class.yml", datetime.now(UTC)
    times = {"starts": now - timedelta(minutes=1), "ends": now + timedelta(hours=1)}
    file.write_text(CLASS.format(**{name: f"{time:%Y-%m-%d %H:%M}" for name, time in times.items()}))
    applied = installation.cli("apply", str(file), "--data-dir", str(installation.data))
    assert applied.returncode == 0, applied.stderr
    with chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)

        def follow_the_link(to: str) -> None:
            page.goto(course)
            page.locator("#tool").click()
            page.wait_for_url(to)

        # The teacher shows the class from the lectern, and does not sign out.
        moodle.visitor, moodle.roles = "1", ["Instructor"]
        moodle.target = f"{moodle.tool}/services/commonage/classes/ml101"
        retry(lambda: follow_the_link(moodle.target))
        expect(page.locator(".menu summary")).to_contain_text("lti-1")
        expect(page.get_by_role("button", name="Send")).to_be_attached()

        # A student comes to the same browser by the link to the session.
        moodle.visitor, moodle.roles = "2", ["Learner"]
        moodle.target = f"{moodle.tool}/services/commonage/classes/ml101/session"
        # Until the class has read its group again, it does not know the student, who starts the session then.
        retry(lambda: follow_the_link("**/services/commonage/classes/ml101**"))
        if page.url.endswith("/ml101"):
            page.get_by_role("button", name="Start your session").click()
        lab = "**/user/lti-2/ml101/lab**"
        await_refreshed(page, moodle.target, lambda: page.wait_for_url(lab, timeout=10_000), within_s=600)
        assert page.url.startswith(f"http://lti-2.localhost:{installation.port}/")
        panel = page.locator("#jp-main-dock-panel")
        await_page(page, page.url, lambda: expect(panel).to_be_visible(timeout=60_000))
        load(page, f"{moodle.tool}/services/commonage/")
        expect(page.locator(".menu summary")).to_contain_text("lti-2")
