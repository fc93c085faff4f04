"""The control plane's end of tunnels: connections of containers that their node's agent carries to it over TLS.

Every tunnel leads to the workload gateway, whichever node asks. Made by `agent_connections`, called by the listener.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from commonage.link.connection import encode_frame, message_frame
from commonage.link.forwarding import CHUNK, Streams, join_streams
from commonage.link.listener import AgentPeer
from commonage.link.messages import OPEN, LinkRefused, Nothing

_log = logging.getLogger(__name__)
_LOOPBACK = "127.0.0.1"
MAX_PER_NODE = 256
"""An agent opens half as many; some may still be closing."""


class Tunnels:
    """The tunnels of all nodes. `gateway_port` is the workload gateway's on the loopback."""

    def __init__(self, gateway_port: int) -> None:
        self._gateway_port = gateway_port
        self._open: dict[asyncio.Task[None], AgentPeer] = {}

    async def carry(self, agent: AgentPeer) -> None:
        reason = self._refusal(agent.node)
        if reason:
            _log.warning("a tunnel of %s is refused: %s", agent.node, reason)
            agent.writer.write(encode_frame(message_frame("refused", LinkRefused(reason))))
            await agent.writer.drain()
            return
        task = asyncio.create_task(self._carry(agent))
        self._open[task] = agent
        try:
            await task
        finally:
            task.cancel()
            del self._open[task]

    def _refusal(self, node: str) -> str:
        if not self._gateway_port:
            return "the control plane accepts no connections from containers"
        if sum(one.node == node for one in self._open.values()) >= MAX_PER_NODE:
            return f"it has {MAX_PER_NODE} open tunnels, the limit for one node"
        return ""

    async def _carry(self, agent: AgentPeer) -> None:
        try:
            gateway = await asyncio.open_connection(_LOOPBACK, self._gateway_port, limit=CHUNK)
        except OSError as error:
            _log.warning("the workload gateway does not answer: %s", error)
            return
        streams = _with_small_buffer(agent)
        streams[1].write(encode_frame(message_frame(OPEN, Nothing())))
        await join_streams(streams, gateway)

    def end(self, node: str) -> None:
        """End the tunnels of this node: it was removed from the site."""
        self._end(lambda agent: agent.node == node)

    def end_revoked(self, serials: Collection[int]) -> None:
        """End the tunnels that were opened with one of these certificates."""
        self._end(lambda agent: agent.serial in serials)

    def _end(self, matches: Callable[[AgentPeer], bool]) -> None:
        for task, agent in self._open.items():
            if matches(agent):
                task.cancel()


def _with_small_buffer(agent: AgentPeer) -> Streams:
    """The same connection with a small buffer.

    The link's buffer is made for frames of many megabytes, and a node could fill it on every tunnel.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(CHUNK, loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport = agent.writer.transport
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
