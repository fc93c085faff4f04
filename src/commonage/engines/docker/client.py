"""The few calls of the Docker daemon's API that this engine uses, and its events; every failure is an EngineFailure.

Descriptions go in and out as the daemon's own JSON; `translate` and `container_client` know their contents.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp

from commonage.domain.errors import EngineFailure
from commonage.domain.iterations import Iterations
from commonage.engines.containers.daemon.connection import (
    CONFLICT,
    GONE,
    Connection,
    DaemonRefused,
    Json,
    translated,
    unless_refused,
)
from commonage.engines.containers.usage import daemon_started_at
from commonage.engines.docker.translate import container_name

_FOREVER = aiohttp.ClientTimeout(total=None, sock_connect=5)
_EVENTS = ["start", "die", "kill", "oom", "destroy"]
# An event has all labels of its container, including its image's: an image may have many.
_EVENT_BYTES = 8 * 2**20


class Client(Connection):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._limits_sizes: bool | None = None

    # --- the daemon ---------------------------------------------------------------------------------------------

    def started_at(self) -> float | None:
        """Start time of the daemon's process, unix seconds; None if it is not on this computer. Blocks briefly."""
        parts = urlsplit(self.url)
        if parts.scheme != "unix":
            return None
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(2)
            probe.connect(parts.path)
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid, _, _ = struct.unpack("3i", credentials)
            # Another process may listen: the service manager, or a filter before the socket.
            return daemon_started_at(pid)
        return None

    async def events(self, label: str) -> AsyncIterator[Json]:
        """Yield events of containers with this label, from shortly before now.

        The first is empty: the connection is open. Ends when the connection does. Raises EngineFailure without one.
        """
        filters = {"type": ["container"], "event": _EVENTS, "label": [label]}
        params = {"filters": json.dumps(filters), "since": str(int(time.time()) - 1)}
        daemon = await self._daemon()
        url = f"{daemon.docker_host}/{daemon.api_version}/events"
        with translated(self.url):
            async with daemon.session.get(url, params=params, timeout=_FOREVER, read_bufsize=_EVENT_BYTES) as answer:
                answer.raise_for_status()
                yield {}
                async for line in answer.content:
                    yield json.loads(line)

    # --- containers ---------------------------------------------------------------------------------------------

    async def create(self, name: str, config: Json) -> str | None:
        """Return its id; None if the name is taken. Raises DaemonRefused, DaemonUnreachable."""
        with unless_refused(CONFLICT), translated(self.url):
            return (await (await self._daemon()).containers.create(config, name=name)).id
        return None

    async def rename(self, container: str, name: str) -> None:
        """Raises DaemonRefused if the name is taken."""
        await self.ask("POST", f"containers/{container}/rename?name={quote(name)}")

    async def pause(self, container: str) -> None:
        await self.ask("POST", f"containers/{container}/pause")

    async def unpause(self, container: str) -> None:
        await self.ask("POST", f"containers/{container}/unpause")

    async def limit_memory(self, container: str, limit: int) -> None:
        """Set the limit of its memory; it has no swap."""
        await self.ask("POST", f"containers/{container}/update", {"Memory": limit, "MemorySwap": limit})

    async def start(self, container: str) -> None:
        """Start it. A running one is left alone; an ended one would run again: the entry prevents that."""
        with translated(self.url):
            await (await self._daemon()).containers.container(container).start()

    async def inspect(self, container: str) -> Json | None:
        """Return its full description; None if this id or name does not exist."""
        with unless_refused(GONE), translated(self.url):
            return await (await self._daemon()).containers.container(container).show()
        return None

    async def kill(self, container: str, signal: str) -> None:
        """Send it a signal. A stopped container is no error."""
        with unless_refused(GONE, CONFLICT), translated(self.url):
            await (await self._daemon()).containers.container(container).kill(signal=signal)

    async def remove(self, container: str) -> None:
        """Remove it, whether it runs or not. A missing one, or one being removed, is no error."""
        with unless_refused(GONE, CONFLICT), translated(self.url):
            await (await self._daemon()).containers.container(container).delete(force=True, v=True)

    async def containers(self, label: str) -> Mapping[str, str]:
        """The names of all containers with this label, by their ids."""
        with translated(self.url):
            found = await (await self._daemon()).containers.list(all=1, filters=json.dumps({"label": [label]}))
        return {one.id: one["Names"][0].lstrip("/") for one in found}

    # --- volumes ------------------------------------------------------------------------------------------------

    async def limits_volume_size(self) -> bool:
        """True if the daemon can limit volume sizes: their files lie on XFS with project quotas.

        Determined by trying.
        """
        if self._limits_sizes is None:
            config = {"Name": f"commonage-probe-{secrets.token_hex(4)}", "DriverOpts": {"size": "1048576"}}
            try:
                with translated(self.url):
                    volumes: Any = (await self._daemon()).volumes  # the library gives no types here
                    await (await volumes.create(config)).delete()
                self._limits_sizes = True
            except DaemonRefused:
                self._limits_sizes = False
        return self._limits_sizes


_log = logging.getLogger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 2.0


@dataclass(frozen=True, slots=True)
class EventHandlers:
    """Callbacks: connected (again), an event of an attempt, the daemon does not answer."""

    on_connected: Callable[[], Awaitable[None]]
    heard: Callable[[str, str, str], None]
    on_disconnected: Callable[[str], None]


async def watch_events(client: Client, label: str, handlers: EventHandlers, iterations: Iterations) -> None:
    """Listen until cancelled. A turn is one event."""
    pause, was_there = _FIRST_PAUSE_S, True
    while True:
        why = f"the Docker daemon at {client.url} ended the connection"
        iterations.end()  # waiting for the daemon counts as rest
        try:
            async with aclosing(client.events(label)) as events:  # type: ignore[type-var]  # a generator in practice
                async for event in events:
                    iterations.begin()
                    if event:
                        attributes = event["Actor"]["Attributes"]
                        attempt = attributes.get("name", "").removeprefix(container_name(""))
                        handlers.heard(attempt, event["Action"], attributes.get("signal", ""))
                    else:
                        await handlers.on_connected()
                        if not was_there:
                            _log.warning("the Docker daemon at %s answers again", client.url)
                        pause, was_there = _FIRST_PAUSE_S, True
                    iterations.end()
        except EngineFailure as error:
            why = str(error)
        handlers.on_disconnected(why)
        if was_there:
            _log.error("%s", why)
        was_there = False
        with iterations.rest():
            await asyncio.sleep(pause)
        pause = min(_LONGEST_PAUSE_S, pause * 1.5)
