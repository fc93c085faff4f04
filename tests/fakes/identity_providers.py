"""Fakes of the endpoints that JupyterHub asks at GitHub and at an OpenID Connect provider."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar
from urllib.parse import urlencode

import uvicorn
from fastapi import FastAPI, Header, HTTPException, Response
from fastapi.responses import RedirectResponse
from tests.fakes.waiting import until

from commonage.server.processes.ports import free_port

MEMBERS = {"octocat": "our-lab", "mona": "our-lab", "admin": "somewhere-else", "mallory": "somewhere-else"}
TEAMS = {"mona": ["students"]}


class GitHub:
    """Signs in the user that `visitor` names; the code and the token are that name. It `answers`, or is overloaded."""

    def __init__(self) -> None:
        self.visitor, self.answers = "", True
        self.app = FastAPI()
        self.app.add_api_route("/login/oauth/authorize", self.authorize)
        self.app.add_api_route("/login/oauth/access_token", self.token, methods=["POST"])
        self.app.add_api_route("/api/user", self.user)
        self.app.add_api_route("/api/user/teams", self.teams)
        self.app.add_api_route("/api/orgs/{org}/members/{name}", self.member)
        self.app.add_api_route("/api/orgs/{org}/teams/{team}/members/{name}", self.member_of_team)

    async def authorize(self, redirect_uri: str, state: str) -> RedirectResponse:
        return RedirectResponse(f"{redirect_uri}?{urlencode({'code': self.visitor, 'state': state})}")

    async def token(self) -> dict[str, str]:
        _check(self.answers)
        return {"access_token": self.visitor, "token_type": "bearer", "scope": "read:org"}

    async def user(self, authorization: str = Header()) -> dict[str, Any]:
        return {"login": _bearer(authorization), "email": None}

    async def teams(self, authorization: str = Header()) -> list[dict[str, Any]]:
        name = _bearer(authorization)
        return [{"slug": team, "organization": {"login": MEMBERS[name]}} for team in TEAMS.get(name, ())]

    async def member(self, org: str, name: str) -> Response:
        if MEMBERS[name] != org:
            raise HTTPException(404)
        return Response(status_code=204)

    async def member_of_team(self, org: str, team: str, name: str) -> dict[str, str]:
        if MEMBERS[name] != org or team not in TEAMS.get(name, ()):
            raise HTTPException(404)
        return {"state": "active"}


class OpenId:
    """Signs in the user that `visitor` names, with the groups of `groups`. It `answers`, or is overloaded."""

    def __init__(self, groups: dict[str, list[str]]) -> None:
        self.visitor, self.groups, self.answers = "", groups, True
        self.app = FastAPI()
        self.app.add_api_route("/auth", self.authorize)
        self.app.add_api_route("/token", self.token, methods=["POST"])
        self.app.add_api_route("/userinfo", self.userinfo)

    async def authorize(self, redirect_uri: str, state: str) -> RedirectResponse:
        return RedirectResponse(f"{redirect_uri}?{urlencode({'code': self.visitor, 'state': state})}")

    async def token(self) -> dict[str, str]:
        _check(self.answers)
        return {"access_token": self.visitor, "token_type": "Bearer", "scope": "openid profile"}

    async def userinfo(self, authorization: str = Header()) -> dict[str, Any]:
        name = _bearer(authorization)
        return {"sub": f"id-of-{name}", "preferred_username": name, "groups": self.groups.get(name, [])}


class _Provider(Protocol):
    app: FastAPI


P = TypeVar("P", bound=_Provider)


@asynccontextmanager
async def served(provider: P, *, port: int = 0, certificate: str | None = None) -> AsyncIterator[tuple[P, str]]:
    """The provider and its address, while it is served. `certificate`: a file with one and its key, for HTTPS."""
    port = port or free_port()
    config = uvicorn.Config(provider.app, port=port, log_level="error", lifespan="off", ssl_certfile=certificate)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    await until(lambda: server.started)
    yield provider, f"{'https' if certificate else 'http'}://127.0.0.1:{port}"
    server.should_exit = True
    await serving


def _check(answers: bool) -> None:
    if not answers:
        raise HTTPException(503)


def _bearer(authorization: str) -> str:
    return authorization.rsplit(maxsplit=1)[-1]
