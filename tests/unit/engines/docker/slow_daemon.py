"""A daemon that still carries out a request when the start that sent it has been stopped."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import pytest


class SlowDaemon:
    """`names` are those that it gave to containers."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._asked, self._may_answer = asyncio.Event(), asyncio.Event()

    async def create(self, name: str, config: Mapping[str, Any]) -> str:
        await self._name(name)
        return "id"

    async def rename(self, container: str, name: str) -> None:
        await self._name(name)

    async def _name(self, name: str) -> None:
        self._asked.set()
        await self._may_answer.wait()
        self.names.append(name)

    async def stop(self, start: Coroutine[Any, Any, Any]) -> None:
        """Stop this start while its request is carried out; returns when the start has ended."""
        starting = asyncio.create_task(start)
        await self._asked.wait()
        starting.cancel()
        asyncio.get_running_loop().call_later(0.05, self._may_answer.set)
        with pytest.raises(asyncio.CancelledError):
            await starting
