"""TCP forwarding: accepts connections, checks the peer's address, and passes bytes to and from a target.

Used by the relays of the engines, by the agent's container gateway and by the control plane's end of its tunnels. It
uses the standard library alone, because it is part of the agent's archive.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

_log = logging.getLogger(__name__)
CHUNK = 64 * 1024
IDLE_S = 900.0
"""Longer than any pause of a live connection: event streams and terminals send a sign of life within a minute."""
MAX_PER_PEER = 64
MAX_CONNECTIONS = 1024
MAX_UNKNOWN, MAX_UNKNOWN_PER_PEER = 64, 4
"""Limits of connections that wait to be admitted: in all, and from one address. Further ones are closed at once."""
_FLUSH_TIMEOUT_S = 30.0
_MAX_REMEMBERED = 1000
_ASK_AGAIN_S = 0.1

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
OpenTarget = Callable[[], Awaitable[Streams]]
"""Opens a connection to the target. Raises OSError."""
Admits = Callable[[str], bool]
"""Whether a peer with this IP address may connect; asked for every connection."""


async def join_streams(one: Streams, other: Streams, idle_s: float = IDLE_S) -> None:
    """Pass bytes both ways until either side ends, or nothing passes for `idle_s` seconds. Closes both."""
    activity = _Activity(idle_s)
    tasks = [
        asyncio.create_task(_copy(one[0], other[1], activity)),
        asyncio.create_task(_copy(other[0], one[1], activity)),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(_finish(one[1]), _finish(other[1]))


class _Activity:
    """When bytes passed last, in either direction."""

    def __init__(self, idle_s: float) -> None:
        self.idle_s = idle_s
        self.last = time.monotonic()

    @property
    def is_idle(self) -> bool:
        return time.monotonic() - self.last >= self.idle_s


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, activity: _Activity) -> None:
    with suppress(OSError):  # one side is gone, or does not read its data (TimeoutError)
        while not activity.is_idle:
            try:
                async with asyncio.timeout(activity.idle_s):
                    data = await source.read(CHUNK)
            except TimeoutError:  # perhaps the other direction is in use
                continue
            if not data:
                return
            activity.last = time.monotonic()
            target.write(data)
            async with asyncio.timeout(activity.idle_s):
                await target.drain()


async def _finish(writer: asyncio.StreamWriter) -> None:
    """Send what is written, then close; by force if the other side does not take it in time."""
    if not writer.is_closing():
        writer.close()
    try:
        async with asyncio.timeout(_FLUSH_TIMEOUT_S):
            await writer.wait_closed()
    except OSError:  # TimeoutError is one
        return
    finally:
        writer.transport.abort()


class Forwarder:
    """Listens on addresses and forwards admitted connections to one target.

    `name` is for the log. At most `max_per_peer` connections are open for each peer address, so that one container
    cannot take all of `max_total`. A peer that is not admitted yet has `admission_s` seconds to become so.
    """

    def __init__(
        self,
        name: str,
        open_target: OpenTarget,
        *,
        max_per_peer: int = MAX_PER_PEER,
        max_total: int = MAX_CONNECTIONS,
        admission_s: float = 0.0,
    ) -> None:
        self._name, self._open_target = name, open_target
        self._admission_s = admission_s
        self._unknown: Counter[str] = Counter()
        self._max_per_peer, self._max_total = max_per_peer, max_total
        self._servers: dict[tuple[str, int], asyncio.Server] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._per_peer: Counter[str] = Counter()
        self._logged: set[tuple[str, str]] = set()

    @property
    def listening(self) -> set[tuple[str, int]]:
        """The addresses and ports it listens on."""
        return set(self._servers)

    async def listen(self, address: str, port: int, admits: Admits) -> None:
        """Listen on this address and port. Does nothing if it already listens. Raises OSError."""
        if (address, port) in self._servers:
            return

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._forward((reader, writer), admits))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        self._servers[address, port] = await asyncio.start_server(connected, address, port, limit=CHUNK)

    def stop_at(self, address: str) -> None:
        """Stop listening at this address; open connections stay."""
        for key in [key for key in self._servers if key[0] == address]:
            self._servers.pop(key).close()

    def close(self) -> None:
        """Stop listening, and end all connections."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()
        for task in self._connections:
            task.cancel()

    async def _forward(self, peer: Streams, admits: Admits) -> None:
        name = peer[1].get_extra_info("peername")
        address = str(name[0]) if name else ""
        try:
            reason = await self._admission(address, peer[0], admits) or self._refusal(address)
        except BaseException:
            peer[1].transport.abort()
            raise
        if reason:
            self._log_once(address, reason)
            peer[1].transport.abort()
            return
        self._per_peer[address] += 1
        try:
            await self._connect(peer, address)
        finally:
            self._per_peer[address] -= 1
            if not self._per_peer[address]:
                del self._per_peer[address]

    async def _connect(self, peer: Streams, address: str) -> None:
        try:
            target = await self._open_target()
        except OSError as error:
            self._log_once(address, f"the target cannot be reached: {error}")
            peer[1].transport.abort()
            return
        except BaseException:
            peer[1].transport.abort()
            raise
        self._logged = {one for one in self._logged if one[0] != address}
        await join_streams(peer, target)

    async def _admission(self, address: str, reader: asyncio.StreamReader, admits: Admits) -> str:
        """Empty once the address is admitted; else the reason to close the connection."""
        if admits(address):
            return ""
        if self._unknown[address] >= MAX_UNKNOWN_PER_PEER or self._unknown.total() >= MAX_UNKNOWN:
            return "too many connections of unknown addresses wait"
        self._unknown[address] += 1
        try:
            deadline = time.monotonic() + self._admission_s
            while time.monotonic() < deadline and not reader.at_eof():
                await asyncio.sleep(_ASK_AGAIN_S)
                if admits(address):
                    return ""
            return "its address is not one of the site's nodes or containers"
        finally:
            self._unknown[address] -= 1
            if not self._unknown[address]:
                del self._unknown[address]

    def _refusal(self, address: str) -> str:
        if self._per_peer[address] >= self._max_per_peer:
            return f"it has {self._max_per_peer} connections open, the limit for one address"
        if self._per_peer.total() >= self._max_total:
            return f"{self._max_total} connections are open, the limit in all"
        return ""

    def _log_once(self, address: str, reason: str) -> None:
        """Once for each peer and reason, until a connection of that peer succeeds."""
        if (address, reason) not in self._logged and len(self._logged) < _MAX_REMEMBERED:
            self._logged.add((address, reason))
            _log.warning("%s: connection from %s closed: %s", self._name, address, reason)
