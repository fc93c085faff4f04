"""The common part of all container engines, over a scripted fake client."""

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from tests.unit.engines.containers.test_program import request

from commonage.cancellation import to_the_end
from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import Allocation
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import RetryingStart, StartFailed, StoppedBeforeStart
from commonage.domain.statuses import Phase, StartRequest, Status
from commonage.engines.containers import engine as engine_module
from commonage.engines.containers import lifecycle
from commonage.engines.containers.attempt_backend import (
    Absent,
    ContainerState,
    Ended,
    NodeGone,
    Run,
    Running,
    Signal,
    Unreachable,
)
from commonage.engines.containers.daemon.connection import Connection
from commonage.engines.containers.engine import ContainerEngine
from commonage.engines.containers.files.control_folder import StartDecision
from commonage.engines.rundir import tasks
from commonage.engines.rundir.runs import Exit, RunFolder, Runs
from commonage.engines.settings import ContainerSettings
from commonage.files.safe_path import SafePath
from commonage.ports.agents import OnProgress

pytestmark = pytest.mark.anyio
PASSES = EngineFailure("the registry cannot be reached", retryable=True)


class FakeContainerClient:
    """A node of one container at most. `failing` and `blind` are raised by the next launches and looks."""

    def __init__(self) -> None:
        self.failing: deque[Exception] = deque()
        self.blind: deque[Exception] = deque()
        self.launched = 0
        self.signals: list[Signal] = []
        self.released: list[str] = []
        self.started_at: float | None = None
        self.over: Exit | None = None

    def node_of(self, request: StartRequest) -> str:
        return request.allocation.node

    def port_for(self, request: StartRequest, taken: Collection[int]) -> int | None:
        return None

    async def launch(self, run: Run, told: OnProgress) -> None:
        self.launched += 1
        if self.failing:
            raise self.failing.popleft()
        run.control_folder.path.mkdir(exist_ok=True)
        (run.control_folder.path / "claim").write_text("ran\n")
        self.started_at = self.started_at or time.time()

    async def inspect(self, run: Run) -> ContainerState:
        if self.blind:
            raise self.blind.popleft()
        if self.started_at is None:
            return Absent("")
        return Running(self.started_at) if self.over is None else Ended(self.started_at, self._end)

    async def _end(self) -> Exit:
        assert self.over is not None
        return self.over

    async def signal(self, run: Run, signal: Signal) -> None:
        self.signals.append(signal)
        self.over = Exit(7, None, time.time())

    async def remove(self, run: Run) -> None:
        """Nothing is left of it."""

    async def release(self, run: Run) -> None:
        self.released.append(run.id)


class Engine(ContainerEngine):
    def __init__(self, folder: Path, container_client: FakeContainerClient) -> None:
        super().__init__("site", "fake", folder, ContainerSettings(), Connection("unix:///nowhere"))
        self.fakes, self._folder = container_client, folder

    @property
    def _workspaces(self) -> SafePath:
        return SafePath(self._folder) / "workspaces"

    async def open(self) -> None:
        await self._recover(await self._load_requests(), self.fakes)

    async def hear(self) -> None:
        await self._settle_all()

    async def phase(self, is_so: Callable[[Status], bool]) -> Status:
        for _ in range(1000):
            (found,) = await self.statuses()
            if is_so(found):
                return found
            await asyncio.sleep(0.005)
        raise AssertionError(f"it stays {found}")


def has_ended(status: Status) -> bool:
    return status.phase is Phase.ENDED


def is_running(status: Status) -> bool:
    return status.phase is Phase.RUNNING


@pytest.fixture
def container_client() -> FakeContainerClient:
    return FakeContainerClient()


@pytest.fixture
async def engine(
    tmp_path: Path, container_client: FakeContainerClient, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Engine]:
    monkeypatch.setattr(lifecycle, "PAUSES_S", (0.01, 0.02, 0.05))
    monkeypatch.setattr(engine_module, "RETRY_S", 0.02)
    monkeypatch.setattr(tasks, "RETRY_S", 0.02)
    engine = Engine(tmp_path, container_client)
    await engine.open()
    yield engine
    await engine.close()


# --- trouble at the start -----------------------------------------------------------------------------------------


async def test_temporary_error_is_retried_and_reported(engine: Engine, container_client: FakeContainerClient) -> None:
    container_client.failing.extend([PASSES, PASSES])
    heard: list[Reason | None] = []

    async def watch() -> None:
        async for status in engine.watch():
            heard.append(status.reason)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await engine.start(request())
    await engine.phase(is_running)
    watching.cancel()
    assert container_client.launched == 3
    cause = StartFailed(error="the registry cannot be reached")
    assert RetryingStart(pause_s=0.01, cause=cause) in heard


async def test_persistent_error_is_lost_not_failed(engine: Engine, container_client: FakeContainerClient) -> None:
    container_client.failing.extend([PASSES] * 9)
    await engine.start(request())
    end = await engine.phase(has_ended)
    assert (end.exit_code, end.reason) == (None, StartFailed(error="the registry cannot be reached"))
    assert container_client.launched == 4
    assert container_client.released == ["w-1"]


@pytest.mark.parametrize(
    ("failure", "code"), [(EngineFailure("there is no such image"), 1), (NodeGone("its node is gone"), None)]
)
async def test_permanent_error_ends_start_at_once(
    engine: Engine, container_client: FakeContainerClient, failure: EngineFailure, code: int | None
) -> None:
    container_client.failing.append(failure)
    await engine.start(request())
    end = await engine.phase(has_ended)
    assert (end.exit_code, end.reason, container_client.launched) == (code, StartFailed(error=failure.message), 1)


async def test_unanswered_query_is_repeated(engine: Engine, container_client: FakeContainerClient) -> None:
    container_client.failing.extend([Unreachable("it is away"), Unreachable("it is away")])
    await engine.start(request())
    await engine.phase(is_running)
    assert container_client.launched == 3


async def test_stop_works_between_start_retries(
    engine: Engine, container_client: FakeContainerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "PAUSES_S", (3600.0,))
    container_client.failing.append(PASSES)
    await engine.start(request())
    await engine.phase(lambda status: isinstance(status.reason, RetryingStart))
    await engine.stop("w-1", 60)
    end = await engine.phase(has_ended)
    assert (end.exit_code, end.reason, container_client.launched) == (143, StoppedBeforeStart(), 1)


async def test_forget_waits_for_the_last_request_of_a_stopped_start(
    engine: Engine, container_client: FakeContainerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered, seen = asyncio.Event(), asyncio.Event(), list[str]()

    async def create() -> None:
        asked.set()
        await answered.wait()
        seen.append("created")

    async def remove(run: Run) -> None:
        seen.append("removed")

    monkeypatch.setattr(container_client, "launch", lambda run, told: to_the_end(create()))
    monkeypatch.setattr(container_client, "remove", remove)
    await engine.start(request())
    await asked.wait()
    await engine.stop("w-1", 60)
    await engine.phase(has_ended)
    asyncio.get_running_loop().call_later(0.05, answered.set)
    await engine.forget("w-1")
    assert seen == ["created", "removed"]


async def test_full_disk_does_not_fail_the_attempt(
    engine: Engine, container_client: FakeContainerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, really = deque([OSError("no space left")] * 4), RunFolder.write_exit

    def write(folder: RunFolder, end: Exit) -> None:
        if full:
            raise full.popleft()
        really(folder, end)

    monkeypatch.setattr(RunFolder, "write_exit", write)
    container_client.failing.extend([PASSES] * 9)
    await engine.start(request())
    end = await engine.phase(has_ended)
    assert (end.exit_code, end.reason) == (None, StartFailed(error="the registry cannot be reached"))


async def test_stop_during_failed_write_forbids_next_start(
    engine: Engine, container_client: FakeContainerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, really = deque([OSError("no space left")]), Runs.create

    def create(runs: Runs, stop: StartRequest, port: int | None) -> RunFolder:
        if full:
            raise full.popleft()
        return really(runs, stop, port)

    monkeypatch.setattr(Runs, "create", create)
    starting = asyncio.create_task(engine.start(request()))
    await asyncio.sleep(0)
    await engine.stop("w-1", 60)
    with pytest.raises(EngineFailure, match="no space left"):
        await starting
    while engine._tasks._tasks:  # the stop is seen to
        await asyncio.wait(engine._tasks._tasks)
    await engine.start(request())
    end = await engine.phase(has_ended)
    assert (end.exit_code, end.reason, container_client.launched) == (143, StoppedBeforeStart(), 0)


async def test_unwritable_stop_raises_engine_failure(engine: Engine, tmp_path: Path) -> None:
    """The caller tries again; other errors than EngineFailure are unexpected."""
    (tmp_path / "runs" / "w-1").write_text("in the place of its folder")
    with pytest.raises(EngineFailure, match="that w-1 is not to start cannot be written") as caught:
        await engine.stop("w-1", 60)
    assert caught.value.is_retryable


async def test_failed_stop_can_be_repeated(
    engine: Engine, container_client: FakeContainerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.start(request())
    await engine.phase(is_running)
    broken, really, asked = deque([KeyError("State")]), container_client.signal, asyncio.Event()

    async def signal(run: Run, signal: Signal) -> None:
        if broken:
            raise broken.popleft()
        await really(run, signal)
        asked.set()

    monkeypatch.setattr(container_client, "signal", signal)
    await engine.stop("w-1", 60)
    ending = engine._table.runs["w-1"].ending
    assert ending is not None
    await asyncio.wait([ending])
    await engine.stop("w-1", 60)
    await asked.wait()
    await engine.hear()
    assert (await engine.phase(has_ended)).exit_code == 7


# --- trouble at the end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "last_error", [Unreachable("it is away"), EngineFailure("Docker: 500", retryable=True), OSError("nfs")]
)
async def test_unreadable_end_is_retried(
    engine: Engine, container_client: FakeContainerClient, last_error: Exception
) -> None:
    await engine.start(request())
    await engine.phase(is_running)
    container_client.over = Exit(5, None, time.time())
    container_client.blind.extend([last_error, last_error])
    await engine.hear()
    assert (await engine.phase(has_ended)).exit_code == 5


async def test_an_end_that_could_not_be_written_is_written_when_there_is_room(
    engine: Engine, container_client: FakeContainerClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await engine.start(request())
    await engine.phase(is_running)
    room, really = tmp_path / "runs" / "w-1" / "room", RunFolder.write_exit
    tries: list[bool] = []

    def write(folder: RunFolder, end: Exit) -> None:
        tries.append(room.exists())
        if len(tries) <= 3:
            raise OSError("no space left")
        really(folder, end)

    monkeypatch.setattr(RunFolder, "write_exit", write)
    container_client.over = Exit(5, None, time.time())
    await engine.hear()
    assert (await engine.phase(has_ended)).exit_code == 5
    assert tries == [True, False, False, False], "what was kept for it is given up first"


# --- what its owner can write to ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lie", [-3600.0, 3600.0])
async def test_forged_times_are_clamped(engine: Engine, container_client: FakeContainerClient, lie: float) -> None:
    given = time.time()
    container_client.started_at = given + lie
    await engine.start(request(allocation=Allocation("w-1", "local", "here", 1500, 64, (), given)))
    running = await engine.phase(is_running)
    container_client.started_at, container_client.over = given - lie, Exit(0, None, given + lie)
    await engine.hear()
    end = await engine.phase(has_ended)
    assert running.started_at is not None
    assert given <= running.started_at <= end.at <= time.time()
    assert end.started_at == running.started_at


async def test_recovered_attempt_keeps_plausible_times(
    engine: Engine, container_client: FakeContainerClient, tmp_path: Path
) -> None:
    given = time.time()
    await engine.start(request(allocation=Allocation("w-1", "local", "here", 1500, 64, (), given)))
    await engine.phase(is_running)
    container_client.started_at, container_client.over = given + 3600, Exit(0, None, given - 3600)
    after = Engine(tmp_path, container_client)
    await after.open()
    end = await after.phase(has_ended)
    await after.close()
    assert end.started_at is not None
    assert given <= end.started_at <= end.at <= time.time()


async def test_running_attempt_is_stopped_despite_forged_claim(
    engine: Engine, container_client: FakeContainerClient, tmp_path: Path
) -> None:
    await engine.start(request())
    await engine.phase(is_running)
    os.unlink(tmp_path / "runs" / "w-1" / "control" / "claim")
    await engine.stop("w-1", 60)
    for _ in range(1000):
        if container_client.over is not None:
            break
        await asyncio.sleep(0.005)
    await engine.hear()
    end = await engine.phase(has_ended)
    assert (end.exit_code, container_client.signals) == (7, ["SIGTERM"])
    assert engine._table.runs["w-1"].control_folder.decision() is StartDecision.UNDECIDED


async def test_stop_waits_for_disk_space_to_forbid_start(
    engine: Engine, container_client: FakeContainerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "PAUSES_S", (3600.0,))
    container_client.failing.append(PASSES)
    await engine.start(request())
    await engine.phase(lambda status: isinstance(status.reason, RetryingStart))
    full, really = deque([OSError("no space left")] * 2), os.fdopen

    def opened(descriptor: int, *args: Any, **kwargs: Any) -> Any:
        file = really(descriptor, *args, **kwargs)
        if full:
            file.close()
            raise full.popleft()
        return file

    monkeypatch.setattr(os, "fdopen", opened)
    await engine.stop("w-1", 60)
    end = await engine.phase(has_ended)
    assert (end.exit_code, end.reason) == (143, StoppedBeforeStart())
