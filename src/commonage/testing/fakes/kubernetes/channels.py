"""WebSocket streams of the double: commands in containers (protocols v5 and v4), and ports of Pods (v4).

As with a real kubelet, a command continues when its client is gone, and a port cannot be closed in one direction.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import struct
import termios
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from aiohttp import WSMsgType, web

EXEC_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
PORT_PROTOCOLS = ("v4.channel.k8s.io",)
_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_DATA, _ERROR = 0, 1
_CHUNK = 32 * 1024


class Client:
    """The other end of a WebSocket. What is sent to one that is gone is lost."""

    def __init__(self, stream: web.WebSocketResponse) -> None:
        self._stream = stream

    async def send(self, channel: int, data: bytes) -> None:
        with suppress(OSError):
            await self._stream.send_bytes(bytes([channel]) + data)

    async def messages(self) -> AsyncIterator[tuple[int, bytes]]:
        async for message in self._stream:
            if message.type is WSMsgType.BINARY and message.data:
                yield message.data[0], message.data[1:]

    async def close(self) -> None:
        await self._stream.close()


class Command:
    """A command next to the program of a container. `variables` carry the mark of the container."""

    def __init__(self, words: Sequence[str], variables: Mapping[str, str], folder: Path, *, has_terminal: bool) -> None:
        self._words, self._variables, self._folder, self._has_terminal = words, variables, folder, has_terminal
        self._terminal = -1
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Raises OSError."""
        if not self._has_terminal:
            self._process = await self._spawn(asyncio.subprocess.PIPE)
            return
        self._terminal, slave = os.openpty()
        try:
            self._process = await self._spawn(slave)
        finally:
            os.close(slave)

    async def _spawn(self, ends: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._words,
            env=dict(self._variables),
            cwd=self._folder,
            stdin=ends,
            stdout=ends,
            stderr=ends,
            start_new_session=True,
            preexec_fn=_take_terminal if self._has_terminal else None,
        )

    async def run(self, client: Client) -> None:
        """Send its output and its end."""
        process = self._running
        if self._has_terminal:
            await self._send_terminal(client)
        else:
            assert process.stdout is not None and process.stderr is not None
            await asyncio.gather(_send_all(process.stdout, client, _STDOUT), _send_all(process.stderr, client, _STDERR))
        code = await process.wait()
        await client.send(_STATUS, json.dumps(_status(128 - code if code < 0 else code)).encode())
        await client.close()

    async def _send_terminal(self, client: Client) -> None:
        reader = asyncio.StreamReader()
        with os.fdopen(self._terminal, "rb", buffering=0, closefd=False) as file:
            protocol = asyncio.StreamReaderProtocol(reader)
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, file)
            with suppress(OSError):  # the end of a terminal
                await _send_all(reader, client, _STDOUT)
            transport.close()
        terminal, self._terminal = self._terminal, -1
        os.close(terminal)

    async def take(self, client: Client) -> None:
        """Give it the input of the client, until that is gone."""
        async for channel, data in client.messages():
            if channel == _STDIN:
                await self._write(data)
            elif channel == _CLOSE and data == bytes([_STDIN]):
                self._end_input()
            elif channel == _RESIZE and self._terminal >= 0:
                size = json.loads(data)
                fcntl.ioctl(
                    self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size["Height"], size["Width"], 0, 0)
                )
        self._end_input()

    async def _write(self, data: bytes) -> None:
        if self._has_terminal:
            if self._terminal >= 0:
                await asyncio.to_thread(os.write, self._terminal, data)
            return
        stdin = self._running.stdin
        assert stdin is not None
        with suppress(OSError):
            stdin.write(data)
            await stdin.drain()

    def _end_input(self) -> None:
        if (stdin := self._running.stdin) is not None:
            stdin.close()

    @property
    def _running(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


async def _send_all(reader: asyncio.StreamReader, client: Client, channel: int) -> None:
    while data := await reader.read(_CHUNK):
        await client.send(channel, data)


def _status(code: int) -> Mapping[str, object]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


async def forward(client: Client, address: str, port: int) -> None:
    """Connect the client to a port of a Pod, until either side ends."""
    for channel in (_DATA, _ERROR):
        await client.send(channel, port.to_bytes(2, "little"))
    try:
        reader, writer = await asyncio.open_connection(address, port)
    except OSError as error:
        await client.send(_ERROR, f"error forwarding port {port} to pod: {error}".encode())
        await client.close()
        return
    taking = asyncio.create_task(_take_all(client, writer))
    try:
        with suppress(OSError):
            await _send_all(reader, client, _DATA)
    finally:
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        writer.close()
    await client.close()


async def _take_all(client: Client, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        async for channel, data in client.messages():
            if channel == _DATA:
                writer.write(data)
                await writer.drain()
    writer.close()
