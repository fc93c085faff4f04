"""Following a session: what the progress page shows, to those who come early and late, and why it ended."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from commonage.hub.following import Follower, SessionEnded, Steps
from commonage.sdk.errors import ApiError, Unreachable

pytestmark = pytest.mark.anyio


async def test_early_and_late_readers_get_all_steps() -> None:
    steps = Steps()
    early = asyncio.create_task(read(steps))
    await asyncio.sleep(0)
    steps.add("asking", 2)
    steps.add("waiting", 10)
    steps.add("waiting", 10)  # nothing new
    await asyncio.sleep(0)
    late = asyncio.create_task(read(steps))
    await asyncio.sleep(0)
    steps.add("starting", 40)
    steps.close()
    assert await early == await late == await read(steps) == ["asking", "waiting", "starting"]


async def read(steps: Steps) -> list[str]:
    return [step["message"] async for step in steps.read()]


class FakeClient:
    """Shows one state after the other; an ApiError among them is raised."""

    def __init__(self, *states: dict[str, Any] | ApiError) -> None:
        self._states = itertools.chain(states, itertools.repeat(states[-1]))
        self._next = asyncio.Event()

    async def workload(self, _: str) -> SimpleNamespace:
        state = next(self._states)
        if isinstance(state, ApiError):
            raise state
        said = SimpleNamespace(message=state.get("reason", "Starting on gpu-1."))
        blank = {"notes": [], "node": "gpu-1", "internal_url": None, "progress": None}
        return SimpleNamespace(**blank | state | {"reason": said})

    async def explain(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(
            summary="Position 3 of 5 in the queue.", jobs_ahead=[SimpleNamespace(text="2 that wait longer")]
        )

    async def events(self, _: str, after: int) -> AsyncIterator[None]:
        while True:
            await asyncio.sleep(0)
            yield None

    async def logs(self, _: str, tail: int) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(text="no module named jupyter")


async def follow(shown: list[tuple[str, int]], *states: dict[str, Any] | ApiError) -> str:
    """Follow until ready; `shown` gets each message with its percentage."""
    client: Any = FakeClient(*states)
    async with asyncio.timeout(10):
        return await Follower(client, "id", "/user/alice/api", lambda *step: shown.append(step)).wait_until_ready()


async def test_follows_session_from_queue_until_ready() -> None:
    asked: list[bytes] = []
    shown: list[tuple[str, int]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        if len(asked) > 2:  # before, it is only Docker's proxy that has opened the port
            writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        found = await follow(
            shown,
            {"state": "queued"},
            {"state": "starting", "reason": "12 of 40 packages"},
            Unreachable("nobody there"),
            {"state": "starting"},
            {"state": "running", "internal_url": f"{url}/user/alice/"},
        )
    assert found == url
    assert asked == [b"GET /user/alice/api HTTP/1.0\r\n"] * 3
    assert [message for message, _ in itertools.groupby(message for message, _ in shown)] == [
        "Position 3 of 5 in the queue. Ahead of it: 2 that wait longer.",
        "12 of 40 packages",
        "The control plane does not answer; waiting for it",
        "Starting on gpu-1.",
        "Jupyter is starting on gpu-1",
    ]


@pytest.mark.parametrize(
    ("state", "reason", "sentence"),
    [
        ("failed", "ended with code 1", "ended with code 1\nno module named jupyter"),
        ("stopped", "stopped by alice", "stopped by alice"),
    ],
)
async def test_raises_when_session_ends_before_ready(state: str, reason: str, sentence: str) -> None:
    with pytest.raises(SessionEnded) as caught:
        await follow([], {"state": "running", "internal_url": "http://127.0.0.1:1"}, {"state": state, "reason": reason})
    assert (str(caught.value), caught.value.state) == (sentence, state)


async def test_raises_when_session_is_unknown() -> None:
    with pytest.raises(SessionEnded, match="no longer knows this session: no such workload"):
        await follow([], ApiError("workload-not-found", "no such workload", status=404))


async def test_progress_follows_the_slow_steps() -> None:
    shown: list[tuple[str, int]] = []
    states = [
        {"state": "starting", "reason": f"fetching the image x: {part} of 100 MB", "progress": part / 100}
        for part in (0, 50, 100)
    ]
    with pytest.raises(SessionEnded, match="no space left"):
        await follow(shown, *states, {"state": "failed", "reason": "no space left"})
    assert [percent for message, percent in shown if message.startswith("fetching")] == [40, 59, 79]


async def test_progress_decreases_only_for_a_requeue() -> None:
    shown: list[tuple[str, int]] = []
    with pytest.raises(SessionEnded, match="no space left"):
        await follow(
            shown,
            {"state": "starting", "reason": "fetching the image x: 90 of 100 MB", "progress": 0.9},
            {"state": "starting", "reason": "preparing on gpu-1: its image and network"},
            {"state": "queued", "reason": "first in the queue"},
            {"state": "starting", "reason": "starting on gpu-2"},
            {"state": "failed", "reason": "no space left"},
        )
    assert [percent for _, percent in shown] == [75, 75, 10, 40, 100]
