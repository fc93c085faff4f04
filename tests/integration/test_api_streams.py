"""Streams of events and logs: they resume, send heartbeats, and end with the workload or the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import httpx2
import pytest
import uvicorn
from tests.fakes.waiting import until
from tests.integration.api_world import Api, serving

from commonage.api.app import end_streams
from commonage.testing.behaviour import Behaviour
from commonage.wire.hub import API_PATH

pytestmark = pytest.mark.anyio
STREAM = {"Accept": "text/event-stream"}


class Live:
    """The API on a real socket, in this event loop: streams need one."""

    def __init__(self, api: Api, server: uvicorn.Server, url: str) -> None:
        self.api, self.server, self.url = api, server, url

    def client(self, token: str = "ann") -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.url, headers={"Authorization": f"token {token}"}, timeout=10)


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with serving(tmp_path) as api:
        config = uvicorn.Config(api.app, port=0, access_log=False, log_level="warning", lifespan="off")
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield Live(api, server, f"http://127.0.0.1:{port}{API_PATH}")
        finally:
            end_streams(api.app)
            server.should_exit = True
            await task


async def submitted(client: httpx2.AsyncClient, **ask: object) -> str:
    response = await client.post("/workloads", json={"command": ["true"], **ask})
    return str(response.json()["workload"]["id"])


async def events(client: httpx2.AsyncClient, path: str, **headers: str) -> AsyncGenerator[httpx2.ServerSentEvent]:
    async with client.stream("GET", path, headers={**STREAM, **headers}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "no-store" in response.headers["cache-control"]
        assert response.headers["x-accel-buffering"] == "no"
        async for event in httpx2.EventSource(response):
            if event.data:  # without, it only tells where the stream begins
                yield event


async def test_log_is_followed_from_before_start_to_end(live: Live) -> None:
    live.api.engine.default = Behaviour(lasts_s=0.4, prints=("one", "two"), start_delay_s=0.2)
    async with live.client() as ann:
        job = await submitted(ann)
        got = [(one.event, one.id, json.loads(one.data)) async for one in events(ann, f"/workloads/{job}/logs")]
    assert [(event, data["text"]) for event, _, data in got[:-1]] == [("line", "one"), ("line", "two")]
    assert [id_ for _, id_, _ in got[:-1]] == [str(data["offset"]) for _, _, data in got[:-1]]
    event, _, data = got[-1]
    assert (event, data["state"], data["exit_code"], data["attempt"]) == ("end", "succeeded", 0, 1)


async def test_log_resumes_after_the_last_line(live: Live) -> None:
    live.api.engine.default = Behaviour(prints=("one", "two", "three"))
    async with live.client() as ann:
        job = await submitted(ann)
        await until(lambda: not live.api.control.queries.live_counts())
        path = f"/workloads/{job}/logs"
        first = await anext(events(ann, path))
        rest = [one async for one in events(ann, f"{path}?tail=1", **{"Last-Event-ID": first.id})]
        assert [json.loads(one.data).get("text") for one in rest] == ["two", "three", None]
        assert (await ann.get(path, params={"tail": 1})).text == "three\n"
        assert (await ann.get(path, params={"offset": first.id})).text == "two\nthree\n"


async def test_missing_log_is_not_found(live: Live) -> None:
    live.api.engine.default = Behaviour(lasts_s=None)
    async with live.client() as ann:
        ahead = await submitted(ann, gpus="1")
        waiting = await submitted(ann, gpus="1")
        await until(lambda: live.api.control.queries.queue_length() == 1)
        for query, headers in (("", {}), ("?attempt=3", {}), ("?attempt=3", STREAM)):
            response = await ann.get(f"/workloads/{waiting}/logs{query}", headers=headers)
            assert (response.status_code, response.json()["code"]) == (404, "log-not-found")
        stream = events(ann, f"/workloads/{waiting}/logs")
        following = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.1)
        assert not following.done()
        await ann.post(f"/workloads/{waiting}/stop")
        end = await following
        assert (end.event, json.loads(end.data)["state"], json.loads(end.data)["attempt"]) == ("end", "stopped", None)
        await stream.aclose()
        await ann.post(f"/workloads/{ahead}/stop")


async def test_events_resume_without_gap_or_repetition(live: Live) -> None:
    live.api.engine.default = Behaviour(lasts_s=0.1)
    async with live.client() as ann:
        seen: list[tuple[int, str]] = []

        async def listen(last: str) -> str:
            stream = events(ann, "/events", **{"Last-Event-ID": last})
            async for event in stream:
                data = json.loads(event.data)
                assert (event.event, event.id) == (data["kind"], str(data["seq"]))
                seen.append((data["seq"], data["workload_id"]))
                last = event.id
                if len(seen) % 3 == 0:
                    break
            await stream.aclose()
            return last

        last = "0"
        jobs = [await submitted(ann) for _ in range(4)]
        for _ in range(5):
            last = await listen(last)
        page = (await ann.get("/events", params={"limit": 500})).json()["items"]
        assert seen == [(one["seq"], one["workload_id"]) for one in page][: len(seen)]
        assert {job for _, job in seen} <= set(jobs)
        assert len(set(seen)) == len(seen) == 15


async def test_event_stream_starts_now_by_default(live: Live) -> None:
    async with live.client() as ann, live.client("bob") as bob:
        await submitted(ann, name="before")
        await until(lambda: not live.api.control.queries.live_counts())
        async with ann.stream("GET", "/events", headers=STREAM) as response:
            stream = aiter(httpx2.EventSource(response))
            assert not (await anext(stream)).data  # it tells where it begins
            await submitted(bob, name="not hers")
            after = await submitted(ann, name="after")
            assert json.loads((await anext(stream)).data)["workload_id"] == after


async def test_idle_stream_sends_heartbeats(live: Live) -> None:
    live.api.app.state.context.streams._heartbeat_s = 0.05
    async with live.client() as ann, ann.stream("GET", "/events", headers=STREAM) as response:
        text = response.aiter_text()
        assert await anext(text) == "id: 2\n\n"
        assert await anext(text) == ": still here\n\n"
        assert await anext(text) == ": still here\n\n"


async def test_disconnected_client_leaves_no_stream(live: Live) -> None:
    streams = live.api.app.state.context.streams
    async with live.client() as ann:
        async with ann.stream("GET", "/events", headers=STREAM):
            await until(lambda: len(streams) == 1)
        await until(lambda: len(streams) == 0)


async def test_server_stops_with_open_streams(live: Live) -> None:
    async with live.client() as ann, ann.stream("GET", "/events", headers=STREAM) as response:
        await until(lambda: len(live.api.app.state.context.streams) == 1)
        end_streams(live.api.app)
        live.server.should_exit = True
        assert await response.aread() == b"id: 2\n\n"
    await until(lambda: not live.server.server_state.connections)


async def test_a_log_of_many_lines_is_quick(live: Live) -> None:
    live.api.engine.default = Behaviour(prints=tuple(f"line {number}" for number in range(20_000)))
    async with live.client() as ann:
        job = await submitted(ann)
        await until(lambda: not live.api.control.queries.live_counts())
        count = 0
        async for _ in events(ann, f"/workloads/{job}/logs"):
            count += 1
        assert count == 20_001
        assert len((await ann.get(f"/workloads/{job}/logs")).text.splitlines()) == 20_000
