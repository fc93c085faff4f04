"""Route of exec: runs commands in workloads over a WebSocket. `commonage.wire.execs` describes its messages."""

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
from commonage.api.problems import problem_of
from commonage.api.routes.workloads import WORKLOAD, check_id
from commonage.api.routing import Context, Guarded, asks, caller, context, problems
from commonage.control.request_limits import Connection
from commonage.domain.errors import CommonageError, Forbidden, TooLarge
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal
from commonage.ports.execs import ExecStream, Terminal
from commonage.wire.execs import WINDOW, ExecIn, FromCommand, ToCommand
from commonage.wire.reasons import Problem

router = APIRouter(route_class=Guarded, tags=["workloads"])
_PATH = WORKLOAD + "/exec"
_MAX_PENDING_BYTES = 2 * WINDOW  # of input; a client that respects the window stays below
_CLOSE_TIMEOUT_S = 5.0


class UpgradeRequired(CommonageError):
    """Plain HTTP where a WebSocket is required."""

    code: ClassVar[str] = "upgrade-required"
    status: ClassVar[int] = 426


@router.get(
    _PATH,
    summary="Run a command in a workload",
    response_class=Response,
    responses=problems(
        "workload-not-found", "not-running", "forbidden", "not-found", "upgrade-required", "too-many-commands"
    ),
)
@asks(Permission.ENTER_WORKLOADS)
async def exec_by_http(request: Request, workload_id: str) -> Response:
    """Connect with a WebSocket and first send `{"command": ["ls", "-l"], "terminal": {"columns": 80, "rows": 24}}`.

    Without `terminal`, stdin, stdout and stderr are pipes. An empty command starts a shell. Binary messages to the
    server are input; binary messages from the server are output, after one byte for the stream (1 stdout, 2 stderr).
    Text messages to the server are `{"resize": {…}}` and `{"end": true}` (end of input); text messages from the server
    are `{"started": true}`, `{"taken": BYTES}`, `{"exit": CODE}` and `{"problem": {…}}`. At most 256 KiB of input may
    be sent without being acknowledged by `taken`. Closing the connection ends the command. Plain HTTP gets a problem
    document, which says why a connection would be refused.
    """
    api, principal = context(request), caller(request)
    await api.control.execs.check(principal, check_id(workload_id))
    api.control.connections.check(Connection.COMMAND, principal.name)
    error = UpgradeRequired("commands run over a WebSocket: connect with one, or use `commonage exec`")
    return failures.answer(problem_of(error), {"Upgrade": "websocket", "Connection": "Upgrade"})


@asks(Permission.ENTER_WORKLOADS)
async def connect(websocket: WebSocket) -> None:
    api = context(websocket)
    try:
        principal = await api.identify(websocket)
        _check_origin(websocket)
        workload_id = check_id(websocket.path_params["workload_id"])
        await api.control.execs.check(principal, workload_id)
        async with api.hold(Connection.COMMAND, websocket, principal):
            await websocket.accept()
            with api.streams.held():
                await _serve(websocket, api, principal, workload_id)
    except WebSocketDisconnect:
        return
    except CommonageError as error:
        await _refuse(websocket, error)
    except ValidationError as error:
        await _close(websocket, failures.of_validation(error.errors()))


router.routes.append(WebSocketRoute(_PATH, connect))


def _check_origin(connection: HTTPConnection) -> None:
    """Refuse pages of other sites, which could make a browser connect. Other clients send no origin."""
    site, origin = connection.headers.get("sec-fetch-site"), connection.headers.get("origin")
    foreign = site not in (None, "same-origin", "none")
    if origin is not None and origin.partition("://")[2] != connection.headers.get("host"):
        foreign = True
    if foreign:
        raise Forbidden(f"pages of {origin or 'another site'} may not run commands on this site")


async def _refuse(websocket: WebSocket, error: CommonageError) -> None:
    if websocket.application_state is WebSocketState.CONNECTING:
        await websocket.send_denial_response(failures.of_error(error))
    else:
        await _close(websocket, problem_of(error))


async def _close(websocket: WebSocket, why: Problem) -> None:
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await _send(websocket, FromCommand(problem=why))
            await websocket.close()
    except (WebSocketDisconnect, RuntimeError, TimeoutError):  # the client is gone, or does not read
        return


async def _send(websocket: WebSocket, message: FromCommand) -> None:
    await websocket.send_text(message.model_dump_json(exclude_none=True))


async def _serve(websocket: WebSocket, api: Context, principal: Principal, workload_id: str) -> None:
    first = ExecIn.model_validate_json(await _text(websocket), strict=True)
    size = first.terminal
    terminal = Terminal(size.columns, size.rows, size.kind) if size is not None else None
    stream = await api.control.execs.begin(principal, workload_id, first.command, terminal)
    try:
        await _send(websocket, FromCommand(started=True))
        await _Relay(websocket, stream).run()
    finally:
        await asyncio.shield(stream.close())


async def _text(websocket: WebSocket) -> str:
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect
    return str(message.get("text") or "")


class _Relay:
    """Connects a WebSocket with a running command, by three independent tasks.

    Messages are read at once, even if the command reads slowly, so that the end of the connection is always noticed.
    """

    def __init__(self, websocket: WebSocket, stream: ExecStream) -> None:
        self._websocket = websocket
        self._stream = stream
        self._inputs: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._pending_bytes = 0
        self._input_ended = False

    async def run(self) -> None:
        """Run until the command or the connection ends. Raises WebSocketDisconnect, ValidationError, CommonageError."""
        output = asyncio.create_task(self._send_output())
        tasks = {asyncio.create_task(self._receive()), asyncio.create_task(self._write_input()), output}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # The end of the command takes precedence, if the connection ended at the same time.
            for task in sorted(done, key=lambda task: task is not output):
                task.result()
                if task is output:
                    return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect
            data = message.get("bytes")
            if data is None:
                await self._control(ToCommand.model_validate_json(str(message["text"]), strict=True))
            elif data:
                self._pending_bytes += len(data)
                self._inputs.put_nowait(data)
            if self._pending_bytes > _MAX_PENDING_BYTES:
                raise TooLarge(
                    f"{self._pending_bytes} bytes of input are not acknowledged; at most {WINDOW} are allowed"
                )

    async def _control(self, message: ToCommand) -> None:
        if message.resize is not None:
            await self._stream.resize(message.resize.columns, message.resize.rows)
        if message.end and not self._input_ended:
            self._input_ended = True
            self._inputs.put_nowait(None)

    async def _write_input(self) -> None:
        while True:
            data = await self._inputs.get()
            if data is None:
                await self._stream.close_stdin()
                continue
            await self._stream.write(data)
            self._pending_bytes -= len(data)
            await _send(self._websocket, FromCommand(taken=len(data)))

    async def _send_output(self) -> None:
        while (chunk := await self._stream.read()) is not None:
            stream, data = chunk
            await self._websocket.send_bytes(bytes([stream]) + data)
        await _send(self._websocket, FromCommand(exit=await self._stream.exit_code()))
        await self._websocket.close()
