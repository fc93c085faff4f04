"""Commands over the link: both ends of it, with a command that the test acts out in place of a daemon's."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import chain, repeat
from typing import Any

import pytest

from commonage.agent.containers.docker import DockerDaemon
from commonage.agent.containers.execs import Execs
from commonage.domain.errors import EngineFailure
from commonage.link.connection import Connection
from commonage.link.exchange import ConnectionLost
from commonage.link.execs import EXEC, STDIN, WINDOW_BYTES, ExecData, LinkExecs
from commonage.link.messages import MEASURE, Measured, Nothing, RequestType
from commonage.ports.execs import ERR, OUT, NotRunning, Terminal
from commonage.testing.behaviour import Aside
from commonage.testing.fakes.exec import FakeExec

pytestmark = pytest.mark.anyio


class Counting(FakeExec):
    """Counts what was read of it."""

    given = 0

    async def read(self) -> tuple[int, bytes] | None:
        message_frame = await super().read()
        self.given += len(message_frame[1]) if message_frame is not None else 0
        return message_frame


class Ends:
    """The control plane's end, and the agent's."""

    def __init__(self, aside: Aside, kind: type[Counting]) -> None:
        self.aside, self.kind = aside, kind
        self.made: list[Counting] = []
        self.states: Iterator[str] = repeat("running")
        self.lines = LinkExecs()
        self.agent = Execs(DockerDaemon("unix:///nowhere.sock"))
        self.agent._daemon = self  # type: ignore[assignment]  # it knows one container
        self.agent._execs = self  # type: ignore[assignment]  # and begins commands in it

    def containers(self, label: str, *, ended_too: bool) -> list[dict[str, str]]:
        assert ended_too
        return [{"Id": "c0ffee", "State": next(self.states)}] if label.endswith("=here-1") else []

    async def begin(self, container: str, attempt: str, command: object, terminal: Terminal | None) -> Counting:
        self.made.append(self.kind(self.aside, terminal, {}))
        return self.made[-1]


async def _measured(_params: object, on_progress: object) -> Measured:
    return Measured(())


@asynccontextmanager
async def linked(aside: Aside, kind: type[Counting] = Counting) -> AsyncIterator[tuple[Ends, Connection]]:
    """Both ends, and the peer by which the control plane asks."""
    ends = Ends(aside, kind)
    request_handlers: dict[RequestType[Any, Any], Callable[..., Awaitable[object]]] = {
        EXEC: ends.agent.run,
        MEASURE: _measured,
    }
    ours, theirs = socket.socketpair()
    control = Connection("agent", *await asyncio.open_connection(sock=ours), {}, ends.lines.message_handlers())
    agent = Connection(
        "control", *await asyncio.open_connection(sock=theirs), request_handlers, ends.agent.message_handlers()
    )
    ends.agent.set_connection(agent)
    running = [asyncio.create_task(one.run()) for one in (control, agent)]
    try:
        yield ends, control
    finally:
        for one in (control, agent):
            one.close("the test is over")
        await asyncio.gather(*running, return_exceptions=True)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 (there is nothing to wait for but time)
            await asyncio.sleep(0.01)


async def test_passes_input_output_and_exit_code() -> None:
    async with linked(Aside(complains="no", copies=True, exit_code=3)) as (ends, control):
        line = await ends.lines.begin(control, "here-1", ("sh",), None)
        data = bytes(range(256)) * 2048
        writing = asyncio.create_task(line.write(data))
        message_frame = {OUT: b"", ERR: b""}
        while len(message_frame[OUT]) < len(data):
            one = await line.read()
            assert one is not None
            message_frame[one[0]] += one[1]
        await writing
        await line.close_stdin()
        assert await line.read() is None
        assert (message_frame[OUT], message_frame[ERR], await line.exit_code()) == (data, b"no\n", 3)
        await line.close()


async def test_slow_reader_does_not_block_the_link() -> None:
    async with linked(Aside(floods=True)) as (ends, control):
        line = await ends.lines.begin(control, "here-1", ("yes",), None)
        await until(lambda: ends.made[0].given >= WINDOW_BYTES)
        assert await control.request(MEASURE, Nothing()) == Measured(())
        await asyncio.sleep(0.1)
        assert ends.made[0].given <= WINDOW_BYTES + 64 * 1024, "no more was taken from it than the window allows"
        await line.close()
        assert ends.made[0].code is not None
        assert await line.exit_code() == ends.made[0].code


async def test_terminal_gets_its_size() -> None:
    async with linked(Aside(tells_size=True)) as (ends, control):
        line = await ends.lines.begin(control, "here-1", (), Terminal(90, 30))
        assert await line.read() == (OUT, b"30 90\r\n")
        await line.resize(70, 20)
        await line.write(b"\n")
        assert await line.read() == (OUT, b"20 70\r\n")
        await line.close()


class Stuck(Counting):
    """Reads no input, and counts the sizes of its terminal."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sizes: list[tuple[int, int]] = []
        self.reads = asyncio.Event()

    async def write(self, data: bytes) -> None:
        await self.reads.wait()

    async def resize(self, columns: int, rows: int) -> None:
        self.sizes.append((columns, rows))


async def test_only_the_newest_size_waits_for_a_program_that_reads_nothing() -> None:
    async with linked(Aside(lasts=True), Stuck) as (ends, control):
        line = await ends.lines.begin(control, "here-1", (), Terminal(90, 30))
        (command,) = ends.agent._running.values()
        stuck: Any = ends.made[0]
        await line.write(b"\n")
        for columns in range(1, 1001):
            await line.resize(columns, 20)
        assert await control.request(MEASURE, Nothing()) == Measured(())  # all before it have arrived
        assert command._inputs.qsize() <= 1
        stuck.reads.set()
        await until(lambda: stuck.sizes[-1:] == [(1000, 20)])
        assert len(stuck.sizes) <= 2
        await line.close()


@pytest.mark.parametrize("is_output", [True, False])
async def test_more_than_the_window_allows_ends_the_link(is_output: bool) -> None:
    async with linked(Aside(lasts=True), Stuck) as (ends, control):
        line = await ends.lines.begin(control, "here-1", (), Terminal(90, 30))
        sender, receiver = (ends.agent._connection, control) if is_output else (control, ends.agent._connection)
        sent = ExecData(line._request.id, OUT if is_output else STDIN, base64.b64encode(b"x" * 1024).decode())
        for _ in range(WINDOW_BYTES // 1024):
            sender.send("exec-data", sent)
        assert await control.request(MEASURE, Nothing()) == Measured(())  # all before it has arrived, within the window
        sender.send("exec-data", sent)
        await until(lambda: receiver.is_closed)
        assert "only 0 were allowed" in str(receiver._close_reason)


@pytest.mark.parametrize(("stream", "data"), [(OUT, ""), (STDIN, "eA=="), (999, "eA==")])
async def test_output_that_is_none_ends_the_link(stream: int, data: str) -> None:
    async with linked(Aside(lasts=True)) as (ends, control):
        line = await ends.lines.begin(control, "here-1", (), None)
        ends.agent._connection.send("exec-data", ExecData(line._request.id, stream, data))
        await until(lambda: control.is_closed)
        assert "sent no output" in str(control._close_reason)


async def test_refuses_commands_for_attempts_that_do_not_run() -> None:
    async with linked(Aside()) as (ends, control):
        with pytest.raises(NotRunning):
            await ends.lines.begin(control, "elsewhere-1", ("true",), None)
        assert not ends.made


async def test_waits_for_a_created_container_to_run() -> None:
    async with linked(Aside(exit_code=3)) as (ends, control):
        ends.states = chain(["created", "created"], repeat("running"))
        line = await ends.lines.begin(control, "here-1", ("true",), None)
        assert await line.exit_code() == 3
        await line.close()
        ends.states = repeat("exited")
        with pytest.raises(NotRunning):
            await ends.lines.begin(control, "here-1", ("true",), None)


async def test_lost_link_ends_the_command() -> None:
    async with linked(Aside(lasts=True)) as (ends, control):
        line = await ends.lines.begin(control, "here-1", ("sleep",), None)
        control.close("a cable")
        with pytest.raises(ConnectionLost):
            await line.read()
        with pytest.raises(EngineFailure):
            await line.exit_code()
        await line.close()
        await until(lambda: ends.made[0].code is not None)
