"""Admits and removes sites: tokens for admins, certificates for machines that join. Implements `ports.sites.Sites`."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from commonage.domain.errors import InvalidInput
from commonage.link.certificate_authority import CertificateAuthority
from commonage.link.sites.links import SiteLinks
from commonage.link.sites.registry import SiteEntry, SiteRegistry
from commonage.ports.clock import Clock
from commonage.ports.sites import JoinedSite, SiteState, SiteToken, SiteView

log = logging.getLogger(__name__)
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", re.ASCII)


class SiteTokens(Protocol):
    """Signed tokens (`commonage.join.tokens`)."""

    def make_for_site(self, site: str, at: Sequence[str], now: float, for_s: int) -> str:
        """Raises InvalidInput."""
        ...

    def check_for_site(self, token: str, now: float) -> str:
        """The name of the site. Raises Forbidden."""
        ...


@dataclass(frozen=True, slots=True)
class InviteRules:
    """`listeners` are HOST:PORT of the join listener. `reserved` are names of sites that exist otherwise."""

    listeners: tuple[str, ...]
    reserved: frozenset[str] = frozenset()


class SiteService:
    def __init__(
        self,
        authority: CertificateAuthority,
        registry: SiteRegistry,
        links: SiteLinks,
        tokens: SiteTokens,
        clock: Clock,
        rules: InviteRules,
    ) -> None:
        self._authority, self._registry, self._links = authority, registry, links
        self._tokens, self._clock = tokens, clock
        self._listeners, self._reserved = rules.listeners, rules.reserved

    # --- for admins -----------------------------------------------------------------------------------------------

    async def sites(self) -> Sequence[SiteView]:
        return [self._view(one) for one in await asyncio.to_thread(self._registry.sites)]

    def _view(self, entry: SiteEntry) -> SiteView:
        link, now = self._links.link(entry.name), self._clock.now()
        waits = bool(entry.token) and not entry.token_key and entry.token_until > now
        token_until = entry.token_until if waits else None
        last_seen = self._links.last_seen(entry.name)
        if link is None:
            state = (
                SiteState.DISCONNECTED if entry.keys else SiteState.REVOKED if entry.revoked_at else SiteState.INVITED
            )
            return SiteView(entry.name, state, entry.joined_at, last_seen=last_seen, token_until=token_until)
        return SiteView(
            entry.name,
            SiteState.CONNECTED,
            entry.joined_at,
            since=link.since,
            last_seen=last_seen,
            token_until=token_until,
            certificate_until=link.until,
            address=link.site.address,
            version=link.site.version,
            protocol=link.site.protocol,
            clock_offset_s=link.connection.clock_offset_s or link.site.clock_offset_s,
        )

    async def token(self, name: str, for_s: int) -> SiteToken:
        if not _NAME.fullmatch(name) or name in self._reserved:
            raise InvalidInput(
                f"{name[:60]!r} cannot be the name of a new site: use up to 40 lower-case letters, digits and hyphens, "
                f"and none of {', '.join(sorted(self._reserved)) or 'the names in use'}",
                field="name",
            )
        now = self._clock.now()
        token = await asyncio.to_thread(self._tokens.make_for_site, name, self._listeners, now, for_s)
        await asyncio.to_thread(self._registry.invite, name, token, now + for_s)
        return SiteToken(name, token, now + for_s, "commonage site join --token-file -")

    async def revoke(self, name: str) -> None:
        await asyncio.to_thread(self._registry.revoke, name)
        self._links.disconnect(name, f"the site {name} was revoked: join again with a new token")
        log.info("site revoked", extra={"site": name})

    async def remove(self, name: str) -> None:
        await asyncio.to_thread(self._registry.remove, name)
        await self._links.removed(name, f"the site {name} was removed: join again with a new token")
        log.info("site removed", extra={"site": name})

    # --- for machines that join -----------------------------------------------------------------------------------

    async def join(self, token: str, csr_pem: str) -> JoinedSite:
        """Sign the key of a machine that has this token. Raises Forbidden, InvalidInput, Unavailable."""
        name = await asyncio.to_thread(self._tokens.check_for_site, token, self._clock.now())
        signed = await asyncio.to_thread(self._authority.sign_site, csr_pem, name)
        await asyncio.to_thread(self._registry.join, name, token, signed.key)
        await self._links.joined(name)
        log.info("site joined", extra={"site": name})
        return JoinedSite(name, signed.pem, signed.until, self._links.port)
