"""Another authenticator by configuration: a GitHub organisation, against a fake of the GitHub endpoints it asks."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import uvicorn
from fastapi import FastAPI, Header, HTTPException, Response
from fastapi.responses import RedirectResponse
from tests.fakes.waiting import until
from tests.integration.hub_installation import Installation

from commonage.domain.principals import Scope
from commonage.server.processes.ports import free_port

pytestmark = pytest.mark.anyio

MEMBERS = {"octocat": "our-lab", "mona": "our-lab", "admin": "somewhere-else", "mallory": "somewhere-else"}

CONFIG = """
c.GitHubOAuthenticator.client_id = "id"
c.GitHubOAuthenticator.client_secret = "secret"
c.GitHubOAuthenticator.github_url = "{url}"
c.GitHubOAuthenticator.github_api = "{url}/api"
c.GitHubOAuthenticator.allowed_organizations = {{"our-lab"}}
c.GitHubOAuthenticator.scope = ["read:org"]
c.Authenticator.admin_users = {{"octocat"}}
"""


class GitHub:
    """Signs in whoever `visitor` names; the code and the token are that name."""

    def __init__(self) -> None:
        self.visitor = ""
        self.app = FastAPI()
        self.app.add_api_route("/login/oauth/authorize", self.authorize)
        self.app.add_api_route("/login/oauth/access_token", self.token, methods=["POST"])
        self.app.add_api_route("/api/user", self.user)
        self.app.add_api_route("/api/orgs/{org}/members/{name}", self.member)

    async def authorize(self, redirect_uri: str, state: str) -> RedirectResponse:
        return RedirectResponse(f"{redirect_uri}?{urlencode({'code': self.visitor, 'state': state})}")

    async def token(self) -> dict[str, str]:
        return {"access_token": self.visitor, "token_type": "bearer", "scope": "read:org"}

    async def user(self, authorization: str = Header()) -> dict[str, Any]:
        return {"login": authorization.rsplit(maxsplit=1)[-1], "email": None}

    async def member(self, org: str, name: str) -> Response:
        if MEMBERS[name] != org:
            raise HTTPException(404)
        return Response(status_code=204)


@pytest.fixture(scope="module")
async def github() -> AsyncIterator[tuple[GitHub, str]]:
    fake, port = GitHub(), free_port()
    server = uvicorn.Server(uvicorn.Config(fake.app, port=port, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server._serve())
    await until(lambda: server.started)
    yield fake, f"http://127.0.0.1:{port}"
    server.should_exit = True
    await serving


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
