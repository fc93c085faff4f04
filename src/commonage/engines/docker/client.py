"""The Docker daemon as this engine uses it: a few calls of its API, every failure an EngineFailure of ours.

Descriptions go in and out as the daemon's own JSON; what is in them is for `translate` and `sightings` to know.
"""

from __future__ import annotations

import json
import secrets
import socket
import struct
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from commonage.engines.containers.kernel import daemon_started_at
from commonage.engines.dockerd.connection import Connection, Json
from commonage.engines.dockerd.errors import Refused, translated

_FOREVER = aiohttp.ClientTimeout(total=None, sock_connect=5)
_EVENTS = ["start", "die", "kill", "oom", "destroy"]
# An event has all labels of its container, its image's among them: an image may have many.
_EVENT_BYTES = 8 * 2**20


class Client(Connection):
    """One daemon at `url` (unix:///…, or tcp://…)."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._holds_sizes: bool | None = None

    # --- the daemon ---------------------------------------------------------------------------------------------

    def started_at(self) -> float | None:
        """When the daemon's process began, unix seconds; None if it is not on this machine. Blocks a moment."""
        parts = urlsplit(self.url)
        if parts.scheme != "unix":
            return None
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(2)
            probe.connect(parts.path)
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid, _, _ = struct.unpack("3i", credentials)
            # It may be another who listens: the service manager, or a filter before the socket.
            return daemon_started_at(pid)
        return None

    async def events(self, label: str) -> AsyncIterator[Json]:
        """What happens to containers with this label, from a moment ago on. First an empty one: we listen now.

        Ends when the connection does. Raises EngineFailure when there is none.
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
        """Its id; None if the name is taken. Raises Refused, DaemonUnreachable."""
        try:
            with translated(self.url):
                return (await (await self._daemon()).containers.create(config, name=name)).id
        except Refused as error:
            if error.http_status == 409:
                return None
            raise

    async def start(self, container: str) -> None:
        """Start it. One that runs is left alone; one that ended would run again: that is the entry's to prevent."""
        with translated(self.url):
            await (await self._daemon()).containers.container(container).start()

    async def inspect(self, container: str) -> Json | None:
        """All of it; None if there is none of this id or name."""
        try:
            with translated(self.url):
                return await (await self._daemon()).containers.container(container).show()
        except Refused as error:
            if error.http_status == 404:
                return None
            raise

    async def kill(self, container: str, signal: str) -> None:
        """Send it a signal. One that does not run is no error."""
        try:
            with translated(self.url):
                await (await self._daemon()).containers.container(container).kill(signal=signal)
        except Refused as error:
            if error.http_status not in (404, 409):
                raise

    async def remove(self, container: str) -> None:
        """Remove it, whether it runs or not. One that is gone, or going, is no error."""
        try:
            with translated(self.url):
                await (await self._daemon()).containers.container(container).delete(force=True, v=True)
        except Refused as error:
            if error.http_status not in (404, 409):
                raise

    async def containers(self, label: str) -> Mapping[str, Mapping[str, str]]:
        """The labels of all that have this one, by id."""
        with translated(self.url):
            found = await (await self._daemon()).containers.list(all=1, filters=json.dumps({"label": [label]}))
        return {one.id: one["Labels"] for one in found}

    # --- volumes ------------------------------------------------------------------------------------------------

    async def holds_volume_sizes(self) -> bool:
        """True if volumes can be held to a size: their files lie on XFS with project quotas. Found out by trying."""
        if self._holds_sizes is None:
            config = {"Name": f"commonage-probe-{secrets.token_hex(4)}", "DriverOpts": {"size": "1048576"}}
            try:
                with translated(self.url):
                    volumes: Any = (await self._daemon()).volumes  # the library gives no types here
                    await (await volumes.create(config)).delete()
                self._holds_sizes = True
            except Refused:
                self._holds_sizes = False
        return self._holds_sizes
