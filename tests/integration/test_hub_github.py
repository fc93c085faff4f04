"""Another authenticator by configuration: a GitHub organisation, against a fake of the GitHub endpoints it asks."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fakes.identity_providers import GitHub, served
from tests.integration.hub_installation import Installation

from commonage.domain.principals import Scope
from commonage.server.processes.children import ChildFailed

pytestmark = pytest.mark.anyio

CONFIG = """
c.GitHubOAuthenticator.client_id = "id"
c.GitHubOAuthenticator.client_secret = "secret"
c.GitHubOAuthenticator.github_url = "{url}"
c.GitHubOAuthenticator.github_api = "{url}/api"
c.GitHubOAuthenticator.allowed_organizations = {{"our-lab"}}
c.GitHubOAuthenticator.scope = ["read:org"]
c.Authenticator.admin_users = {{"octocat"}}
"""


@pytest.fixture(scope="module")
async def github() -> AsyncIterator[tuple[GitHub, str]]:
    async with served(GitHub()) as found:
        yield found


@pytest.fixture(scope="module")
async def here(github: tuple[GitHub, str], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    folder: Path = tmp_path_factory.mktemp("github")
    config = folder / "hub.py"
    config.write_text(CONFIG.format(url=github[1]))
    async with Installation(folder / "data", authenticator_class="github", hub_config=config) as installation:
        yield installation


@pytest.mark.parametrize(("name", "admin"), [("octocat", True), ("mona", False)])
async def test_a_member_of_the_organisation(
    here: Installation, github: tuple[GitHub, str], name: str, admin: bool
) -> None:
    github[0].visitor = name
    async with here.browser() as browser:
        await browser.get("/hub/oauth_login")
        found = await here.oauth(browser)
    assert found is not None
    assert (found.name, found.holds(Scope.ADMIN)) == (name, admin)


@pytest.mark.parametrize("name", ["mallory", "admin"])
async def test_somebody_else(here: Installation, github: tuple[GitHub, str], name: str) -> None:
    github[0].visitor = name
    async with here.browser() as browser:
        page = await browser.get("/hub/oauth_login")
        assert page.status_code == 403
        assert (await browser.get("/hub/home")).url.path != "/hub/home"


async def test_the_shared_passwords_open_nothing(here: Installation) -> None:
    async with here.browser() as browser:
        await here.sign_in(browser, "admin", here.secrets.admin_password)
        assert (await browser.get("/hub/home")).url.path != "/hub/home"


async def test_a_configuration_that_is_not_there_is_said(tmp_path: Path) -> None:
    absent = tmp_path / "sign-in.py"
    with pytest.raises(ChildFailed, match=f"hub_config: the hub cannot read {absent}. Correct the path"):
        async with Installation(tmp_path / "data", authenticator_class="github", hub_config=absent):
            pass
