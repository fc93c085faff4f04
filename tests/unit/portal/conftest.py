"""A portal over control in memory, and people who look at it without a browser."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from tests.fakes.portal import Portal

from commonage.control.workloads.submission import Submission
from commonage.domain.principals import Principal
from commonage.domain.requests import parse_gpus
from commonage.domain.workloads import Kind, State, Workload
from commonage.testing.fakes.clock import FakeClock
from commonage.wire.hub import CALLBACK_PATH, PORTAL_PATH

from tests.fakes.portal import ADMIN, USER  # isort: skip


class Person:
    """A user's browser: keeps cookies, follows no redirect by itself."""

    def __init__(self, portal: Portal, address: str = "127.0.0.1") -> None:
        transport = httpx2.ASGITransport(portal.app, client=(address, 50_000))
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://portal.test")

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        """A page by its path below the portal's."""
        sent = {k.replace("_", "-"): v for k, v in headers.items()}
        return _in_one_line(await self.client.get(f"{PORTAL_PATH}{path}", headers=sent))

    async def post(self, path: str, data: dict[str, Any] | None = None, **headers: str) -> httpx2.Response:
        """A form, with the token that the pages carry unless it has one."""
        fields = {"csrf": await self.csrf(), **(data or {})}
        sent = {k.replace("_", "-"): v for k, v in headers.items()}
        return _in_one_line(await self.client.post(f"{PORTAL_PATH}{path}", data=fields, headers=sent))

    async def csrf(self) -> str:
        page = (await self.get("launch")).text
        return page.partition('name="csrf" value="')[2].partition('"')[0]

    async def sign_in(self, name: str) -> httpx2.Response:
        """By the way through the hub; the last answer."""
        sent_away = await self.get("")
        state = parse_qs(urlsplit(sent_away.headers["location"]).query)["state"][0]
        return await self.client.get(CALLBACK_PATH, params={"state": state, "code": f"code-{name}"})


def _in_one_line(answer: httpx2.Response) -> httpx2.Response:
    """The answer with each run of whitespace as one space, as a browser shows it: templates break lines freely."""
    if not answer.headers.get("content-type", "").startswith("text/html"):
        return answer
    html = re.sub(r"\s+", " ", answer.text)
    return httpx2.Response(answer.status_code, headers=answer.headers, text=html, request=answer.request)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def portal(clock: FakeClock) -> AsyncIterator[Portal]:
    async with Portal(clock).running() as running:
        await clock.advance(6)
        yield running


@pytest.fixture
async def ann(portal: Portal) -> Person:
    person = Person(portal)
    await person.sign_in("ann")
    return person


@pytest.fixture
async def root(portal: Portal) -> Person:
    person = Person(portal)
    await person.sign_in("root")
    return person


@pytest.fixture
def submit(portal: Portal, clock: FakeClock) -> Callable[..., Any]:
    """`await submit("ann", name=…, gpus=…)`: a job, planned, and started where it fits; `ended`: seen to its end."""
    root = Principal("root", ADMIN)

    async def submitted(owner: str = "ann", gpus: str | None = None, *, ended: bool = False, **fields: Any) -> Workload:
        fields = {"kind": Kind.JOB, "command": ("true",), "gpu": parse_gpus(gpus), "owner": owner, **fields}
        hub = Principal("hub", ADMIN) if fields["kind"] is Kind.SESSION else Principal(owner, USER)
        made = await portal.control.workloads.submit(hub, Submission(**fields))
        for _ in range(200):
            await clock.advance(0.5)
            await asyncio.sleep(0)  # sampling asks the GPUs in a thread
            found = await portal.control.queries.workload(root, made.workloads[0].id)
            settled = found.state.is_terminal if ended else _settled(found, portal)
            if settled:
                return found
        raise AssertionError(f"{found.id} is still {found.state}: {found.reason}")

    return submitted


def _settled(workload: Workload, portal: Portal) -> bool:
    """It runs, has ended, or the scheduler has said why it waits."""
    if workload.state is State.QUEUED:
        return portal.control.queries.details(workload).reason != workload.reason
    return workload.state is not State.STARTING
