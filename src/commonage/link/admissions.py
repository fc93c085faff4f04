"""Connections to a listener of the control plane, each admitted and served in a task of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

_BACKLOG = 1000  # after a restart all agents or sites dial at once


def listen_at(bind: str, port: int) -> socket.socket:
    """A listening socket; port 0 is a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    return socket.create_server((bind, port), family=family, backlog=_BACKLOG)


class Admissions:
    """`admit` serves a connection to its end."""

    def __init__(
        self, admit: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
    ) -> None:
        self._admit = admit
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._admit(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
