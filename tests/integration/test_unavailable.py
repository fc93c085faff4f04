"""Answers of a real proxy right after its start, and while its targets are down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from tests.fakes.waiting import until

from commonage.server.processes.children import Supervisor
from commonage.server.processes.components import write_components
from commonage.server.processes.hub import HubPlan, hub_children
from commonage.server.processes.ports import free_port
from commonage.server.settings.settings import Settings

pytestmark = pytest.mark.anyio
PAGE = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy"
RULES = """
[http.routers.control]
rule = "PathPrefix(`/services/`)"
service = "control"
entryPoints = ["http"]
middlewares = ["unavailable"]
[[http.services.control.loadBalancer.servers]]
url = "http://127.0.0.1:{port}"
"""


@pytest.fixture
async def plan(tmp_path: Path) -> AsyncIterator[HubPlan]:
    """The proxy runs, and nothing else."""
    plan = HubPlan(tmp_path, Settings(), *(free_port() for _ in range(4)))
    proxy, _ = hub_children(plan)
    async with Supervisor([proxy]):
        yield plan


@pytest.fixture
async def browser(plan: HubPlan) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=plan.proxy_url, trust_env=False, timeout=30) as client:
        yield client


def is_page(answer: httpx2.Response) -> bool:
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    return '<meta http-equiv="refresh" content="5">' in answer.text


@pytest.mark.parametrize("path", ["/", "/hub/home", "/services/commonage/", "/user/ada/lab", "/nowhere"])
async def test_before_the_hub_has_said_a_route(browser: httpx2.AsyncClient, path: str) -> None:
    assert is_page(await browser.get(path, headers=PAGE))
    problem = await browser.post(path, content=b"x" * 2_000_000)
    assert problem.headers["Content-Type"] == "application/problem+json"
    assert (problem.status_code, problem.json()["code"]) == (503, "unavailable")


async def test_what_is_behind_a_route_is_down_or_answers_503_itself(plan: HubPlan, browser: httpx2.AsyncClient) -> None:
    async def busy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(BUSY)
        await writer.drain()
        writer.close()

    async def is_busy() -> bool:
        return (await browser.get("/services/commonage/", headers=PAGE)).text == "busy"

    async with await asyncio.start_server(busy, "127.0.0.1", plan.control_port):
        plan.rules_file.write_text(RULES.format(port=plan.control_port))
        await until(is_busy)
    assert is_page(await browser.get("/services/commonage/", headers=PAGE))
    assert (await browser.get("/services/commonage/api/v1/health")).json()["code"] == "unavailable"


async def test_a_control_plane_that_starts_again_describes_the_running_proxy_alike(tmp_path: Path) -> None:
    """Else a proxy that runs apart would be restarted with it."""
    plan = HubPlan(tmp_path, Settings(), *(free_port() for _ in range(4)))
    write_components(hub_children(plan), tmp_path)
    described = (tmp_path / "components" / "proxy.json").read_text()
    async with Supervisor(hub_children(plan)[:1]):
        write_components(hub_children(plan), tmp_path)
        assert (tmp_path / "components" / "proxy.json").read_text() == described
