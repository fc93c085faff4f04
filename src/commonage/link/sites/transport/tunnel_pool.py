"""Tunnel connections on demand: the control plane asks over the link, the site dials, and each carries one connection.

A site in use has a few spare ones, so that a browser does not wait for a TLS handshake. All end with the link.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from commonage.domain.codec import Json, Unreadable, from_json, to_json
from commonage.domain.errors import CommonageError, EngineFailure
from commonage.link.exchange import ConnectionLost, decode_failure, encode_failure
from commonage.link.messages import Nothing, RequestType
from commonage.link.sites.transport.streams import StreamType
from commonage.link.sites.transport.tunnel_connection import Buffers, TunnelConnection

_log = logging.getLogger(__name__)
SPARES = 4
SPARE_S = 60.0
"""A spare one is closed after this time: firewalls forget silent connections without a notice."""
MAX_TUNNELS = 1024

Q = TypeVar("Q")
Target = Callable[[Any], Awaitable[socket.socket]]
"""Connects to what a stream of this type leads to, with its parameters. Raises EngineFailure."""


@dataclass(frozen=True, slots=True)
class DialTunnel:
    """The site dials one more connection, and names this number in its hello."""

    number: int


DIAL_TUNNEL = RequestType("dial-tunnel", DialTunnel, Nothing, 20.0)
"""Sent by the control plane; answered once the connection is there."""


class TunnelPool:
    """The control plane's side, for one link. `request_dial` sends DIAL_TUNNEL."""

    def __init__(self, name: str, request_dial: Callable[[DialTunnel], Awaitable[object]]) -> None:
        self._name, self._request_dial = name, request_dial
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[TunnelConnection]] = {}
        self._spare: deque[TunnelConnection] = deque()
        self._open: set[TunnelConnection] = set()
        self._dialing: set[asyncio.Task[None]] = set()
        self._closed: ConnectionLost | None = None
        self._buffers: Buffers | None = None

    async def carry(self, kind: StreamType[Q], params: Q, connection: socket.socket) -> None:
        """Carry this connection to what `kind` and `params` name. Closes it; resets it if anything failed.

        Raises the refusal of the site as EngineFailure; ConnectionLost.
        """
        tunnel = await self._opened(kind, params)
        try:
            await tunnel.carry(connection)
        finally:
            tunnel.abort("it is not used any more")

    async def _opened(self, kind: StreamType[Q], params: Q) -> TunnelConnection:
        while True:
            spare = self._take_spare()
            tunnel = spare or await self._dial()
            self._replenish()
            try:
                async with asyncio.timeout(kind.timeout_s):
                    tunnel.send_head([kind.name, to_json(params)])
                    answer = await tunnel.head()
                if answer is None:
                    return tunnel
                raise _refusal(answer)
            except ConnectionLost as error:
                tunnel.abort(error.message)
                if spare is None or self._closed is not None:
                    raise
            except TimeoutError:
                tunnel.abort("it was not opened in time")
                raise ConnectionLost(
                    f"{self._name} did not open {kind.name} within {kind.timeout_s or 0:.0f} s"
                ) from None
            except BaseException:
                tunnel.abort("it was refused")
                raise

    def arrived(self, number: int, writer: asyncio.StreamWriter) -> TunnelConnection | None:
        """The site has dialled. None if this number was not requested."""
        asked = self._asked.get(number)
        if asked is None or asked.done() or self._closed is not None:
            return None
        self._buffers = self._buffers or Buffers()
        tunnel = TunnelConnection(writer, self._buffers)
        self._open.add(tunnel)
        tunnel.end.add_done_callback(lambda _: self._open.discard(tunnel))
        asked.set_result(tunnel)
        return tunnel

    def close(self, reason: ConnectionLost) -> None:
        """The link has ended: close all tunnels of the site."""
        self._closed = reason
        for task in self._dialing:
            task.cancel()
        for tunnel in list(self._open):
            tunnel.abort(reason.message)

    # --- dialling -------------------------------------------------------------------------------------------------

    def _take_spare(self) -> TunnelConnection | None:
        while self._spare:
            tunnel = self._spare.popleft()
            if not tunnel.is_closed:
                return tunnel
        return None

    async def _dial(self) -> TunnelConnection:
        if self._closed is not None:
            raise self._closed
        if len(self._open) + len(self._asked) >= MAX_TUNNELS:
            raise EngineFailure(f"{MAX_TUNNELS} tunnels are open, the limit for one site", retryable=True)
        number = next(self._numbers)
        asked: asyncio.Future[TunnelConnection] = asyncio.get_running_loop().create_future()
        self._asked[number] = asked
        try:
            await self._request_dial(DialTunnel(number))
            if not asked.done():
                raise ConnectionLost(f"{self._name} answered without dialling a tunnel")
        except BaseException:
            if asked.done():
                asked.result().abort("no caller waits for it")
            raise
        finally:
            del self._asked[number]
        return asked.result()

    def _replenish(self) -> None:
        for _ in range(SPARES - len(self._spare) - len(self._dialing)):
            task = asyncio.create_task(self._dial_spare())
            self._dialing.add(task)
            task.add_done_callback(self._dialing.discard)

    async def _dial_spare(self) -> None:
        try:
            tunnel = await self._dial()
        except CommonageError as error:
            _log.info("%s has no spare tunnel: %s", self._name, error)
            return
        self._spare.append(tunnel)
        asyncio.get_running_loop().call_later(SPARE_S, self._expire, tunnel)

    def _expire(self, tunnel: TunnelConnection) -> None:
        if tunnel in self._spare:
            self._spare.remove(tunnel)
            tunnel.close()


class TunnelServer:
    """The site's side: serves the connections that it dialled. `targets` are what they may lead to."""

    def __init__(self, targets: Mapping[StreamType[Any], Target]) -> None:
        self._targets = {kind.name: (kind, target) for kind, target in targets.items()}
        self._serving: set[asyncio.Task[None]] = set()
        self._buffers = Buffers()

    def serve(self, writer: asyncio.StreamWriter) -> None:
        """Serve this connection, which was admitted, until it ends, or `close`. Raises EngineFailure."""
        if len(self._serving) >= MAX_TUNNELS:
            writer.transport.abort()
            raise EngineFailure(f"{MAX_TUNNELS} tunnels are open, the limit for one site", retryable=True)
        task = asyncio.create_task(self._serve(TunnelConnection(writer, self._buffers)))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def close(self) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, tunnel: TunnelConnection) -> None:
        try:
            connection = await self._connect(await tunnel.head())
        except ConnectionLost:  # a spare one has ended
            return
        except CommonageError as error:
            tunnel.send_head(encode_failure(error))
            tunnel.close()
            return
        except asyncio.CancelledError:
            tunnel.abort("the link has ended")
            raise
        try:
            tunnel.send_head(None)
            await tunnel.carry(connection)
        except ConnectionLost as error:
            _log.info("%s", error.message)
        finally:
            tunnel.abort("the link has ended")

    async def _connect(self, head: object) -> socket.socket:
        match head:
            case [str(name), params] if name in self._targets:
                kind, target = self._targets[name]
            case _:
                raise EngineFailure("the tunnel is not known: the two sides have different versions")
        try:
            wanted = from_json(kind.params, params, ignore_unknown=True)
        except Unreadable as error:
            raise EngineFailure(f"the tunnel cannot be read: {error}") from error
        return await target(wanted)


def _refusal(answer: Json) -> CommonageError:
    try:
        return decode_failure(answer)
    except Unreadable as error:
        return EngineFailure(f"the answer of the site cannot be read: {error}")
