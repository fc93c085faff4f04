"""A notebook run cell by cell in a session's kernel, through the proxy and its WebSocket, as JupyterLab does it."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp


def by_number(session_url: str) -> tuple[str, dict[str, str]]:
    """A session's address for programs, which may not know names below `localhost`, and the header with the name."""
    parts = urlsplit(session_url)
    if parts.scheme == "https":
        return session_url, {}  # the certificate is for the name
    return f"http://127.0.0.1:{parts.port}{parts.path}", {"Host": parts.netloc}


async def run_notebook(
    session_url: str, token: str, notebook: Path, connector: aiohttp.BaseConnector | None = None
) -> list[str]:
    """The text that each code cell of `notebook` put out. Raises AssertionError for a cell that fails."""
    cells = json.loads(notebook.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    session_url, host = by_number(session_url)
    headers = {"Authorization": f"token {token}", **host}
    async with aiohttp.ClientSession(headers=headers, connector=connector) as http:
        async with http.post(f"{session_url}api/kernels", json={"name": "python3"}) as made:
            assert made.status == 201, await made.text()
            kernel = (await made.json())["id"]
        async with http.ws_connect(f"{session_url}api/kernels/{kernel}/channels", max_msg_size=1 << 26) as channel:
            texts = [await asyncio.wait_for(_run_cell(channel, source), 120) for source in sources]
        async with http.delete(f"{session_url}api/kernels/{kernel}"):
            pass
    return texts


async def run_cells(session_url: str, token: str, *sources: str, interrupt_at: str = "") -> list[str]:
    """The output of each cell as text, errors included. When `interrupt_at` appears in it, the kernel is interrupted as
    by JupyterLab's button.
    """
    session_url, host = by_number(session_url)
    headers = {"Authorization": f"token {token}", **host}
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.post(f"{session_url}api/kernels", json={"name": "python3"}) as made:
            kernel = f"{session_url}api/kernels/{(await made.json())['id']}"

        async def interrupt(text: str) -> bool:
            if not interrupt_at or interrupt_at not in text:
                return False
            async with http.post(f"{kernel}/interrupt") as done:
                return done.status == 204

        async with http.ws_connect(f"{kernel}/channels", max_msg_size=1 << 26) as channel:
            texts = [await asyncio.wait_for(_run_cell(channel, one, interrupt, fails=True), 240) for one in sources]
        async with http.delete(kernel):
            pass
    return texts


@asynccontextmanager
async def computing(session_url: str, token: str, source: str) -> AsyncIterator[None]:
    """A kernel was sent a cell, and its WebSocket stays open inside. It is not waited for."""
    session_url, host = by_number(session_url)
    async with aiohttp.ClientSession(headers={"Authorization": f"token {token}", **host}) as http:
        async with http.post(f"{session_url}api/kernels", json={"name": "python3"}) as made:
            assert made.status == 201, await made.text()
            kernel = (await made.json())["id"]
        async with http.ws_connect(f"{session_url}api/kernels/{kernel}/channels") as channel:
            await channel.send_json(_execute(source, uuid.uuid4().hex))
            yield


async def terminal_says(session_url: str, token: str, command: str, end: str) -> str:
    """Output of `command` in a terminal of the session, up to `end`, which it prints last."""
    session_url, host = by_number(session_url)
    headers, text = {"Authorization": f"token {token}", **host}, ""
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.post(f"{session_url}api/terminals") as made:
            assert made.status == 200, await made.text()
            name = (await made.json())["name"]
        async with http.ws_connect(f"{session_url}terminals/websocket/{name}") as channel, asyncio.timeout(60):
            await channel.send_json(["stdin", f"{command}\n"])
            while end not in text:
                kind, *said = await channel.receive_json()
                text += said[0] if kind == "stdout" else ""
        async with http.delete(f"{session_url}api/terminals/{name}"):
            pass
    return text


async def _never(_text: str) -> bool:
    return False


def _execute(source: str, message: str) -> dict[str, Any]:
    content = {"code": source, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
    header = {"msg_id": message, "msg_type": "execute_request", "username": "test", "session": "test", "version": "5.3"}
    return {
        "header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell", "buffers": [],
    }  # fmt: skip


async def _run_cell(
    channel: aiohttp.ClientWebSocketResponse,
    source: str,
    interrupt: Callable[[str], Awaitable[bool]] = _never,
    *,
    fails: bool = False,
) -> str:
    message = uuid.uuid4().hex
    await channel.send_json(_execute(source, message))
    text, interrupted = "", False
    async for received in channel:
        if received.type is not aiohttp.WSMsgType.TEXT:
            continue
        said: dict[str, Any] = json.loads(received.data)
        if said["parent_header"].get("msg_id") != message:
            continue
        match said["msg_type"]:
            case "stream":
                text += said["content"]["text"]
            case "execute_result" | "display_data" | "update_display_data":
                text += said["content"]["data"].get("text/plain", "")
            case "error" if fails:
                text += f"{said['content']['ename']}: {said['content']['evalue']}"
            case "error":
                raise AssertionError("\n".join(said["content"]["traceback"]))
            case "status" if said["content"]["execution_state"] == "idle":
                return text
        interrupted = interrupted or await interrupt(text)
    raise AssertionError("the kernel's channel closed before the cell ended")
