"""The agent's side of the link: dials the control plane until it is admitted, and again whenever the link is lost.

The messages on the link are handled by `run`. The certificate is renewed here, before it expires.
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
from commonage.agent.config import AgentConfig, split_address
from commonage.domain.codec import from_json
from commonage.domain.errors import CommonageError
from commonage.link import messages
from commonage.link.connection import (
    FRAME_ERRORS,
    MAX_FRAME_BYTES,
    Answer,
    Connection,
    ConnectionLost,
    MessageHandlers,
    encode_frame,
    end,
    error_text,
    read_frame,
    said,
)
from commonage.link.messages import SILENCE_S, Hello, Refused, RequestType, Welcome

_log = logging.getLogger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _REFUSED_PAUSE_S = 0.2, 2.0, 30.0
_WITHIN_S = 10.0
_RENEW_AGAIN_S = 3600.0
_CLOCKS_MAY_DIFFER_S = 30.0

Q = TypeVar("Q")
A = TypeVar("A")
Linked = Callable[[Connection, Welcome], Coroutine[Any, Any, None]]
"""Uses the link until cancelled."""


class AdmissionRefused(CommonageError):
    """The control plane answered, and refused the agent; `for_good` until this node joins again."""

    code = "refused"

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.why)
        self.for_good = refused.for_good


class ControlPlaneConnection:
    """Keeps the link. `offers` answers requests, `hears` takes messages; `linked` is called with each new link."""

    def __init__(
        self,
        config: AgentConfig,
        offers: Mapping[RequestType[Any, Any], Answer],
        hears: MessageHandlers,
        linked: Linked,
    ) -> None:
        self._config, self._offers, self._linked = config, offers, linked
        self._hears: MessageHandlers = {**hears, "refused": (Refused, self._was_refused)}
        self._refused: Refused | None = None

    async def run(self) -> None:
        """Run until cancelled."""
        pause, before = _FIRST_PAUSE_S, ""
        addresses = list(self._config.control)
        while True:
            began = time.monotonic()
            try:
                await self._link(addresses[0])
            except AdmissionRefused as error:
                why, pause = f"the control plane refuses us: {error.message}", _REFUSED_PAUSE_S
            except CommonageError as error:
                why = error.message
            if time.monotonic() - began > _LONGEST_PAUSE_S:  # the link stood for a while
                pause = _FIRST_PAUSE_S
            _log.log(logging.DEBUG if why == before else logging.WARNING, "%s; dialling again", why)
            before = why
            addresses.append(addresses.pop(0))
            # Jitter: not all nodes at once after the control plane was restarted.
            await asyncio.sleep(pause * random.uniform(0.7, 1.3))  # noqa: S311 - not a secret
            pause = min(_LONGEST_PAUSE_S, pause * 1.5)

    async def _link(self, address: str) -> None:
        """One link, from dialling to its end. Raises ConnectionLost, AdmissionRefused."""
        reader, writer = await dial(self._config, address)
        try:
            welcome = await self._say_hello(reader, writer, address)
            _log.info("linked to the control plane at %s", address)
            await self._use(
                Connection(f"the control plane at {address}", reader, writer, self._offers, self._hears), welcome
            )
        finally:
            await end(writer)

    async def ask(self, call: RequestType[Q, A], question: Q) -> A:
        """Ask this once, on a separate link. Raises AdmissionRefused; EngineFailure if nobody answers, or the request
        fails.
        """
        why = ConnectionLost("no address of the control plane is known")
        for address in self._config.control:
            try:
                reader, writer = await dial(self._config, address)
            except ConnectionLost as error:
                why = error
                continue
            try:
                await self._say_hello(reader, writer, address)
                peer = Connection(f"the control plane at {address}", reader, writer, {}, {})
                hearing = asyncio.create_task(peer.run(call.within_s or SILENCE_S))
                try:
                    return await peer.ask(call, question)
                finally:
                    peer.close("all is said")
                    await asyncio.gather(hearing, return_exceptions=True)
            finally:
                await end(writer)
        raise why

    async def _say_hello(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> Welcome:
        try:
            hello = Hello(self._config.node, messages.PROTOCOL, __version__)
            writer.write(encode_frame(said("hello", hello)))
            frame = await read_frame(reader, _WITHIN_S)
            if frame.get("say") == "refused":
                raise AdmissionRefused(from_json(Refused, frame.get("with")))
            return from_json(Welcome, frame.get("with"))
        except (EOFError, ConnectionError, ssl.SSLError) as error:
            # Under TLS 1.3 a server that rejects the client certificate closes the connection only now.
            raise ConnectionLost(
                f"the control plane at {address} ended the link without a word: it may not take our certificate "
                "(expired, or of another site); then this machine must join again"
            ) from error
        except (TimeoutError, *FRAME_ERRORS) as error:
            raise ConnectionLost(f"{address} does not answer as a control plane does: {error_text(error)}") from error

    async def _use(self, peer: Connection, welcome: Welcome) -> None:
        self._refused = None
        if abs(welcome.now - time.time()) > _CLOCKS_MAY_DIFFER_S:
            _log.warning("this machine's clock and the control plane's differ by %.0f s", time.time() - welcome.now)
        tasks = [
            asyncio.create_task(self._linked(peer, welcome)),
            asyncio.create_task(self._keep_certificate(peer, welcome.until)),
        ]
        for task in tasks:
            task.add_done_callback(lambda _: peer.close("our own part in it ended"))
        try:
            await peer.run()
        except ConnectionLost:
            if self._refused is not None:
                raise AdmissionRefused(self._refused) from None
            raise
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended

    def _was_refused(self, refused: Refused) -> None:
        self._refused = refused

    async def _keep_certificate(self, peer: Connection, until: float) -> None:
        """Renew the certificate in time: the same signing request is sent again, and the key stays."""
        while True:
            await asyncio.sleep(max(0.0, min(until - messages.RENEW_BEFORE_S - time.time(), _RENEW_AGAIN_S)))
            if time.time() < until - messages.RENEW_BEFORE_S:
                continue
            try:
                csr = Path(self._config.request).read_text(encoding="ascii")
                given = await peer.ask(messages.RENEW, messages.SigningRequest(csr))
                _replace(Path(self._config.certificate), given.pem)
                until = given.until
                _log.info("our certificate was renewed")
            except (CommonageError, OSError, UnicodeDecodeError) as error:
                _log.error("our certificate cannot be renewed, and ends in %.0f s: %s", until - time.time(), error)
                await asyncio.sleep(_RENEW_AGAIN_S)


async def dial(
    config: AgentConfig, address: str, *, limit: int = MAX_FRAME_BYTES
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the control plane; the reader's buffer holds `limit` bytes. Raises ConnectionLost."""
    host, port = split_address(address)
    try:
        context = client_context(config)
        async with asyncio.timeout(_WITHIN_S):
            return await asyncio.open_connection(
                host, port, ssl=context, server_hostname=messages.SERVER_NAME, limit=limit
            )
    except ssl.SSLCertVerificationError as error:
        raise ConnectionLost(
            f"who answers at {address} is not the control plane of this site: {error.verify_message}"
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


def _replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text, encoding="ascii")
    new.replace(path)
