"""Sessions come up a few at a time on each node."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.unit.engines.containers.test_program import request

from commonage.domain.reasons.attempts import WaitingForOtherSessions
from commonage.domain.statuses import Phase, Status
from commonage.domain.workloads import Kind
from commonage.engines.containers import lifecycle as start_limiter
from commonage.engines.containers.attempt_backend import Run, Table
from commonage.engines.containers.lifecycle import StartLimiter
from commonage.engines.rundir.runs import Runs
from commonage.ports.agents import ignore_progress

pytestmark = pytest.mark.anyio


class Scene:
    """An engine's live state, and start limiters for nodes of one core, on which two sessions may start at once."""

    def __init__(self, folder: Path) -> None:
        self.files = Runs(folder)
        self.files.open()
        self.table = Table()
        self.tasks: set[asyncio.Task[None]] = set()
        self.start_limiter = StartLimiter(self._spawn)
        self.told: list[tuple[str, str, float | None]] = []

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def run(self, name: str, kind: Kind = Kind.SESSION) -> Run:
        one = Run(request(attempt_id=name, kind=kind), self.files.folder(name), Status(name, Phase.STARTING, 0.0, "m"))
        self.table.runs[name] = one
        return one

    def taking(self, run: Run, node: str = "m") -> asyncio.Task[None]:
        return asyncio.create_task(
            self.start_limiter.take(run, node, 1, lambda *said: self.told.append((run.id, *said)))
        )

    def see(self, run: Run, seen: Phase, url: str | None = None) -> None:
        self.table.tell(run, Status(run.id, seen, 1.0, "m", url=url))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "runs")


@asynccontextmanager
async def server() -> AsyncIterator[str]:
    """Something that answers as a Jupyter server does; its address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.0 302 Found\r\n\r\n")
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def settled(*tasks: asyncio.Task[None]) -> list[bool]:
    await asyncio.sleep(0.05)
    return [task.done() for task in tasks]


async def test_sessions_start_in_order_as_slots_free_up(scene: Scene) -> None:
    runs = [scene.run(f"a{number}") for number in range(4)]
    waiting = [scene.taking(run) for run in runs]
    assert await settled(*waiting) == [True, True, False, False]
    waits = WaitingForOtherSessions(at_once=2, node="m")
    assert scene.told == [("a2", waits, 0.0), ("a3", waits, 0.0)]
    async with server() as url:
        scene.see(runs[1], Phase.RUNNING, url)
        await asyncio.wait_for(waiting[2], 10)
        assert await settled(waiting[3]) == [False]
    assert scene.told[2:] == [("a3", waits, 0.5)], "nearer by one"
    scene.see(runs[0], Phase.ENDED)
    await asyncio.wait_for(waiting[3], 10)
    assert len(scene.told) == 3


async def test_running_session_without_answer_holds_its_slot(scene: Scene) -> None:
    runs = [scene.run(f"a{number}") for number in range(3)]
    waiting = [scene.taking(run) for run in runs]
    async with server() as url:
        pass
    for run in runs[:2]:
        scene.see(run, Phase.RUNNING, url)  # refuses connections by now
    await asyncio.sleep(0.6)
    assert await settled(*waiting) == [True, True, False]
    waiting[2].cancel()


async def test_silent_session_releases_its_slot(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_limiter, "MAX_S", 0.2)
    waiting = [scene.taking(scene.run(f"a{number}")) for number in range(3)]
    await asyncio.wait_for(waiting[2], 10)


async def test_nodes_do_not_wait_for_each_other_nor_jobs_for_sessions(scene: Scene) -> None:
    full = [scene.taking(scene.run(f"a{number}")) for number in range(3)]
    assert await settled(*full) == [True, True, False]
    await asyncio.wait_for(scene.taking(scene.run("b"), node="other"), 10)
    await asyncio.wait_for(scene.taking(scene.run("c", Kind.JOB)), 10)
    full[2].cancel()


async def test_stopped_waiter_takes_no_slot(scene: Scene) -> None:
    runs = [scene.run(f"a{number}") for number in range(4)]
    waiting = [scene.taking(run) for run in runs]
    await settled(*waiting)
    waiting[2].cancel()
    scene.see(runs[0], Phase.ENDED)
    await asyncio.wait_for(waiting[3], 10)


async def test_retried_start_takes_one_slot(scene: Scene) -> None:
    first = scene.run("a")
    for _ in range(3):
        await asyncio.wait_for(scene.start_limiter.take(first, "m", 1, ignore_progress), 10)
    await asyncio.wait_for(scene.taking(scene.run("b")), 10)
