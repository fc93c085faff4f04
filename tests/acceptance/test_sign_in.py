"""Sign-in by GitHub, OpenID Connect, LDAP, PAM and LTI in a browser, with the files of docs/operate/sign-in.md."""

import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page, async_playwright
from tests.acceptance.browser import ARGUMENTS, PATIENCE_MS, Patience
from tests.conftest import chromium_path
from tests.fakes.identity_providers import GitHub, OpenId, served
from tests.fakes.learning_platform import CLAIM, LearningPlatform
from tests.fakes.sign_in_guide import CONTACT, configuration, github_at, openid_at
from tests.fakes.waiting import wait_until
from tests.integration.hub_installation import Installation

from commonage.server.processes.ports import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.needs("chromium")]


@asynccontextmanager
async def installed(folder: Path, authenticator: str, **replaced: object) -> AsyncIterator[Installation]:
    """A hub with the guide's configuration, in which the keys of `replaced` are set to other values."""
    config = folder / "hub.py"
    config.write_text(configuration(authenticator, **replaced))
    settings = {"authenticator_class": authenticator, "hub_config": config, "contact": CONTACT}
    async with Installation(folder / "data", **settings) as here:
        yield here


@pytest.fixture(scope="module")
async def page() -> AsyncIterator[Page]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium_path(), args=list(ARGUMENTS))
        page = await browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        yield page
        await browser.close()


async def retry(act: Callable[[], Awaitable[object]]) -> None:
    """As `browser.retry`."""
    patience = Patience()
    while True:
        try:
            await act()
            return
        except PlaywrightError as error:
            patience.forgive(error)


async def load(page: Page, address: str) -> None:
    await retry(lambda: page.goto(address))


async def follows_the_link(page: Page, course: str, arrives: Callable[[], Awaitable[object]]) -> None:
    async def act() -> None:
        await page.goto(course)
        await page.locator("#tool").click()
        await arrives()

    await retry(act)


async def signs_in_with_a_click(page: Page, here: Installation) -> None:
    async def act() -> None:
        await page.context.clear_cookies()
        await page.goto(f"{here.url}/hub/login?next=%2Fhub%2Ftoken")
        async with page.expect_navigation():
            await page.get_by_role("button", name="Sign in with").click()

    await retry(act)


async def signs_in_with_a_password(page: Page, here: Installation, user: str, password: str) -> None:
    async def act() -> None:
        await page.context.clear_cookies()
        await page.goto(f"{here.url}/hub/login?next=%2Fhub%2Ftoken")
        await page.locator("#username_input").fill(user)
        await page.locator("#password_input").fill(password)
        async with page.expect_navigation():
            await page.locator("#login_submit").click()

    await retry(act)


async def sees_the_token_page(page: Page, user: str) -> None:
    await page.wait_for_url("**/hub/token")
    assert user in await page.locator("#login_widget").inner_text()


async def is_refused(page: Page, *said: str) -> None:
    text = await page.locator(".error, .login_error").inner_text()
    for one in (*said, CONTACT):
        assert one in text, text


async def reads_that_the_password_is_wrong(page: Page) -> None:
    assert "Invalid username or password" in await page.locator(".login_error").inner_text()
    assert f"Forgotten password, or no access? Ask {CONTACT}." in await page.locator(".sign-in").inner_text()


async def groups_of(here: Installation, user: str) -> list[str]:
    account = await here.identity.account(user)
    assert account is not None
    return list(account.groups)


async def test_github_admits_members_and_their_teams_are_groups(page: Page, tmp_path: Path) -> None:
    async with AsyncExitStack() as closing:
        github, url = await closing.enter_async_context(served(GitHub()))
        here = await closing.enter_async_context(installed(tmp_path, "github", **github_at(url)))
        github.visitor = "mona"
        await signs_in_with_a_click(page, here)
        await sees_the_token_page(page, "mona")
        assert await groups_of(here, "mona") == ["our-lab:students"]
        github.visitor = "mallory"
        await signs_in_with_a_click(page, here)
        await is_refused(page, "mallory", "the GitHub organization our-lab or the team gpu of the GitHub organization")
        github.answers = False
        await signs_in_with_a_click(page, here)
        await is_refused(page, "GitHub does not answer", "Wait a minute, then sign in again")


async def test_openid_admits_a_group(page: Page, tmp_path: Path) -> None:
    async with AsyncExitStack() as closing:
        groups = {"ada": ["gpu-users", "optics"], "grace": ["gpu-users", "gpu-admins"], "bob": ["optics"]}
        provider, url = await closing.enter_async_context(served(OpenId(groups)))
        here = await closing.enter_async_context(installed(tmp_path, "generic-oauth", **openid_at(url)))
        for user, admin in (("ada", False), ("grace", True)):
            provider.visitor = user
            await signs_in_with_a_click(page, here)
            await sees_the_token_page(page, user)
            assert await here.identity.is_admin(user) == admin
        assert await groups_of(here, "ada") == ["gpu-users", "optics"]
        provider.visitor = "bob"
        await signs_in_with_a_click(page, here)
        await is_refused(page, "bob", "the group gpu-users")
        provider.answers = False
        await signs_in_with_a_click(page, here)
        await is_refused(page, "Example University does not answer", "Wait a minute, then sign in again")


@pytest.fixture
def directory() -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The port of an LDAP server, and its process."""
    port = free_port()
    program = Path(__file__).parents[1] / "fakes" / "ldap_server.py"
    process = subprocess.Popen([sys.executable, program, str(port)])

    def answers() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    try:
        wait_until(answers)
        yield port, process
    finally:
        process.terminate()
        process.wait(10)


async def test_ldap_admits_a_group(page: Page, tmp_path: Path, directory: tuple[int, subprocess.Popen[bytes]]) -> None:
    port, server = directory
    at = {"server_address": "127.0.0.1", "server_port": port, "tls_strategy": "insecure"}
    async with installed(tmp_path, "ldap", **at) as here:
        await signs_in_with_a_password(page, here, "ada", "wrong")
        await reads_that_the_password_is_wrong(page)
        await signs_in_with_a_password(page, here, "ada", "secret of ada")
        await sees_the_token_page(page, "ada")
        assert await here.identity.is_admin("ada")
        assert await groups_of(here, "ada") == ["gpu-users"]
        await signs_in_with_a_password(page, here, "bob", "secret of bob")
        await is_refused(page, "bob", "the group gpu-users")
        server.terminate()
        server.wait(10)
        await signs_in_with_a_password(page, here, "ada", "secret of ada")
        await is_refused(page, "The directory of users does not answer", "Wait a minute, then sign in again")


@contextmanager
def pam_service(folder: Path) -> Iterator[str]:
    """A PAM service that takes one password from everybody. It does not look at the machine's own passwords."""
    check = folder / "check"
    check.write_text("#!/bin/sh\n[ \"$(tr -d '\\0')\" = 'secret of all' ]\n")
    check.chmod(0o755)
    service = Path("/etc/pam.d") / f"commonage-test-{free_port()}"
    service.write_text(f"auth required pam_exec.so expose_authtok quiet {check}\naccount required pam_permit.so\n")
    try:
        yield service.name
    finally:
        service.unlink()


@pytest.mark.needs("root")
async def test_pam_admits_a_unix_group(page: Page, tmp_path: Path) -> None:
    # Debian has these accounts on every machine.
    with pam_service(tmp_path) as service:
        options = {"service": service, "allowed_groups": {"games"}, "admin_groups": {"games"}}
        async with installed(tmp_path, "pam", **options) as here:
            await signs_in_with_a_password(page, here, "games", "wrong")
            await reads_that_the_password_is_wrong(page)
            await signs_in_with_a_password(page, here, "games", "secret of all")
            await sees_the_token_page(page, "games")
            assert await groups_of(here, "games") == ["games"]
            assert await here.identity.is_admin("games")
            await signs_in_with_a_password(page, here, "daemon", "secret of all")
            await is_refused(page, "daemon", "the group games")


async def test_a_course_link_of_a_learning_platform_leads_into_the_portal(page: Page, tmp_path: Path) -> None:
    async with AsyncExitStack() as closing:
        platform, url = await closing.enter_async_context(served(LearningPlatform()))
        platform_url = url.replace("127.0.0.1", "localhost")  # another site than the hub's, as browsers see it
        registration = {
            "issuer": platform.ISSUER,
            "client_id": platform.CLIENT,
            "deployment_ids": {platform.DEPLOYMENT},
            "authorize_url": f"{platform_url}/auth",
            "jwks_url": f"{url}/keys",
        }
        here = await closing.enter_async_context(installed(tmp_path, "lti", **registration))
        platform.tool = here.url
        platform.target = f"{platform.tool}/services/commonage/classes/ml101/session"
        await page.context.clear_cookies()
        await load(page, f"{platform.tool}/hub/login")
        assert "open the link to this server in Moodle" in await page.locator("main, body").first.inner_text()

        platform.answers = False
        course, error = f"{platform_url}/course", page.locator(".error")
        await follows_the_link(page, course, error.wait_for)
        assert "Wait a minute. Open the link in your course again." in await error.inner_text()
        platform.answers = True

        entrance = "**/services/commonage/sign-in?next=*classes%2Fml101%2Fsession"
        # A student; then a teacher at the same browser, without a sign-out between them.
        for visitor, roles, groups in (
            ("5", ["Learner"], ["ml101"]),
            ("2", ["Instructor"], ["ml101", "ml101:teachers"]),
        ):
            platform.visitor, platform.roles = visitor, roles
            await follows_the_link(page, course, lambda: page.wait_for_url(entrance))
            await load(page, f"{platform.tool}/hub/token")
            await sees_the_token_page(page, f"lti-{visitor}")
            assert sorted(await groups_of(here, f"lti-{visitor}")) == groups
        assert await here.identity.is_admin("lti-2")

        platform.changed = {f"{CLAIM}context": {"id": "43", "title": "Cooking"}}
        await follows_the_link(page, course, page.locator(".error, .login_error").wait_for)
        await is_refused(page, 'the course "Cooking" (id 43)', "allowed_courses")
