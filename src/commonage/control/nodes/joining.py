"""Tokens with which nodes join a site, each with an audit event. Used by API and portal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commonage.control.access import access_of
from commonage.control.settings import ControlSettings
from commonage.control.state.writer import Writer
from commonage.domain.errors import Conflict, NotFound
from commonage.domain.nodes import LOCAL_SITE
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal
from commonage.domain.reasons import Reason
from commonage.domain.reasons.notes import NodeTokenCreated, NodeTokensRevoked
from commonage.domain.workloads import Event, EventKind
from commonage.ports.clock import Clock
from commonage.ports.joining import Joining, JoinToken


@dataclass(frozen=True, slots=True)
class NodeAdmission:
    """`joining` are the join services, by site. Events follow changes: tokens can be revoked without the store."""

    joining: Mapping[str, Joining]
    writer: Writer
    clock: Clock
    settings: ControlSettings

    def at(self, principal: Principal, site: str) -> Joining:
        """For admins. Raises Conflict if no node can join the control plane's own site, NotFound for another site."""
        access_of(principal, self.settings).need(Permission.MANAGE_PLATFORM)
        if site in self.joining:
            return self.joining[site]
        if site == LOCAL_SITE:
            raise Conflict('No node can join this site. An admin must set `site_address` (and `engine = "swarm"`).')
        known = ", ".join(sorted(self.joining)) or "none"
        raise NotFound(
            f"There is no site {site[:60]} that nodes could join. Such sites: {known}.", code="site-not-found"
        )

    async def token(self, principal: Principal, site: str, for_s: int) -> JoinToken:
        """A token with which nodes may join this site. Raises InvalidInput, Unavailable."""
        made = await self.at(principal, site).token(for_s)
        await self._tell(NodeTokenCreated(site=site, by=principal.name, expires_at=made.expires_at))
        return made

    async def revoke(self, principal: Principal, site: str) -> Sequence[str]:
        """Revoke all tokens of the site. Returns sentences on what was done and what could not be done."""
        done = await self.at(principal, site).revoke_tokens()
        await self._tell(NodeTokensRevoked(site=site, by=principal.name))
        return done

    async def _tell(self, happened: Reason) -> None:
        await self.writer.write(events=[Event(EventKind.AUDIT, self.clock.now(), happened)])
