"""The listener that agents dial: mutual TLS, admission, and tunnels. `agent_connections` serves the admitted links.

A tunnel is a connection of a container that its node's agent carries to the control plane over TLS. Every tunnel leads
to the workload gateway, for every node.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from commonage.domain.codec import from_json
from commonage.domain.errors import CommonageError
from commonage.link.admissions import Admissions, listen_at
from commonage.link.certificate_authority import CertificateAuthority
from commonage.link.connection import FRAME_ERRORS, close_writer, encode_frame, read_frame
from commonage.link.exchange import MAX_FRAME_BYTES, error_text, message_frame
from commonage.link.forwarding import CHUNK, Streams, join_streams
from commonage.link.messages import (
    HELLO,
    NODE_ID_URI,
    OPEN,
    PROTOCOL,
    SERVER_NAME,
    TUNNEL,
    Hello,
    LinkRefused,
    Nothing,
    Welcome,
)
from commonage.link.tls import server_context

_log = logging.getLogger(__name__)
_TIMEOUT_S = 10.0


class ListenError(CommonageError):
    """The port cannot be listened on; the message says why, and which setting names it."""

    code = "agents-port"


@dataclass(frozen=True, slots=True)
class AgentPeer:
    """A connected agent, as its client certificate identifies it.

    `node_id` is empty if the certificate names no node.
    """

    node: str
    node_id: str
    serial: int
    until: float
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Listener:
    """Accepts agents. `serve_link` serves a link from the welcome to its end, `serve_tunnel` a tunnel.

    `now` gives unix seconds. `allowed_addresses` returns the addresses that containers may reach now: the welcome
    contains them.
    """

    def __init__(
        self,
        authority: CertificateAuthority,
        serve_link: Callable[[AgentPeer], Awaitable[None]],
        serve_tunnel: Callable[[AgentPeer], Awaitable[None]],
        now: Callable[[], float],
        allowed_addresses: Callable[[], tuple[str, ...]],
    ) -> None:
        self._authority, self._serve_link, self._serve_tunnel = authority, serve_link, serve_tunnel
        self._now, self._allowed_addresses = now, allowed_addresses
        self._server: asyncio.Server | None = None
        self._admissions = Admissions(self._admit)

    async def open(self, bind: str, port: int) -> int:
        """Listen; returns the port, which is a free one for 0. Raises ListenError."""
        try:
            listening = listen_at(bind, port)
        except OSError as error:
            raise ListenError(
                f"the listener for agents cannot open {bind}, port {port}: {error.strerror or error}; set agents_port "
                "to a free port"
            ) from error
        return await self.open_on(listening)

    async def open_on(self, listening: socket.socket) -> int:
        """Listen on this socket, which this object then owns; returns its port."""
        pair = await asyncio.to_thread(self._authority.serve, [SERVER_NAME])
        context = await asyncio.to_thread(server_context, pair, self._authority.certificate)
        self._server = await asyncio.start_server(
            self._admissions.begin, sock=listening, ssl=context, limit=MAX_FRAME_BYTES, ssl_handshake_timeout=_TIMEOUT_S
        )
        port: int = listening.getsockname()[1]
        return port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._admissions.close()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        agent = _peer_of(reader, writer)
        try:
            frame = await read_frame(agent.reader, _TIMEOUT_S)
            refused = await self._refusal(agent, frame)
            if refused is not None:
                _log.warning("the agent of %s is refused: %s", agent.node, refused.reason)
                writer.write(encode_frame(message_frame("refused", refused)))
                await writer.drain()
                return
            if frame["message"] == TUNNEL:
                await self._serve_tunnel(agent)
                return
            welcome = Welcome(self._now(), agent.until, self._allowed_addresses())
            writer.write(encode_frame(message_frame("welcome", welcome)))
            await self._serve_link(agent)
        except (TimeoutError, *FRAME_ERRORS) as error:
            _log.info("the agent of %s sent no valid hello: %s", agent.node, error_text(error))
        finally:
            await close_writer(writer)

    async def _refusal(self, agent: AgentPeer, frame: Mapping[str, Any]) -> LinkRefused | None:
        """Why an agent that sent this first frame is refused; None if it is admitted. Raises Unreadable."""
        if frame.get("message") not in (HELLO, TUNNEL):
            return LinkRefused("the first frame is not a hello", permanent=True)
        body: Mapping[str, Any] = frame.get("body") or {}
        # Checked before everything else: another protocol may have other fields.
        if body.get("protocol") != PROTOCOL:
            theirs = str(body.get("protocol"))[:20]
            reason = f"it speaks protocol {theirs}, the control plane speaks {PROTOCOL}: join the node again"
            return LinkRefused(reason, permanent=True)
        hello = from_json(Hello, body)
        if hello.node != agent.node:
            return LinkRefused(f"its hello names {hello.node[:64]}, and its certificate {agent.node}", permanent=True)
        if not agent.node_id:
            return LinkRefused(f"the certificate of {agent.node} names no node: join the node again", permanent=True)
        if agent.serial in await asyncio.to_thread(self._authority.revoked):
            return LinkRefused(f"{agent.node} was removed from this site: join the node again", permanent=True)
        return None


def _peer_of(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AgentPeer:
    certificate = writer.get_extra_info("peercert")  # always present: the connection requires it
    names = {key: value for part in certificate["subject"] for key, value in part}
    until = float(ssl.cert_time_to_seconds(certificate["notAfter"]))
    uris = [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    ids = [uri.removeprefix(NODE_ID_URI) for uri in uris if uri.startswith(NODE_ID_URI)]
    node_id = ids[0] if len(ids) == 1 else ""
    return AgentPeer(str(names["commonName"]), node_id, int(certificate["serialNumber"], 16), until, reader, writer)


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
            gateway = await asyncio.open_connection("127.0.0.1", self._gateway_port, limit=CHUNK)
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
