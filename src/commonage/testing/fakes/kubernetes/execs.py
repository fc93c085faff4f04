"""Commands in containers over WebSocket, as the API server streams them (v5, without a terminal). For the double."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from aiohttp import WSMsgType, web

from commonage.engines.kubernetes.channels.execs import CLOSE, STATUS, STDIN, V5
from commonage.engines.kubernetes.manifest import Manifest
from commonage.ports.execs import ERR, OUT

_CHUNK_BYTES = 64 * 1024


async def stream(
    request: web.Request, words: Sequence[str], variables: Mapping[str, str], folder: Path
) -> web.WebSocketResponse:
    """Run the command, and pass its streams on until it ends, or the client goes."""
    socket = web.WebSocketResponse(protocols=(V5,), max_msg_size=0)
    await socket.prepare(request)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *words, env=dict(variables), cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    )
    assert process.stdout is not None and process.stderr is not None
    outputs = [_send(socket, OUT, process.stdout), _send(socket, ERR, process.stderr)]
    taking = asyncio.create_task(_take(socket, process))
    try:
        await asyncio.gather(*outputs)
        code = await process.wait()
        with suppress(ConnectionError):
            await socket.send_bytes(bytes([STATUS]) + json.dumps(_status(code)).encode())
        await socket.close()
    finally:
        taking.cancel()
        with suppress(ProcessLookupError):
            process.kill()
    return socket


async def _send(socket: web.WebSocketResponse, channel: int, output: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while data := await output.read(_CHUNK_BYTES):
            await socket.send_bytes(bytes([channel]) + data)


async def _take(socket: web.WebSocketResponse, process: asyncio.subprocess.Process) -> None:
    """Its input; the end of the connection is the end of the input."""
    assert process.stdin is not None
    with suppress(ConnectionError):
        async for message in socket:
            if message.type is not WSMsgType.BINARY:
                continue
            if message.data[:1] == STDIN:
                process.stdin.write(message.data[1:])
                await process.stdin.drain()
            elif message.data == CLOSE + STDIN:
                break
    process.stdin.close()


def _status(code: int) -> Manifest:
    if code == 0:
        return {"status": "Success"}
    cause = {"reason": "ExitCode", "message": str(code if code > 0 else 128 - code)}
    return {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}
