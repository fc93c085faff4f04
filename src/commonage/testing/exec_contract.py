"""Contract tests for commands next to an attempt (`Engine.exec`): inherit them together with `EngineContract`."""

from __future__ import annotations

import asyncio
import re
from typing import ClassVar

import pytest

from commonage.domain.statuses import Phase, StartRequest
from commonage.ports.execs import ERR, OUT, ExecStream, NotRunning, Terminal
from commonage.testing.behaviour import KILLED, Aside, Behaviour
from commonage.testing.engine_rig import FOREVER, EngineRig

_MUCH = bytes(range(256)) * 4096  # 1 MiB
_SIZE = rb"\d+ \d+\r\n"
_ALIKE = 4
_WITHIN_S = 60.0


class ExecContract:
    pytestmark: ClassVar = pytest.mark.anyio

    async def test_exec_command_has_its_own_exit_code(self, rig: EngineRig) -> None:
        request = await rig.started(rig.start_request(FOREVER))
        for code in (0, 42, 127, KILLED):
            stream = await _begun(rig, request, Aside(exit_code=code))
            await _said(stream)
            assert await stream.exit_code() == code
            await stream.close()
        await rig.phase(request.attempt_id, Phase.RUNNING)

    async def test_exec_pipes_are_complete_and_separate(self, rig: EngineRig) -> None:
        request = await rig.started(rig.start_request(FOREVER))
        stream = await _begun(rig, request, Aside(complains="a complaint", copies=True))

        async def give() -> None:
            await stream.write(_MUCH)
            await stream.close_stdin()

        giving = asyncio.create_task(give())
        said = await _said(stream)
        await giving
        assert said[ERR].splitlines() == [b"a complaint"]
        assert len(said[OUT]) == len(_MUCH)
        assert said[OUT] == _MUCH
        assert await stream.exit_code() == 0

    async def test_exec_command_has_the_attempts_context(self, rig: EngineRig) -> None:
        stop = rig.start_request(FOREVER, variables=(("PLAIN", "a b$c"),))
        request = await rig.started(stop)
        stream = await _begun(rig, request, Aside(shows=("PLAIN", "COMMONAGE_ATTEMPT_ID", "COMMONAGE_USER")))
        shown = (await _said(stream))[OUT].decode().splitlines()
        assert shown == ["PLAIN=a b$c", f"COMMONAGE_ATTEMPT_ID={request.attempt_id}", "COMMONAGE_USER=ada"]

    async def test_terminal_has_its_size_and_is_resized(self, rig: EngineRig) -> None:
        request = await rig.started(rig.start_request(FOREVER))
        stream = await _begun(rig, request, Aside(tells_size=True), Terminal(101, 37))
        assert b"37 101" in await _until(stream, _SIZE)
        await stream.resize(64, 16)
        await stream.write(b"\n")
        assert b"16 64" in await _until(stream, _SIZE)
        await stream.write(b"\x04")  # end of input
        await _said(stream)
        assert await stream.exit_code() == 0

    async def test_end_of_connection_ends_the_command(self, rig: EngineRig) -> None:
        request = await rig.started(rig.start_request(FOREVER))
        before = await _settled(rig, request)
        stays = await _begun(rig, request, Aside(prints="here", lasts=True))
        await _until(stays, b"here")
        beside = await _settled(rig, request)
        assert beside > before
        for terminal in (None, Terminal()):
            stream = await _begun(rig, request, Aside(prints="here", lasts=True, leaves_child=True), terminal)
            await _until(stream, b"here")
            await stream.close()
            await _has(rig, request, beside)
            assert await stream.exit_code() != 0
            assert await stream.read() is None
        await stays.close()
        await _has(rig, request, before)
        await rig.phase(request.attempt_id, Phase.RUNNING)

    async def test_leftover_processes_end_with_the_command(self, rig: EngineRig) -> None:
        request = await rig.started(rig.start_request(FOREVER))
        before = await _settled(rig, request)
        stream = await _begun(rig, request, Aside(prints="here", leaves_child=True))
        assert (await _said(stream))[OUT] == b"here\n"
        assert await stream.exit_code() == 0
        await stream.close()
        await _has(rig, request, before)

    async def test_unread_output_does_not_block_the_engine(self, rig: EngineRig) -> None:
        request = await rig.started(rig.start_request(FOREVER))
        before = await _settled(rig, request)
        stream = await _begun(rig, request, Aside(floods=True))
        await _until(stream, b"\n")
        await stream.close()
        await _has(rig, request, before)

    async def test_unread_output_does_not_prevent_the_end(self, rig: EngineRig) -> None:
        request = await rig.started(rig.start_request(FOREVER))
        stream = await _begun(rig, request, Aside(floods=True))
        await _until(stream, b"\n")
        await rig.pass_time(0.5)
        await (await rig.engine()).stop(request.attempt_id, 0)
        await rig.phase(request.attempt_id, Phase.ENDED)
        await stream.close()

    async def test_end_of_attempt_ends_the_command(self, rig: EngineRig) -> None:
        request = await rig.started(rig.start_request(FOREVER))
        stream = await _begun(rig, request, Aside(prints="here", lasts=True))
        await _until(stream, b"here")
        await (await rig.engine()).stop(request.attempt_id, 0)
        await rig.phase(request.attempt_id, Phase.ENDED)

        async def is_gone() -> bool:
            return await rig.processes(request.attempt_id) == 0

        await rig.until(is_gone, "the command is gone")
        await _said(stream)
        assert await stream.exit_code() > 128
        await stream.close()

    async def test_exec_in_unknown_attempt_is_refused(self, rig: EngineRig) -> None:
        over = rig.start_request(Behaviour())
        await rig.ended(over)
        for attempt in (over.attempt_id, rig.start_request(FOREVER).attempt_id, "../.."):
            with pytest.raises(NotRunning):
                await (await rig.engine()).exec(attempt, ("true",), None)


async def _begun(rig: EngineRig, request: StartRequest, aside: Aside, terminal: Terminal | None = None) -> ExecStream:
    return await (await rig.engine()).exec(request.attempt_id, rig.aside(aside), terminal)


async def _settled(rig: EngineRig, request: StartRequest) -> int:
    """The number of its processes once it is stable: a shell prints something before it starts its programs."""
    counts = [-1]
    while len(counts) < _ALIKE or len(set(counts[-_ALIKE:])) > 1:
        await rig.pass_time(0.1)
        counts.append(await rig.processes(request.attempt_id))
    return counts[-1]


async def _has(rig: EngineRig, request: StartRequest, count: int) -> None:
    """Wait until it has `count` processes; its supervisor may start a process of its own now and then."""

    async def is_so() -> bool:
        return await rig.processes(request.attempt_id) == count

    await rig.until(is_so, f"it has {count} processes")


async def _said(stream: ExecStream) -> dict[int, bytes]:
    said = {OUT: b"", ERR: b""}
    async with asyncio.timeout(_WITHIN_S):
        while (one := await stream.read()) is not None:
            said[one[0]] += one[1]
    return said


async def _until(stream: ExecStream, wanted: bytes) -> bytes:
    said = b""
    async with asyncio.timeout(_WITHIN_S):
        while not re.search(wanted, said):
            one = await stream.read()
            assert one is not None, f"it ended before it said {wanted!r}: {said!r}"
            said += one[1]
    return said
