"""Sites elsewhere: joining, tokens for it, revocation and removal, each with an audit event.

Used by API, portal and the join listener.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commonage.control.access import access_of
from commonage.control.settings import ControlSettings
from commonage.control.state.writer import Writer
from commonage.domain.errors import Conflict
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal
from commonage.domain.reasons import Reason
from commonage.domain.reasons.notes import SiteJoined, SiteRemoved, SiteRevoked, SiteTokenCreated
from commonage.domain.workloads import Event, EventKind
from commonage.ports.clock import Clock
from commonage.ports.sites import JoinedSite, Sites, SiteToken, SiteView

_NOT_OPEN = "No site can join this control plane. Set `site_address` in its settings, and restart it."


@dataclass(frozen=True, slots=True)
class SiteAdmission:
    """`sites` is None where no site can join. Events follow changes: a site can be revoked while the store is away."""

    sites: Sites | None
    writer: Writer
    clock: Clock
    settings: ControlSettings

    async def all(self, principal: Principal) -> Sequence[SiteView]:
        """For operators and admins."""
        access_of(principal, self.settings).need(Permission.SEE_PLATFORM)
        return [] if self.sites is None else await self.sites.sites()

    async def token(self, principal: Principal, name: str, for_s: int) -> SiteToken:
        """A token with which one machine may join as this site. Raises InvalidInput, Conflict."""
        made = await self._for_admins(principal).token(name, for_s)
        await self._tell(SiteTokenCreated(site=name, by=principal.name, expires_at=made.expires_at))
        return made

    async def join(self, token: str, csr_pem: str) -> JoinedSite:
        """For a machine that is authenticated only by its token. Raises Forbidden, InvalidInput, Unavailable."""
        if self.sites is None:
            raise Conflict(_NOT_OPEN)
        joined = await self.sites.join(token, csr_pem)
        await self._tell(SiteJoined(site=joined.site))
        return joined

    async def revoke(self, principal: Principal, name: str) -> None:
        """Revoke certificate and token. Raises NotFound, Conflict."""
        await self._for_admins(principal).revoke(name)
        await self._tell(SiteRevoked(site=name, by=principal.name))

    async def remove(self, principal: Principal, name: str) -> None:
        """Revoke the site, and forget it. Raises NotFound, Conflict."""
        await self._for_admins(principal).remove(name)
        await self._tell(SiteRemoved(site=name, by=principal.name))

    def _for_admins(self, principal: Principal) -> Sites:
        access_of(principal, self.settings).need(Permission.MANAGE_PLATFORM)
        if self.sites is None:
            raise Conflict(_NOT_OPEN)
        return self.sites

    async def _tell(self, happened: Reason) -> None:
        await self.writer.write(events=[Event(EventKind.AUDIT, self.clock.now(), happened)])
