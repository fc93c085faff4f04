"""The listener that agents dial: mutual TLS, and admission. Admitted links are handled by `agents`."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commonage.domain.codec import from_json
from commonage.domain.errors import CommonageError
from commonage.link.certificate_authority import CertificateAuthority, KeyPair
from commonage.link.connection import FRAME_ERRORS, MAX_FRAME_BYTES, encode_frame, end, error_text, read_frame, said
from commonage.link.messages import HELLO, NODE_ID_URI, PROTOCOL, SERVER_NAME, TUNNEL, Hello, Refused, Welcome

_log = logging.getLogger(__name__)
_WITHIN_S = 10.0
_WAITING = 1000  # after a restart all agents dial at once


class ListenError(CommonageError):
    """The port cannot be listened on; the message says why, and which setting names it."""

    code = "agents-port"


@dataclass(frozen=True, slots=True)
class AgentPeer:
    """An agent, by the certificate that it showed. `node_id` is empty if the certificate names no Swarm node."""

    node: str
    node_id: str
    serial: int
    until: float
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Listener:
    """Accepts agents. `attend` serves a link from the welcome to its end, `carry` a tunnel. `now` gives unix seconds.

    `reaches` returns what containers may reach now, which is part of the welcome.
    """

    def __init__(
        self,
        authority: CertificateAuthority,
        attend: Callable[[AgentPeer], Awaitable[None]],
        carry: Callable[[AgentPeer], Awaitable[None]],
        now: Callable[[], float],
        reaches: Callable[[], tuple[str, ...]],
    ) -> None:
        self._authority, self._attend, self._carry = authority, attend, carry
        self._now, self._reaches = now, reaches
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()

    async def open(self, bind: str, port: int) -> int:
        """Listen; returns the port, which is a free one for 0. Raises ListenError."""
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        try:
            listening = socket.create_server((bind, port), family=family, backlog=_WAITING)
        except OSError as error:
            words = f"agents cannot be listened for at {bind}, port {port}: {error.strerror or error}; set agents_port"
            raise ListenError(words) from error
        return await self.open_on(listening)

    async def open_on(self, listening: socket.socket) -> int:
        """Listen on this socket, which this object then owns; returns its port."""
        context = await asyncio.to_thread(self._context)
        self._server = await asyncio.start_server(
            self._connected, sock=listening, ssl=context, limit=MAX_FRAME_BYTES, ssl_handshake_timeout=_WITHIN_S
        )
        found: int = listening.getsockname()[1]
        return found

    async def close(self) -> None:
        """Stop listening; all links end."""
        if self._server is not None:
            self._server.close()
        for task in self._links:
            task.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    def _context(self) -> ssl.SSLContext:
        return server_context(self._authority.serve([SERVER_NAME]), self._authority.certificate)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._let_in(reader, writer))
        self._links.add(task)
        task.add_done_callback(self._links.discard)

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = _caller(reader, writer)
        try:
            frame = await read_frame(caller.reader, _WITHIN_S)
            refused = await self._why_not(caller, frame)
            if refused is not None:
                _log.warning("the agent of %s is refused: %s", caller.node, refused.why)
                writer.write(encode_frame(said("refused", refused)))
                await writer.drain()
                return
            if frame["say"] == TUNNEL:
                await self._carry(caller)
                return
            writer.write(encode_frame(said("welcome", Welcome(self._now(), caller.until, self._reaches()))))
            await self._attend(caller)
        except (TimeoutError, *FRAME_ERRORS) as error:
            _log.info("%s said nothing that is understood: %s", caller.node, error_text(error))
        finally:
            await end(writer)

    async def _why_not(self, caller: AgentPeer, frame: Mapping[str, Any]) -> Refused | None:
        """Why an agent that sent this first frame is refused; None if it is admitted. Raises Unreadable."""
        if frame.get("say") not in (HELLO, TUNNEL):
            return Refused("it does not say hello", for_good=True)
        words: Mapping[str, Any] = frame.get("with") or {}
        # Checked before everything else: another protocol may have other fields.
        if words.get("protocol") != PROTOCOL:
            theirs = str(words.get("protocol"))[:20]
            why = f"it speaks protocol {theirs}, we speak {PROTOCOL}: have the node join again"
            return Refused(why, for_good=True)
        hello = from_json(Hello, words)
        if hello.node != caller.node:
            return Refused(
                f"it says it is {hello.node[:64]}, and its certificate is that of {caller.node}", for_good=True
            )
        if not caller.node_id:
            return Refused(
                f"the certificate of {caller.node} names no Swarm node: have the node join again", for_good=True
            )
        if caller.serial in await asyncio.to_thread(self._authority.revoked):
            return Refused(f"{caller.node} was removed from this site: have the node join again", for_good=True)
        return None


def _caller(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AgentPeer:
    shown = writer.get_extra_info("peercert")  # always present: the connection requires it
    names = {key: value for part in shown["subject"] for key, value in part}
    until = float(ssl.cert_time_to_seconds(shown["notAfter"]))
    uris = [str(value) for kind, value in shown.get("subjectAltName", ()) if kind == "URI"]
    ids = [uri.removeprefix(NODE_ID_URI) for uri in uris if uri.startswith(NODE_ID_URI)]
    node_id = ids[0] if len(ids) == 1 else ""
    return AgentPeer(str(names["commonName"]), node_id, int(shown["serialNumber"], 16), until, reader, writer)


def server_context(pair: KeyPair, authority: str) -> ssl.SSLContext:
    """TLS for a server that requires client certificates of this authority (PEM). Reads and writes files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority)
    with tempfile.TemporaryDirectory(prefix="commonage-tls-") as folder:  # 0700; `ssl` takes files only
        both = Path(folder, "both.pem")
        both.touch(mode=0o600)
        both.write_text(pair.key_pem + pair.cert_pem, encoding="ascii")
        context.load_cert_chain(both)
    return context
