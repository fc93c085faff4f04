"""The links of all sites, seen from the control plane. There is one link for each site; the newest wins.

Everything that arrives on a link belongs to the site in its certificate: handlers are made for that site.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from commonage.domain.errors import CommonageError, EngineFailure
from commonage.domain.iterations import Iterations
from commonage.link.certificate_authority import CertificateAuthority
from commonage.link.exchange import ConnectionLost
from commonage.link.messages import RENEW, Certificate, LinkRefused, SigningRequest
from commonage.link.sites.listener import AdmittedSite, SiteListener
from commonage.link.sites.messages.hello import MAX_CLOCK_OFFSET_S, TUNNELS_PROTOCOL, Protocols
from commonage.link.sites.registry import SiteRegistry
from commonage.link.sites.transport.connection import Handlers, LinkEnd, SiteConnection
from commonage.ports.agents import OnProgress

_log = logging.getLogger(__name__)
_CHECK_INTERVAL_S = 5.0


@dataclass(slots=True, eq=False)
class SiteLink:
    """The link of a site. `key` and `until` are of the newest certificate that it has."""

    site: AdmittedSite
    connection: SiteConnection
    since: float
    key: str
    until: float


def serves_nothing(_site: str) -> Handlers:
    return Handlers()


async def _ignore(_site: str) -> None:
    return None


@dataclass(frozen=True, slots=True)
class SiteEvents:
    """`connected` is called with each new link. `joined` is awaited before a site gets its certificate, and `removed`
    after a site was removed.
    """

    connected: Callable[[SiteConnection], None] = lambda _: None
    joined: Callable[[str], Awaitable[None]] = _ignore
    removed: Callable[[str], Awaitable[None]] = _ignore


class SiteLinks:
    """`handlers` gives what the control plane serves to a site. `now` gives unix seconds."""

    def __init__(
        self,
        authority: CertificateAuthority,
        registry: SiteRegistry,
        handlers: Callable[[str], Handlers] = serves_nothing,
        events: SiteEvents | None = None,
        *,
        now: Callable[[], float] = time.time,
        protocols: Protocols | None = None,
    ) -> None:
        self._authority, self._registry, self._handlers = authority, registry, handlers
        self._events, self._now = events or SiteEvents(), now
        self._listener = SiteListener(authority, registry, self._serve, now, protocols or Protocols())
        self._links: dict[str, SiteLink] = {}
        self._last_seen: dict[str, float] = {}
        self.iterations = Iterations("sites", now)
        self.port = 0

    async def open(self, bind: str, port: int) -> None:
        """Listen for sites; `port` is set then. Raises SiteListenError."""
        self.port = await self._listener.open(bind, port)

    async def close(self) -> None:
        for link in self._links.values():
            link.connection.close("the control plane stops")
        await self._listener.close()

    # --- for engines and the API ----------------------------------------------------------------------------------

    def connection(self, site: str) -> SiteConnection:
        """The present link of this site. Raises EngineFailure (retryable) if it is not connected."""
        link = self.link(site)
        if link is None:
            last = self.last_seen(site)
            seen = "no connection since our start" if last is None else f"last seen {self._now() - last:.0f} s ago"
            raise EngineFailure(
                f"the site {site} is not connected ({seen}): check the site agent there, and its way to this server",
                retryable=True,
            )
        return link.connection

    def link(self, site: str) -> SiteLink | None:
        link = self._links.get(site)
        return None if link is None or link.connection.is_closed else link

    def last_seen(self, site: str) -> float | None:
        """When the site was connected last (unix seconds); None if it was not since the start."""
        return self._now() if self.link(site) else self._last_seen.get(site)

    async def joined(self, site: str) -> None:
        """A machine joined as this site. Raises Unavailable if the site cannot be served yet."""
        await self._events.joined(site)

    async def removed(self, site: str, reason: str) -> None:
        self.disconnect(site, reason)
        await self._events.removed(site)

    def disconnect(self, site: str, reason: str) -> None:
        """End the link of a site that may not connect any more."""
        link = self._links.get(site)
        if link is not None:
            link.connection.send("refused", LinkRefused(reason, permanent=True))
            link.connection.close(reason)

    # --- links ----------------------------------------------------------------------------------------------------

    async def _serve(self, site: AdmittedSite) -> None:
        if site.tunnel is None:
            await self._serve_link(site)
        elif (link := self.link(site.name)) is not None:
            tunnel = link.connection.tunnel_arrived(site.tunnel, site.writer)
            if tunnel is not None:
                await asyncio.wait([tunnel.end])

    async def _serve_link(self, site: AdmittedSite) -> None:
        own = self._handlers(site.name)
        handlers = replace(own, requests={**own.requests, RENEW: partial(self._renew, site.name)})
        end = LinkEnd(
            site.name,
            f"the site {site.name}",
            dialed=False,
            protocol=site.protocol,
            clock_offset_s=site.clock_offset_s,
            tunnels=site.protocol >= TUNNELS_PROTOCOL,
        )
        connection = SiteConnection(end, site.reader, site.writer, handlers, self._now)
        link = SiteLink(site, connection, self._now(), site.key, site.until)
        previous = self._links.get(site.name)
        self._links[site.name] = link
        if previous is not None:
            previous.connection.close(f"the site {site.name} opened a new link")
        _log.info("the site %s is connected from %s (version %s)", site.name, site.address, site.version)
        if abs(site.clock_offset_s) > MAX_CLOCK_OFFSET_S:
            _log.warning("the clock of the site %s differs by %.1f s", site.name, -site.clock_offset_s)
        running = asyncio.create_task(connection.run())
        try:
            self._events.connected(connection)
            await running
        except ConnectionLost as error:
            _log.warning("%s", error.message)
        finally:
            connection.close("the link ended")
            running.cancel()
            self._last_seen[site.name] = self._now()
            if self._links.get(site.name) is link:
                del self._links[site.name]

    async def _renew(self, name: str, request: SigningRequest, _: OnProgress) -> Certificate:
        link = self._links.get(name)
        if link is None:
            raise EngineFailure(f"the link of the site {name} has ended", retryable=True)
        signed = await asyncio.to_thread(self._authority.sign_site, request.csr, name)
        await asyncio.to_thread(self._registry.renew, name, link.key, signed.key)
        link.until = signed.until
        _log.info("the site %s has a new certificate", name)
        return Certificate(signed.pem, signed.until)

    # --- the loop -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Every few seconds: end links whose certificate has expired, or was revoked by another process."""
        while True:
            with self.iterations.rest():
                await asyncio.sleep(_CHECK_INTERVAL_S)
            await self.check()

    async def check(self) -> None:
        try:
            entries = {one.name: one for one in await asyncio.to_thread(self._registry.sites)}
        except CommonageError as error:
            _log.error("%s", error.message)
            return
        for name, link in list(self._links.items()):
            if name not in entries or link.key not in entries[name].keys:
                self.disconnect(name, f"the site {name} was revoked, or another machine joined as it")
            elif link.until <= self._now():
                self.disconnect(name, f"the certificate of the site {name} has expired: join again")
