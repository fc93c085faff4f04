"""Runs cells in a Jupyter kernel through its WebSocket, as JupyterLab does."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import aiohttp

from benchmarks.report import BenchmarkError


class Kernel:
    """A kernel and its WebSocket; one cell at a time, each for at most `timeout_s`."""

    def __init__(self, channel: aiohttp.ClientWebSocketResponse, timeout_s: float = 60.0) -> None:
        self._channel, self._timeout_s = channel, timeout_s

    async def run(self, code: str) -> str:
        """The output of the cell, once the kernel is idle again. Raises BenchmarkError for a cell that fails."""
        message = uuid.uuid4().hex
        header = {"msg_id": message, "msg_type": "execute_request", "username": "", "session": "", "version": "5.3"}
        content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
        await self._channel.send_json(
            {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        )
        async with asyncio.timeout(self._timeout_s):
            return await self._output_of(message)

    async def _output_of(self, message: str) -> str:
        text = ""
        async for received in self._channel:
            if received.type is not aiohttp.WSMsgType.TEXT:
                continue
            answer: dict[str, Any] = json.loads(received.data)
            if answer["parent_header"].get("msg_id") != message:
                continue
            match answer["msg_type"], answer["content"]:
                case "stream", content:
                    text += content["text"]
                case "error", content:
                    raise BenchmarkError(f"a cell failed: {content['ename']}: {content['evalue']}")
                case "status", {"execution_state": "idle"}:
                    return text
        raise BenchmarkError("the kernel closed its connection before the cell ended")
