"""The site's end of its link: dials the control plane, and again whenever the link is lost. Renews the certificate."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from commonage import __version__
from commonage.domain.codec import from_json
from commonage.domain.errors import CommonageError
from commonage.link.connection import FRAME_ERRORS, close_writer, encode_frame, read_frame
from commonage.link.exchange import ConnectionLost, error_text, message_frame
from commonage.link.messages import RENEW, RENEW_BEFORE_S, SERVER_NAME, LinkRefused, Nothing, SigningRequest
from commonage.link.sites.credentials import NotJoined, SiteCredentials, SiteIdentity, new_key, signing_request
from commonage.link.sites.messages.hello import MAX_CLOCK_OFFSET_S, Protocols, SiteHello, SiteWelcome
from commonage.link.sites.transport.connection import Handlers, LinkEnd, SiteConnection
from commonage.link.sites.transport.tls_streams import dial
from commonage.link.sites.transport.tunnel_pool import DIAL_TUNNEL, DialTunnel, TunnelServer
from commonage.ports.agents import OnProgress

_log = logging.getLogger(__name__)
_TIMEOUT_S = 10.0
_RENEW_RETRY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds between two dials: a random part of a bound that doubles from `first_s` to `longest_s`.

    The whole range is random, so that a hundred sites spread out when the control plane comes back.
    """

    first_s: float = 1.0
    longest_s: float = 10.0
    refused_s: float = 30.0


class SiteRefused(CommonageError):
    """The control plane answered, and refused the site."""

    code = "refused"


OnConnected = Callable[[SiteConnection, SiteWelcome], Coroutine[Any, Any, None]]
"""Uses the link until it is cancelled, at the end of the link."""


async def _only_wait(_connection: SiteConnection, _welcome: SiteWelcome) -> None:
    await asyncio.Event().wait()


class SiteDialer:
    """Keeps one link to the control plane. `handlers` are what the site serves. `now` gives unix seconds."""

    def __init__(
        self,
        credentials: SiteCredentials,
        handlers: Handlers,
        on_connected: OnConnected = _only_wait,
        *,
        backoff: Backoff | None = None,
        protocols: Protocols | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._credentials, self._on_connected, self._now = credentials, on_connected, now
        self._handlers = replace(handlers, messages={**handlers.messages, "refused": (LinkRefused, self._on_refused)})
        self._backoff, self._protocols = backoff or Backoff(), protocols or Protocols()
        self._refused: LinkRefused | None = None
        self._turn = 0

    async def run(self) -> None:
        """Dial until cancelled. Raises NotJoined if this machine has no usable identity."""
        bound, previous = self._backoff.first_s, ""
        while True:
            began = time.monotonic()
            try:
                await self._link(await asyncio.to_thread(self._credentials.identity))
            except NotJoined:
                raise
            except SiteRefused as error:
                reason, bound = f"the control plane refused this site: {error.message}", self._backoff.refused_s
            except CommonageError as error:
                reason = error.message
                if bound > self._backoff.longest_s or time.monotonic() - began > _TIMEOUT_S:
                    bound = self._backoff.first_s  # it was refused before, or the link was up for a while
            _log.log(logging.DEBUG if reason == previous else logging.WARNING, "%s; dialling again", reason)
            previous = reason
            await asyncio.sleep(bound * random.random())  # noqa: S311 - not a secret
            bound = max(bound, min(self._backoff.longest_s, bound * 2))

    async def _link(self, identity: SiteIdentity) -> None:
        """One link, from dialling to its end. Raises ConnectionLost, SiteRefused, NotJoined."""
        address = identity.addresses[self._turn % len(identity.addresses)]
        self._turn += 1
        context = await asyncio.to_thread(identity.context)
        reader, writer = await _dial(context, address)
        tunnels = TunnelServer(self._handlers.targets)

        async def dial_tunnel(wanted: DialTunnel, _: OnProgress) -> Nothing:
            await self._dial_tunnel(identity, address, context, wanted.number, tunnels)
            return Nothing()

        try:
            hello = SiteHello(identity.site, self._protocols, __version__, self._now())
            welcome = await _say_hello(hello, reader, writer, address)
            self._turn -= 1  # this address works
            _log.info("linked to the control plane at %s (version %s)", address, welcome.version)
            if abs(welcome.clock_offset_s) > MAX_CLOCK_OFFSET_S:
                _log.warning("the clock here differs from the control plane's by %.1f s", -welcome.clock_offset_s)
            end = LinkEnd(identity.site, f"the control plane at {address}", dialed=True, protocol=welcome.protocol)
            handlers = replace(self._handlers, requests={**self._handlers.requests, DIAL_TUNNEL: dial_tunnel})
            await self._use(SiteConnection(end, reader, writer, handlers, self._now), welcome)
        finally:
            await tunnels.close()
            await close_writer(writer)

    async def _dial_tunnel(
        self, identity: SiteIdentity, address: str, context: ssl.SSLContext, number: int, tunnels: TunnelServer
    ) -> None:
        """Raises ConnectionLost, EngineFailure."""
        reader, writer = await _dial(context, address)
        try:
            hello = SiteHello(identity.site, self._protocols, __version__, self._now(), tunnel=number)
            await _say_hello(hello, reader, writer, address)
            tunnels.serve(writer)
        except BaseException:
            writer.transport.abort()
            raise

    async def _use(self, connection: SiteConnection, welcome: SiteWelcome) -> None:
        self._refused = None
        try:
            await connection.run_with(self._on_connected(connection, welcome), self._keep_certificate(connection))
        except ConnectionLost:
            if self._refused is not None:
                raise SiteRefused(self._refused.reason) from None
            raise

    def _on_refused(self, refused: LinkRefused) -> None:
        self._refused = refused

    async def _keep_certificate(self, connection: SiteConnection) -> None:
        """Renew the certificate in time, with a new key. The next link uses it."""
        while True:
            identity = await asyncio.to_thread(self._credentials.identity)
            left = identity.until - self._now()
            if left > RENEW_BEFORE_S:
                await asyncio.sleep(min(left - RENEW_BEFORE_S, _RENEW_RETRY_S))
                continue
            try:
                await self._renew(connection, identity)
            except (CommonageError, OSError) as error:
                _log.error("the certificate cannot be renewed and expires in %.0f s: %s", left, error)
                await asyncio.sleep(_RENEW_RETRY_S)

    async def _renew(self, connection: SiteConnection, identity: SiteIdentity) -> None:
        key = new_key()
        renewed = await connection.request(RENEW, SigningRequest(signing_request(key, identity.site)))
        fresh = replace(identity, key=key, certificate=renewed.pem, until=renewed.until)
        await asyncio.to_thread(self._credentials.keep, fresh)
        _log.info("the certificate was renewed")


async def _dial(context: ssl.SSLContext, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises ConnectionLost."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await dial(host.strip("[]"), int(port), context, SERVER_NAME)
    except ssl.SSLCertVerificationError as error:
        raise ConnectionLost(
            f"the server at {address} is not the control plane of this site: {error.verify_message}"
        ) from error
    except (TimeoutError, OSError) as error:
        raise ConnectionLost(f"the control plane cannot be reached at {address}: {error_text(error)}") from error


async def _say_hello(
    hello: SiteHello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str
) -> SiteWelcome:
    """Raises ConnectionLost, SiteRefused."""
    try:
        writer.write(encode_frame(message_frame("hello", hello)))
        frame = await read_frame(reader, _TIMEOUT_S)
        if frame.get("message") == "refused":
            raise SiteRefused(from_json(LinkRefused, frame.get("body"), ignore_unknown=True).reason)
        return from_json(SiteWelcome, frame.get("body"), ignore_unknown=True)
    except (EOFError, ConnectionError, ssl.SSLError) as error:
        # Under TLS 1.3 a server that rejects the client certificate closes the connection only now.
        raise ConnectionLost(
            f"the control plane at {address} closed the connection without an answer: it may have rejected the "
            "certificate of this site (expired, or of another control plane). If so, join again with a new token"
        ) from error
    except (TimeoutError, *FRAME_ERRORS) as error:
        raise ConnectionLost(f"{address} does not answer like a control plane: {error_text(error)}") from error


async def probe(identity: SiteIdentity, address: str, now: Callable[[], float] = time.time) -> SiteWelcome:
    """Ask the control plane at this address whether it admits this site. Leaves a link that is up alone.

    Raises ConnectionLost, SiteRefused, NotJoined.
    """
    reader, writer = await _dial(await asyncio.to_thread(identity.context), address)
    try:
        hello = SiteHello(identity.site, Protocols(), __version__, now(), probe=True)
        return await _say_hello(hello, reader, writer, address)
    finally:
        await close_writer(writer)
