"""Calls of the Docker API for the baselines: plain services, an overlay network."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import httpx2

from benchmarks.report import BenchmarkError

_AT_ONCE = 16
_LOOK_S = 0.1
_GONE_WITHIN_S = 120.0
_LABEL = "commonage-bench"
_DONE = ("complete", "failed", "rejected", "shutdown", "orphaned")


@contextlib.asynccontextmanager
async def _client(url: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the daemon at unix:///… or tcp://…."""
    scheme, _, rest = url.partition("://")
    transport = httpx2.AsyncHTTPTransport(uds=rest if scheme == "unix" else None)
    base = "http://docker" if scheme == "unix" else f"http://{rest}"
    async with httpx2.AsyncClient(base_url=base, transport=transport, timeout=120) as client:
        yield client


async def _ask(client: httpx2.AsyncClient, method: str, path: str, **options: Any) -> Any:
    answer = await client.request(method, path, **options)
    if answer.status_code >= 400:
        raise BenchmarkError(f"Docker refused {method} {path}: {answer.status_code} {answer.text[:300]}")
    return answer.json() if answer.content[:1] in (b"{", b"[") else None


@contextlib.contextmanager
def docker_network(url: str, name: str, driver: str = "overlay", subnet: str | None = None) -> Iterator[str]:
    """A network of this name; removed when the context ends."""

    async def ask(method: str, path: str, **options: Any) -> None:
        async with _client(url) as client:
            for _ in range(50):  # Docker detaches endpoints shortly after their service is removed
                try:
                    await _ask(client, method, path, **options)
                except BenchmarkError as error:
                    if method != "DELETE" or "active endpoints" not in str(error):
                        raise
                    await asyncio.sleep(0.2)
                else:
                    return

    config: dict[str, Any] = {"Name": name, "Driver": driver, "Attachable": True}
    config |= {"IPAM": {"Config": [{"Subnet": subnet}]}} if subnet else {}
    asyncio.run(ask("POST", "/networks/create", json=config))
    try:
        yield name
    finally:
        asyncio.run(ask("DELETE", f"/networks/{name}"))


def until_none_runs(url: str, image: str) -> None:
    """Wait until all tasks of this image have ended, including those of removed services."""

    async def ask() -> None:
        async with _client(url) as client:
            give_up = time.perf_counter() + _GONE_WITHIN_S
            while time.perf_counter() < give_up:
                tasks = await _ask(client, "GET", "/tasks")
                of_it = [one for one in tasks if one["Spec"].get("ContainerSpec", {}).get("Image") == image]
                if all(one["Status"]["State"] in _DONE for one in of_it):
                    return
                await asyncio.sleep(_LOOK_S)
        raise BenchmarkError(f"containers of {image} still run {_GONE_WITHIN_S:.0f} s after all were stopped")

    asyncio.run(ask())


def until_waiting(url: str, count: int) -> None:
    """Wait until this number of warm containers are ready: they are paused once they have loaded their libraries."""

    async def ask() -> None:
        async with _client(url) as client:
            give_up = time.perf_counter() + 120 + 30 * count
            while time.perf_counter() < give_up:
                filters = json.dumps({"name": ["commonage-warm-"], "status": ["paused"]})
                waiting = await _ask(client, "GET", "/containers/json", params={"filters": filters})
                if len(waiting) >= count:
                    return
                await asyncio.sleep(_LOOK_S)
        raise BenchmarkError(f"there are no {count} warm containers")

    asyncio.run(ask())


def services_through(url: str, image: str, command: Sequence[str], count: int, network: str | None = None) -> float:
    """Seconds in which `count` plain services with this command are created and all have ended, on any worker.

    They are attached to `network`, if one is given.
    """
    task = {
        "ContainerSpec": {"Image": image, "Command": list(command), "Init": True},
        "RestartPolicy": {"Condition": "none"},
        "Placement": {"Constraints": ["node.role == worker"]},
        "Networks": [{"Target": network}] if network else [],
    }
    return asyncio.run(_services_through(url, task, count))


async def _services_through(url: str, task: dict[str, Any], count: int) -> float:
    gate = asyncio.Semaphore(_AT_ONCE)
    async with _client(url) as client:

        async def create(number: int) -> str:
            labels, endpoint = {_LABEL: "1"}, {"Mode": "dnsrr"}
            body = {"Name": f"{_LABEL}-{number}", "Labels": labels, "TaskTemplate": task, "EndpointSpec": endpoint}
            async with gate:
                made = await _ask(client, "POST", "/services/create", json=body)
            return str(made["ID"])

        began = time.perf_counter()
        made: list[str] = []
        try:
            made = list(await asyncio.gather(*(create(number) for number in range(count))))
            await _until_done(client, count)
            return time.perf_counter() - began
        finally:
            await asyncio.gather(*(_ask(client, "DELETE", f"/services/{one}") for one in made))


async def _until_done(client: httpx2.AsyncClient, count: int) -> None:
    filters = json.dumps({"label": [_LABEL]})
    give_up = time.perf_counter() + 600
    while time.perf_counter() < give_up:
        tasks = await _ask(client, "GET", "/tasks", params={"filters": filters})
        states = [task["Status"]["State"] for task in tasks]
        if sum(state in _DONE for state in states) >= count:
            bad = [task for task in tasks if task["Status"]["State"] != "complete"]
            if bad:
                raise BenchmarkError(f"{len(bad)} plain services failed: {bad[0]['Status']}")
            return
        await asyncio.sleep(_LOOK_S)
    raise BenchmarkError("the plain services did not end within ten minutes")
