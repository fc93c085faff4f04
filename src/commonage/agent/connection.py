"""The agent's side of the link: dials the control plane until it is admitted, and again whenever the link is lost.

`agent` handles the messages on the link. The certificate is renewed here, before it expires.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from commonage import __version__
from commonage.agent.config import AgentConfig, replace_file, split_address
from commonage.domain.codec import from_json
from commonage.domain.errors import CommonageError
from commonage.link import messages
from commonage.link.connection import FRAME_ERRORS, Connection, close_writer, encode_frame, read_frame
from commonage.link.exchange import (
    MAX_FRAME_BYTES,
    ConnectionLost,
    MessageHandlers,
    RequestHandler,
    error_text,
    message_frame,
)
from commonage.link.messages import SILENCE_S, Hello, LinkRefused, RequestType, Welcome

_log = logging.getLogger(__name__)
_MIN_BACKOFF_S, _MAX_BACKOFF_S, _REFUSED_BACKOFF_S = 0.2, 2.0, 30.0
_TIMEOUT_S = 10.0
_RENEW_RETRY_S = 3600.0
_MAX_CLOCK_SKEW_S = 30.0

Q = TypeVar("Q")
A = TypeVar("A")
OnConnected = Callable[[Connection, Welcome], Coroutine[Any, Any, None]]
"""Uses the link until cancelled."""


class AdmissionRefused(CommonageError):
    """The control plane answered, and refused the agent; `permanent`: until this node joins again."""

    code = "refused"

    def __init__(self, refused: LinkRefused) -> None:
        super().__init__(refused.reason)
        self.permanent = refused.permanent


class ControlPlaneConnection:
    """Keeps the link to the control plane. `on_connected` is called with each new link."""

    def __init__(
        self,
        config: AgentConfig,
        request_handlers: Mapping[RequestType[Any, Any], RequestHandler],
        message_handlers: MessageHandlers,
        on_connected: OnConnected,
    ) -> None:
        self._config, self._request_handlers, self._on_connected = config, request_handlers, on_connected
        self._message_handlers: MessageHandlers = {**message_handlers, "refused": (LinkRefused, self._on_refused)}
        self._refused: LinkRefused | None = None

    async def run(self) -> None:
        """Run until cancelled."""
        backoff, previous = _MIN_BACKOFF_S, ""
        addresses = list(self._config.control)
        while True:
            began = time.monotonic()
            try:
                await self._link(addresses[0])
            except AdmissionRefused as error:
                reason, backoff = f"the control plane refused this agent: {error.message}", _REFUSED_BACKOFF_S
            except CommonageError as error:
                reason = error.message
            if time.monotonic() - began > _MAX_BACKOFF_S:  # the link was up for a while
                backoff = _MIN_BACKOFF_S
            _log.log(logging.DEBUG if reason == previous else logging.WARNING, "%s; dialling again", reason)
            previous = reason
            addresses.append(addresses.pop(0))
            # Jitter: not all nodes at once after the control plane was restarted.
            await asyncio.sleep(backoff * random.uniform(0.7, 1.3))  # noqa: S311 - not a secret
            backoff = min(_MAX_BACKOFF_S, backoff * 1.5)

    async def _link(self, address: str) -> None:
        """One link, from dialling to its end. Raises ConnectionLost, AdmissionRefused."""
        reader, writer = await dial(self._config, address)
        try:
            welcome = await self._say_hello(reader, writer, address)
            _log.info("linked to the control plane at %s", address)
            await self._use(
                Connection(
                    f"the control plane at {address}", reader, writer, self._request_handlers, self._message_handlers
                ),
                welcome,
            )
        finally:
            await close_writer(writer)

    async def request(self, kind: RequestType[Q, A], params: Q) -> A:
        """Send one request, on a separate link. Raises AdmissionRefused; EngineFailure, also without an answer."""
        failure = ConnectionLost("the settings name no address of the control plane")
        for address in self._config.control:
            try:
                reader, writer = await dial(self._config, address)
            except ConnectionLost as error:
                failure = error
                continue
            try:
                await self._say_hello(reader, writer, address)
                connection = Connection(f"the control plane at {address}", reader, writer, {}, {})
                receiving = asyncio.create_task(connection.run(kind.timeout_s or SILENCE_S))
                try:
                    return await connection.request(kind, params)
                finally:
                    connection.close("the request is done")
                    await asyncio.gather(receiving, return_exceptions=True)
            finally:
                await close_writer(writer)
        raise failure

    async def _say_hello(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> Welcome:
        try:
            hello = Hello(self._config.node, messages.PROTOCOL, __version__)
            writer.write(encode_frame(message_frame("hello", hello)))
            frame = await read_frame(reader, _TIMEOUT_S)
            if frame.get("message") == "refused":
                raise AdmissionRefused(from_json(LinkRefused, frame.get("body")))
            return from_json(Welcome, frame.get("body"))
        except (EOFError, ConnectionError, ssl.SSLError) as error:
            # Under TLS 1.3 a server that rejects the client certificate closes the connection only now.
            raise ConnectionLost(
                f"the control plane at {address} closed the connection without an answer: it may have rejected the "
                "certificate of this node (expired, or of another site). If so, join this node again"
            ) from error
        except (TimeoutError, *FRAME_ERRORS) as error:
            raise ConnectionLost(f"{address} does not answer like a control plane: {error_text(error)}") from error

    async def _use(self, connection: Connection, welcome: Welcome) -> None:
        self._refused = None
        if abs(welcome.now - time.time()) > _MAX_CLOCK_SKEW_S:
            _log.warning("the clocks of this node and the control plane differ by %.0f s", time.time() - welcome.now)
        try:
            await connection.run_with(
                self._on_connected(connection, welcome), self._keep_certificate(connection, welcome.until)
            )
        except ConnectionLost:
            if self._refused is not None:
                raise AdmissionRefused(self._refused) from None
            raise

    def _on_refused(self, refused: LinkRefused) -> None:
        self._refused = refused

    async def _keep_certificate(self, connection: Connection, until: float) -> None:
        """Renew the certificate in time: the same signing request is sent again, and the key stays."""
        while True:
            await asyncio.sleep(max(0.0, min(until - messages.RENEW_BEFORE_S - time.time(), _RENEW_RETRY_S)))
            if time.time() < until - messages.RENEW_BEFORE_S:
                continue
            try:
                csr = Path(self._config.request).read_text(encoding="ascii")
                renewed = await connection.request(messages.RENEW, messages.SigningRequest(csr))
                replace_file(Path(self._config.certificate), renewed.pem)
                until = renewed.until
                _log.info("the certificate was renewed")
            except (CommonageError, OSError, UnicodeDecodeError) as error:
                _log.error("the certificate cannot be renewed and expires in %.0f s: %s", until - time.time(), error)
                await asyncio.sleep(_RENEW_RETRY_S)


async def dial(
    config: AgentConfig, address: str, *, limit: int = MAX_FRAME_BYTES
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the control plane; the reader's buffer holds `limit` bytes. Raises ConnectionLost."""
    host, port = split_address(address)
    try:
        context = client_context(config)
        async with asyncio.timeout(_TIMEOUT_S):
            return await asyncio.open_connection(
                host, port, ssl=context, server_hostname=messages.SERVER_NAME, limit=limit
            )
    except ssl.SSLCertVerificationError as error:
        raise ConnectionLost(
            f"the server at {address} is not the control plane of this site: {error.verify_message}"
        ) from error
    except (TimeoutError, OSError) as error:
        raise ConnectionLost(f"the control plane cannot be reached at {address}: {error_text(error)}") from error


def client_context(config: AgentConfig) -> ssl.SSLContext:
    """TLS to the control plane: verifies its certificate with the site's authority, shows the agent's.

    Raises OSError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(config.authority)
    context.load_cert_chain(config.certificate, config.key)
    return context
