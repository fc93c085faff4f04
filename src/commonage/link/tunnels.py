"""The control plane's end of tunnels: connections of containers that their node's agent carries to it over TLS.

Every tunnel leads to the workload gateway, whichever node asks. Made by `agents`, called by the listener.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from commonage.link.connection import encode_frame, said
from commonage.link.forwarding import CHUNK, Streams, join_streams
from commonage.link.listener import AgentPeer
from commonage.link.messages import OPEN, Nothing, Refused

_log = logging.getLogger(__name__)
_LOOPBACK = "127.0.0.1"
MOST_PER_NODE = 256
"""An agent opens half as many; some may still be closing."""


class Tunnels:
    """The tunnels of all nodes. `gateway_port` is the workload gateway's on the loopback."""

    def __init__(self, gateway_port: int) -> None:
        self._gateway_port = gateway_port
        self._open: dict[asyncio.Task[None], AgentPeer] = {}

    async def carry(self, caller: AgentPeer) -> None:
        """Serve a tunnel from its beginning to its end."""
        why = self._why_refused(caller.node)
        if why:
            _log.warning("a tunnel of %s is refused: %s", caller.node, why)
            caller.writer.write(encode_frame(said("refused", Refused(why))))
            await caller.writer.drain()
            return
        task = asyncio.create_task(self._carry(caller))
        self._open[task] = caller
        try:
            await task
        finally:
            task.cancel()
            del self._open[task]

    def _why_refused(self, node: str) -> str:
        if not self._gateway_port:
            return "the control plane takes no connections of containers here"
        if sum(one.node == node for one in self._open.values()) >= MOST_PER_NODE:
            return f"it has {MOST_PER_NODE} tunnels open, the most for one node"
        return ""

    async def _carry(self, caller: AgentPeer) -> None:
        try:
            gateway = await asyncio.open_connection(_LOOPBACK, self._gateway_port, limit=CHUNK)
        except OSError as error:
            _log.warning("the workload gateway does not answer: %s", error)
            return
        agent = _with_small_buffer(caller)
        agent[1].write(encode_frame(said(OPEN, Nothing())))
        await join_streams(agent, gateway)

    def end(self, node: str) -> None:
        """End the tunnels of this node: it was removed from the site."""
        self._end(lambda caller: caller.node == node)

    def end_revoked(self, serials: Collection[int]) -> None:
        """End the tunnels that were opened with one of these certificates."""
        self._end(lambda caller: caller.serial in serials)

    def _end(self, is_over: Callable[[AgentPeer], bool]) -> None:
        for task, caller in self._open.items():
            if is_over(caller):
                task.cancel()


def _with_small_buffer(caller: AgentPeer) -> Streams:
    """The same connection with a small buffer.

    The link's buffer is made for frames of many megabytes, and a node could fill it on every tunnel.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(CHUNK, loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport = caller.writer.transport
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
