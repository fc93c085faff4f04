"""For the hub's tests: a real JupyterHub and a real traefik under Commonage's supervisor, with a stub of the control
plane.

The control plane knows sessions only: what is submitted waits until the test lets it run, and then answers on a port
like a Jupyter server would.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from tests.fakes.waiting import until

from commonage.domain.principals import Principal
from commonage.server.identity import HubIdentity
from commonage.server.processes.children import ChildState, Supervisor
from commonage.server.processes.hub import HubPlan, hub_children
from commonage.server.processes.ports import free_port
from commonage.server.secrets import load_secrets
from commonage.server.settings.settings import Settings
from commonage.wire.hub import API_PATH, PORTAL_PATH


def reason(message: str) -> dict[str, Any]:
    return {"code": "Any", "params": {}, "message": message}


class Control:
    def __init__(self, spawner_token: str) -> None:
        self.spawner_token = spawner_token
        self.sessions: dict[str, dict[str, Any]] = {}
        self.bodies: dict[str, dict[str, Any]] = {}
        self.refusal: dict[str, Any] | None = None
        self.asked: list[tuple[str, dict[str, str]]] = []
        self._ids = (f"session{number:06d}" for number in itertools.count())
        self._servers: dict[str, asyncio.Server] = {}
        self.app = FastAPI()
        self._routes()

    def _routes(self) -> None:
        app, api = self.app, API_PATH
        app.add_api_route(f"{api}/workloads", self.submit, methods=["POST"])
        app.add_api_route(f"{api}/workloads", self.listed, methods=["GET"])
        app.add_api_route(f"{api}/workloads/{{id}}", self.one, methods=["GET"])
        app.add_api_route(f"{api}/workloads/{{id}}/stop", self.stop, methods=["POST"])
        app.add_api_route(f"{api}/workloads/{{id}}/explanation", self.explain, methods=["GET"])
        app.add_api_route(f"{api}/workloads/{{id}}/events", self.events, methods=["GET"])
        app.add_api_route(f"{api}/workloads/{{id}}/logs", self.logs, methods=["GET"])
        app.add_api_route(f"{api}/launch-options", self.offer, methods=["GET"])
        app.add_api_route("/{path:path}", self.echo, methods=["GET"])

    async def echo(self, path: str, request: Request) -> JSONResponse:
        headers = {name: value for name, value in request.headers.items() if "forwarded" in name}
        self.asked.append((request.scope["raw_path"].decode(), headers))
        return JSONResponse({"here": request.scope["raw_path"].decode(), "headers": headers})

    async def submit(self, request: Request) -> JSONResponse:
        assert request.headers["Authorization"] == f"Bearer {self.spawner_token}"
        if self.refusal is not None:
            return JSONResponse(self.refusal, self.refusal["status"], media_type="application/problem+json")
        body = await request.json()
        workload = session(next(self._ids), body)
        self.sessions[workload["id"]] = workload
        self.bodies[workload["id"]] = body
        return JSONResponse({"workload": workload, "created": True, "ids": [workload["id"]]}, 201)

    async def listed(self, owner: str) -> dict[str, Any]:
        live = [s for s in self.sessions.values() if s["owner"] == owner and s["ended_at"] is None]
        return {"items": live, "next_cursor": None}

    async def one(self, id: str) -> dict[str, Any]:
        if id not in self.sessions:
            raise HTTPException(404)
        return self.sessions[id]

    async def stop(self, id: str, request: Request) -> dict[str, Any]:
        self.end(id, "stopped", f"Stopped: {(await request.json())['reason']}.")
        return self.sessions[id]

    async def explain(self, id: str) -> dict[str, Any]:
        return {
            "workload_id": id,
            "state": "queued",
            "summary": "Position 3 of 4 in the queue. 8 GiB on gpu-1 when bob's session ends.",
            "startable_now": False,
            "position": 3,
            "queue_length": 4,
            "reasons": [],
            "holders": [],
            "fits_now": None,
            "fits_now_gpus": None,
            "expected_start_at": None,
            "basis": None,
        }

    async def events(self, id: str, request: Request) -> StreamingResponse:
        async def changes() -> AsyncIterator[str]:
            seen, seq = "", 0
            while True:
                state = self.sessions[id]["state"]
                if state != seen:
                    seen, seq = state, seq + 1
                    event = {"seq": seq, "kind": "state", "at": 0, "reason": reason("Any."), "workload_id": id}
                    event |= {"attempt_id": None, "owner": None, "state": state}
                    yield f"id: {seq}\nevent: event\ndata: {json.dumps(event)}\n\n"
                await asyncio.sleep(0.02)

        return StreamingResponse(changes(), media_type="text/event-stream")

    async def logs(self, id: str) -> StreamingResponse:
        async def lines() -> AsyncIterator[str]:
            yield f"id: 1\nevent: line\ndata: {json.dumps({'text': 'no module named jupyter', 'offset': 1})}\n\n"
            yield "event: end\ndata: {}\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream")

    async def offer(self, user: str) -> dict[str, Any]:
        entry = {"description": "", "requirements": [], "state": "ready", "reason": None, "progress": None}
        return {
            "environments": [entry | {"name": "notebook", "title": f"Notebook for {user}", "kinds": ["session"]}],
            "gpu_choices": [{"gpus": "6GiB", "title": "6 GiB", "free_now": True, "why_not": None}],
            "models": ["A100"],
            "max_cpus_milli": 2000,
            "max_memory_mib": 8192,
            "max_vram_mib": 24576,
            "free_cpus_milli": 1500,
            "free_memory_mib": 4096,
            "simulated_gpus": True,
        }

    # --- what the tests do ---------------------------------------------------------------------------------------

    async def run(self, id: str) -> None:
        prefix = self.bodies[id]["variables"]["JUPYTERHUB_SERVICE_PREFIX"]

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:  # only looked whether the port is open
                writer.close()
                return
            status = b"200 OK" if head.split()[1].decode().startswith(prefix) else b"404 Not Found"
            text = b'{"session": "%s"}' % id.encode()
            writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(text)) + text)
            await writer.drain()
            writer.close()

        server = self._servers[id] = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.sessions[id] |= {
            "state": "running",
            "internal_url": f"http://127.0.0.1:{port}",
            "site": "local",
            "node": "here",
        }

    def lose_power(self, id: str) -> None:
        """Its server is gone, and this is not known yet."""
        self._servers.pop(id).close()

    def end(self, id: str, state: str, why: str) -> None:
        if id in self._servers:
            self.lose_power(id)
        self.sessions[id] |= {"state": state, "reason": reason(why), "ended_at": time.time()}

    async def submitted(self, number: int = 1) -> str:
        """The id of the newest submission, once this number of submissions has arrived."""
        await until(lambda: len(self.sessions) >= number)
        return list(self.sessions)[number - 1]


def session(id: str, body: dict[str, Any]) -> dict[str, Any]:
    absent = (
        "position started_at ended_at deadline exit_code node time_limit_s array_id array_index url bundle internal_url"
    )
    return dict.fromkeys(absent.split()) | {
        "id": id,
        "kind": body["kind"],
        "name": body["name"],
        "owner": body["owner"],
        "key": body["key"],
        "tenant": "default",
        "environment": body.get("environment", "notebook"),
        "command": [],
        "request": {"cpus_milli": 1000, "memory_mib": 1024, "gpus": None, "text": ""},
        "state": "queued",
        "reason": reason("Queued."),
        "submitted_at": time.time(),
        "since": time.time(),
        "site": None,
        "shares": [],
        "attempts": 0,
        "priority": 0,
        "grace_s": 10,
        "retries": 0,
        "depends_on": [],
        "array_size": 1,
        "variables": body["variables"],
        "stopping": False,
    }


async def sign_in(browser: httpx2.AsyncClient, user: str, password: str) -> httpx2.Response:
    """Fill in the login form; where it leads."""
    page = await browser.get("/hub/login")
    return await browser.post(
        "/hub/login",
        params={"next": ""},
        data={"username": user, "password": password, "_xsrf": _xsrf(browser, page)},
    )


class Installation:
    """Hub, proxy and the stub, for as long as the context lasts."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        data_dir.mkdir(exist_ok=True)
        self.secrets = load_secrets(data_dir)
        ports = [free_port() for _ in range(4)]
        parsed = Settings(**settings)
        self.plan = HubPlan(data_dir, parsed, *ports, parsed.public_url)
        self.control = Control(self.secrets.spawner_token)
        self.identity = HubIdentity(self.plan.hub_url, self.secrets.hub_service_token)
        self.url = self.plan.proxy_url
        config = uvicorn.Config(self.control.app, port=self.plan.control_port, log_level="error", lifespan="off")
        self._server = uvicorn.Server(config)
        self._supervisor = Supervisor(hub_children(self.plan))

    async def __aenter__(self) -> Installation:
        self._serving = asyncio.create_task(self._server._serve())
        await until(lambda: self._server.started)
        await self._supervisor.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._supervisor.stop()
        await self.identity.aclose()
        self._server.should_exit = self._server.force_exit = True
        await self._serving

    def child(self, name: str) -> ChildState:
        return next(state for state in self._supervisor.states() if state.name == name)

    def browser(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.url, follow_redirects=True, trust_env=False, timeout=30)

    async def sign_in(self, browser: httpx2.AsyncClient, user: str, password: str) -> httpx2.Response:
        return await sign_in(browser, user, password)

    async def oauth(self, browser: httpx2.AsyncClient) -> Principal | None:
        """Sign in as the portal does: send the browser to the hub, take the code it returns with, ask for the user."""
        back = await browser.get(self.identity.authorize_url("some-state"))
        query = parse_qs(urlsplit(str(back.url)).query)
        assert back.url.path == f"{PORTAL_PATH}oauth_callback"
        assert query["state"] == ["some-state"]
        return await self.identity.whois(await self.identity.exchange(query["code"][0]))

    async def server(self, user: str, name: str = "") -> dict[str, Any]:
        """The hub's description of a server; empty if it does not exist."""
        async with self.as_service() as client:
            model = (await client.get(f"users/{user}", params={"include_stopped_servers": 1})).json()
        found: dict[str, Any] = model.get("servers", {}).get(name, {})
        return found

    def as_service(self, timeout_s: float = 30) -> httpx2.AsyncClient:
        headers = {"Authorization": f"token {self.secrets.hub_service_token}"}
        url = f"{self.plan.hub_url}/hub/api/"
        return httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=timeout_s)


def _xsrf(browser: httpx2.AsyncClient, page: httpx2.Response) -> str:
    with contextlib.suppress(KeyError):
        return str(browser.cookies["_xsrf"])
    return page.text.partition('name="_xsrf" value="')[2].partition('"')[0]
