"""For attack tests: the API and the portal on a real socket, in the event loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import httpx2
import uvicorn
from tests.fakes.waiting import until
from tests.integration.api_world import Api, serving

from commonage.api.app import end_streams
from commonage.domain.workloads import State
from commonage.server.web.server import HttpProtocol
from commonage.server.web.websockets import WEBSOCKETS
from commonage.wire.hub import API_PATH, CALLBACK_PATH, PORTAL_PATH

STREAM = {"Accept": "text/event-stream"}


class Site:
    """The server at `url`, and what stands behind it."""

    def __init__(self, api: Api, port: int) -> None:
        self.api, self.port, self.url = api, port, f"http://127.0.0.1:{port}"
        self.control = api.control

    def client(self, token: str | None = "ann", **headers: str) -> httpx2.AsyncClient:
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return httpx2.AsyncClient(
            base_url=f"{self.url}{API_PATH}", headers=headers, timeout=30, limits=httpx2.Limits(max_connections=None)
        )

    @asynccontextmanager
    async def browser(self, user: str) -> AsyncGenerator[httpx2.AsyncClient]:
        """A browser in which this user has signed in to the portal."""
        async with httpx2.AsyncClient(base_url=self.url, timeout=30) as browser:
            state = parse_qs(urlsplit((await browser.get(PORTAL_PATH)).headers["location"]).query)["state"][0]
            await browser.get(CALLBACK_PATH, params={"state": state, "code": user})
            yield browser

    async def running(self, token: str = "ann", **ask: Any) -> str:
        """A workload of this user that runs, by its id."""
        async with self.client(token) as client:
            response = await client.post("/workloads", json={"command": ["work"], **ask})
        made = str(response.json()["workload"]["id"])
        await until(lambda: (found := self.control.live_state.get(made)) is not None and found.state is State.RUNNING)
        return made

    def shell(self, http: aiohttp.ClientSession, workload_id: str, token: str = "ann") -> Any:
        url = f"{self.url}{API_PATH}/workloads/{workload_id}/exec"
        return http.ws_connect(url, headers={"Authorization": f"Bearer {token}"})


@asynccontextmanager
async def site(folder: Path, **arguments: Any) -> AsyncGenerator[Site]:
    """A server as `serving` takes its arguments."""
    async with serving(folder, **arguments) as api:
        config = uvicorn.Config(
            api.app, port=0, access_log=False, log_level="error", lifespan="off", http=HttpProtocol,
            proxy_headers=True, forwarded_allow_ips="127.0.0.1", **WEBSOCKETS,
        )  # fmt: skip
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        try:
            yield Site(api, server.servers[0].sockets[0].getsockname()[1])
        finally:
            end_streams(api.app)
            server.should_exit = True
            await task
