"""Hub and proxy in pods of their own: nothing shared but settings and secrets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route
from tests.fakes.waiting import until
from tests.integration.hub_installation import Control, sign_in

from commonage.server.processes.ports import free_port
from commonage.server.processes.remote import remote_plan, run_remote_component
from commonage.server.proxy_rules import RulesSource, ServedRules, follow_rules
from commonage.server.secrets import load_secrets
from commonage.server.settings.settings import Settings
from commonage.wire.hub import HUB_RULES_PATH

pytestmark = pytest.mark.anyio

RULES = json.dumps({"http": {"services": {"one": {"loadBalancer": {"servers": [{"url": "http://127.0.0.1:1"}]}}}}})


def settings_of(tmp_path: Path, pod: str, ports: dict[str, int]) -> Settings:
    """The same for each pod, but for the folder that only it has."""
    return Settings.model_validate(
        {
            "data_dir": tmp_path / pod,
            "secrets_dir": tmp_path / "mounted" / "secrets",
            "children": "remote",
            "session_host": "none",
            **ports,
            **{f"{name}_url": f"http://127.0.0.1:{ports[f'{name}_port']}" for name in ("hub", "control", "proxy_api")},
        }
    )


@asynccontextmanager
async def pod(name: str, settings: Settings) -> AsyncIterator[None]:
    stopping = asyncio.Event()
    running = asyncio.create_task(run_remote_component(name, settings, stopping))
    try:
        yield
    finally:
        stopping.set()
        await running


@asynccontextmanager
async def serving(app: Any, port: int) -> AsyncIterator[None]:
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="off"))
    task = asyncio.create_task(server._serve())
    await until(lambda: server.started)
    try:
        yield
    finally:
        server.should_exit = server.force_exit = True
        await task


async def until_status(browser: httpx2.AsyncClient, path: str, status: int) -> None:
    async with asyncio.timeout(120):
        while True:
            with suppress(httpx2.TransportError):
                if (await browser.get(path)).status_code == status:
                    return
            await asyncio.sleep(0.1)


async def test_users_sign_in_and_routes_survive_a_lost_pod(tmp_path: Path) -> None:
    ports = {name: free_port() for name in ("port", "control_port", "hub_port", "proxy_api_port")}
    secrets = load_secrets(tmp_path / "mounted")
    control = Control(secrets.spawner_token)
    hub = settings_of(tmp_path, "hub", ports)
    url = f"http://127.0.0.1:{ports['port']}"
    async with serving(control.app, ports["control_port"]):
        async with (
            pod("hub", hub),
            pod("proxy", settings_of(tmp_path, "proxy", ports)),
            httpx2.AsyncClient(base_url=url, follow_redirects=True, trust_env=False, timeout=30) as browser,
        ):
            await until_status(browser, "/hub/health", 200)
            page = await sign_in(browser, "ada", secrets.users_password)
            assert page.url.path.startswith("/services/commonage/")
        assert not list((tmp_path / "hub").rglob("*.toml"))  # no file of routes
        # Both pods are replaced; the proxy's folder is lost.
        async with (
            pod("proxy", settings_of(tmp_path, "another-proxy", ports)),
            pod("hub", hub),
            httpx2.AsyncClient(base_url=url, trust_env=False, timeout=30) as browser,
        ):
            await until_status(browser, "/hub/health", 200)


async def test_a_proxy_is_ready_once_it_has_the_rules_of_hub_and_control_plane(tmp_path: Path) -> None:
    """An upgrade replaces all three. JupyterLab gives up a kernel for which a new proxy, without rules, answers 404."""
    ports = {name: free_port() for name in ("port", "control_port", "hub_port", "proxy_api_port")}
    token = load_secrets(tmp_path / "mounted").proxy_token
    control, hub = ServedRules(token), ServedRules(token)
    await hub.put(RULES)
    of_hub = Route(HUB_RULES_PATH, hub.route().endpoint, methods=["GET"])
    proxy = settings_of(tmp_path, "proxy", ports)
    async with (
        serving(Starlette(routes=[control.route()]), ports["control_port"]),
        serving(Starlette(routes=[of_hub]), ports["hub_port"]),
        httpx2.AsyncClient(base_url=proxy.proxy_api_url or "", trust_env=False) as client,
        pod("proxy", proxy),
    ):
        await until_status(client, "/ping", 200)
        await until((tmp_path / "proxy" / "proxy" / "rules" / "hub.yaml").exists)
        assert (await client.get("/ready")).status_code == 404
        await control.put(RULES)
        await until_status(client, "/ready", 200)
    async with pod("proxy", proxy), httpx2.AsyncClient(base_url=proxy.proxy_api_url or "", trust_env=False) as client:
        await until_status(client, "/ready", 200)  # its container was replaced while hub and control plane are away


async def test_the_control_plane_serves_rules_to_those_who_know_the_token() -> None:
    rules, port = ServedRules("secret"), free_port()
    async with serving(Starlette(routes=[rules.route()]), port), httpx2.AsyncClient(trust_env=False) as client:
        url = f"http://127.0.0.1:{port}/proxy-rules"
        known = {"Authorization": "token secret"}
        assert (await client.get(url, headers={"Authorization": "token other"})).status_code == 403
        assert (await client.get(url, headers=known)).status_code == 503  # a restart takes no route away
        await rules.put(RULES)
        answer = await client.get(url, headers=known)
        assert answer.text == RULES
        again = await client.get(url, headers={**known, "If-None-Match": answer.headers["ETag"]})
        assert again.status_code == 304


async def test_a_proxy_is_whoever_asks_for_the_rules_with_the_token() -> None:
    now = [0.0]
    rules, port = ServedRules("secret", lambda: now[0]), free_port()
    async with serving(Starlette(routes=[rules.route()]), port), httpx2.AsyncClient(trust_env=False) as client:
        url = f"http://127.0.0.1:{port}/proxy-rules"
        await client.get(url, headers={"Authorization": "token other"})
        assert rules.proxies() == []
        await client.get(url, headers={"Authorization": "token secret"})
        assert rules.proxies() == ["127.0.0.1"]
        now[0] = 60.0
        assert rules.proxies() == []


async def test_the_last_rules_stay_while_their_source_is_away(tmp_path: Path) -> None:
    rules, port, file = ServedRules("secret"), free_port(), tmp_path / "services.yaml"
    source = RulesSource("the control plane", f"http://127.0.0.1:{port}/proxy-rules", file)
    following = asyncio.create_task(follow_rules(source, "secret", every_s=0.01))
    await rules.put(RULES)
    async with serving(Starlette(routes=[rules.route()]), port):
        await until(file.exists)
    restarted = ServedRules("secret")
    async with serving(Starlette(routes=[restarted.route()]), port):
        await asyncio.sleep(0)
        assert file.read_text() == RULES
        await restarted.put(RULES.replace("one", "two"))
        await until(lambda: "two" in file.read_text())
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following


def test_components_derive_the_same_addresses(tmp_path: Path) -> None:
    ports = {"port": 8000, "control_port": 8081, "hub_port": 8082, "proxy_api_port": 8083}
    plan = remote_plan(settings_of(tmp_path, "hub", ports))
    assert (plan.hub_url, plan.control_url) == ("http://127.0.0.1:8082", "http://127.0.0.1:8081")
