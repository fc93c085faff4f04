"""The route of commands beside a workload: a WebSocket, for those who are known. What is said on it: `wire.execs`."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from commonage.api import failures
from commonage.api.ids import WORKLOAD, known_form
from commonage.api.problems import problem_of
from commonage.api.routing import Context, Guarded, caller, context, problems
from commonage.control.tenants.connections import Connection
from commonage.domain.errors import CommonageError, Forbidden, TooLarge
from commonage.domain.principals import Principal
from commonage.ports.execs import ExecStream, Terminal
from commonage.wire.execs import WINDOW, ExecIn, FromCommand, ToCommand
from commonage.wire.workloads import Problem

router = APIRouter(route_class=Guarded, tags=["workloads"])
_PATH = WORKLOAD + "/exec"
_ENOUGH = 2 * WINDOW
"""Of input that waits; nobody who heeds the window sends so much."""
_LAST_WORDS_S = 5.0


class UpgradeRequired(CommonageError):
    """Asked for by plain HTTP."""

    code: ClassVar[str] = "upgrade-required"
    status: ClassVar[int] = 426


@router.get(
    _PATH,
    summary="Run a command beside it",
    response_class=Response,
    responses=problems(
        "workload-not-found", "not-running", "forbidden", "not-found", "upgrade-required", "too-many-commands"
    ),
)
async def exec_by_http(request: Request, workload_id: str) -> Response:
    """A WebSocket: the first message is `{"command": ["ls", "-l"], "terminal": {"columns": 80, "rows": 24}}`.

    Without `terminal` input, output and errors are piped; an empty command is a shell. Binary messages are input one
    way, and the other way output, behind a byte that says which (1 output, 2 errors). Text messages are
    `{"resize": {…}}` and `{"end": true}` (of the input) one way, `{"started": true}`, `{"taken": BYTES}`,
    `{"exit": CODE}` and `{"problem": {…}}` the other way. At most 256 KiB of input may be under way that were not
    `taken`. The end of the connection ends the command. Asked without a WebSocket, it answers what is in the way.
    """
    at, who = context(request), caller(request)
    await at.control.execs.check(who, known_form(workload_id))
    at.control.connections.check(Connection.COMMAND, who.name)
    error = UpgradeRequired("a command is run over a WebSocket: connect with one, or use `commonage exec`")
    return failures.answer(problem_of(error), {"Upgrade": "websocket", "Connection": "Upgrade"})


async def connect(websocket: WebSocket) -> None:
    """Refuse, or have a command run until it ends or the connection does."""
    at = context(websocket)
    try:
        who = await at.identify(websocket)
        _guard(websocket)
        workload_id = known_form(websocket.path_params["workload_id"])
        await at.control.execs.check(who, workload_id)
        async with at.hold(Connection.COMMAND, websocket, who):
            await websocket.accept()
            with at.streams.held():
                await _serve(websocket, at, who, workload_id)
    except WebSocketDisconnect:
        return
    except CommonageError as error:
        await _refuse(websocket, error)
    except ValidationError as error:
        await _end(websocket, failures.of_validation(error.errors()))


router.routes.append(WebSocketRoute(_PATH, connect))


def _guard(connection: HTTPConnection) -> None:
    """No page of somebody else's may make a browser connect. Who is no browser says no origin."""
    site, origin = connection.headers.get("sec-fetch-site"), connection.headers.get("origin")
    foreign = site not in (None, "same-origin", "none")
    if origin is not None and origin.partition("://")[2] != connection.headers.get("host"):
        foreign = True
    if foreign:
        raise Forbidden(f"pages of {origin or 'another site'} may not run commands here")


async def _refuse(websocket: WebSocket, error: CommonageError) -> None:
    if websocket.application_state is WebSocketState.CONNECTING:
        await websocket.send_denial_response(failures.of_error(error))
    else:
        await _end(websocket, problem_of(error))


async def _end(websocket: WebSocket, why: Problem) -> None:
    try:
        async with asyncio.timeout(_LAST_WORDS_S):
            await _say(websocket, FromCommand(problem=why))
            await websocket.close()
    except (WebSocketDisconnect, RuntimeError, TimeoutError):  # it is gone already, or reads nothing
        return


async def _say(websocket: WebSocket, message: FromCommand) -> None:
    await websocket.send_text(message.model_dump_json(exclude_none=True))


async def _serve(websocket: WebSocket, at: Context, who: Principal, workload_id: str) -> None:
    ask = ExecIn.model_validate_json(await _text(websocket), strict=True)
    wished = ask.terminal
    terminal = Terminal(wished.columns, wished.rows, wished.kind) if wished is not None else None
    stream = await at.control.execs.begin(who, workload_id, ask.command, terminal)
    try:
        await _say(websocket, FromCommand(started=True))
        await Talk(websocket, stream).run()
    finally:
        await asyncio.shield(stream.close())


async def _text(websocket: WebSocket) -> str:
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect
    return str(message.get("text") or "")


class Talk:
    """Between a WebSocket and a command that runs: three tasks, of which none keeps another from its turn.

    What comes is read at once, whatever the command takes: so the end of the connection is always noticed.
    """

    def __init__(self, websocket: WebSocket, stream: ExecStream) -> None:
        self._websocket = websocket
        self._stream = stream
        self._inputs: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting = 0
        self._has_ended = False

    async def run(self) -> None:
        """Until either ends. Raises WebSocketDisconnect, ValidationError, CommonageError."""
        speaking = asyncio.create_task(self._speak())
        tasks = {asyncio.create_task(self._listen()), asyncio.create_task(self._feed()), speaking}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # Its end counts, even where the connection ended at the same time.
            for task in sorted(done, key=lambda one: one is not speaking):
                task.result()
                if task is speaking:
                    return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect
            data = message.get("bytes")
            if data is None:
                await self._heed(ToCommand.model_validate_json(str(message["text"]), strict=True))
            elif data:
                self._waiting += len(data)
                self._inputs.put_nowait(data)
            if self._waiting > _ENOUGH:
                raise TooLarge(
                    f"{self._waiting} bytes of input wait; only {WINDOW} may be under way that were not taken"
                )

    async def _heed(self, stop: ToCommand) -> None:
        if stop.resize is not None:
            await self._stream.resize(stop.resize.columns, stop.resize.rows)
        if stop.end and not self._has_ended:
            self._has_ended = True
            self._inputs.put_nowait(None)

    async def _feed(self) -> None:
        while True:
            data = await self._inputs.get()
            if data is None:
                await self._stream.close_stdin()
                continue
            await self._stream.write(data)
            self._waiting -= len(data)
            await _say(self._websocket, FromCommand(taken=len(data)))

    async def _speak(self) -> None:
        while (said := await self._stream.read()) is not None:
            await self._websocket.send_bytes(bytes([said[0]]) + said[1])
        await _say(self._websocket, FromCommand(exit=await self._stream.exit_code()))
        await self._websocket.close()
