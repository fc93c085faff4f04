"""The join service and its listener, with the join config from the settings; and the links of sites elsewhere.

Made by the bootstrap, opened by main.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commonage.domain.nodes import LOCAL_SITE
from commonage.engines.swarm.nodes.membership import SwarmManager
from commonage.join.client import NAME
from commonage.join.listener import JoinListener
from commonage.join.service import JoinService, Site
from commonage.join.tokens import Tokens
from commonage.link.agent_connections import AgentConnections
from commonage.link.bundle import make_bundle
from commonage.link.certificate_authority import CertificateAuthority
from commonage.link.sites.service import InviteRules, SiteService
from commonage.ports.clock import Clock
from commonage.server.processes.ports import PortError, in_url
from commonage.server.settings.settings import Settings
from commonage.server.sites import RemoteSites
from commonage.wire.hub import PORTAL_PATH

# Services cannot request no-new-privileges, so the daemon sets it for all containers. Swarm mode refuses live-restore.
_DAEMON: Mapping[str, Any] = {"no-new-privileges": True, "live-restore": False}


def join_config(settings: Settings, address: str, shared_dir: Path, registry: str = "") -> Site:
    """The site's part of the join config. Nodes reach this machine at `address`. `registry` is HOST:PORT or empty."""
    here = settings.public_url or f"http://{in_url(address)}:{settings.port}"
    images = [settings.docker_image, *(entry.image for entry in settings.environments)]
    agent = {
        "isolation": settings.gpu_isolation,
        "preload": str(settings.gpu_preload or ""),
        "slots": settings.gpu_slots,
        "cpu_hold": settings.cpu_hold,
    }
    return Site(
        name=settings.name,
        script_url=f"{here.rstrip('/')}{PORTAL_PATH}join",
        listeners=(f"{in_url(address)}:{settings.joining_port}",),
        agents=(f"{in_url(address)}:{settings.agents_port}",),
        shared_dir=shared_dir.absolute(),
        registry=registry,
        images=tuple(dict.fromkeys(image for image in images if image)),
        daemon=_DAEMON,
        agent={name: value for name, value in agent.items() if value},
    )


class Joining:
    """The join service behind its listener, and the sites that dial.

    `join_service` and `site_service` are the ports for the API.
    """

    def __init__(
        self,
        settings: Settings,
        site: Site,
        authority: CertificateAuthority,
        data_dir: Path,
        clock: Clock,
        remote: RemoteSites,
    ) -> None:
        self._settings, self._authority = settings, authority
        folder = data_dir / "joining"
        tokens = Tokens(folder / "secret", authority.fingerprint)
        self.join_service = JoinService(site, authority, tokens, SwarmManager(settings.docker_url), clock)
        self.site_links = remote.links
        rules = InviteRules(site.listeners, frozenset([LOCAL_SITE]))
        self.site_service = SiteService(authority, remote.registry, remote.links, tokens, clock, rules)
        self._join_listener = JoinListener(self.join_service, self.site_service)

    async def open(self, agents: AgentConnections | None) -> None:
        """Start to accept nodes and sites. Raises PortError, BundleError, SiteListenError."""
        await self.site_links.open(self._settings.sites_bind, self._settings.sites_port)
        bundle = await asyncio.to_thread(make_bundle)
        await asyncio.to_thread(self.join_service.open, bundle, agents)
        pair = await asyncio.to_thread(self._authority.serve, [NAME, self._settings.site_address or NAME])
        bind, port = self._settings.joining_bind, self._settings.joining_port
        try:
            await self._join_listener.start(bind, port, pair.cert_pem, pair.key_pem)
        except OSError as error:
            raise PortError(
                f"Cannot listen for joining machines at {bind}, port {port}: {error.strerror or error}. Set "
                "joining_port or joining_bind."
            ) from error

    async def close(self) -> None:
        await self._join_listener.stop()
        await self.site_links.close()
