"""The join service and its listener, with the join config from the settings; and the links of sites elsewhere.

Made by the bootstrap, opened by main. An appliance has a join service of its own, made by `server.site_agent`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commonage.domain.nodes import LOCAL_SITE
from commonage.engines.swarm.nodes.membership import SwarmManager
from commonage.join.client import NAME
from commonage.join.listener import SCRIPT_PATH, JoinListener, SiteJoins
from commonage.join.pods import PodJoins
from commonage.join.service import JoinService, Site
from commonage.join.tokens import Tokens
from commonage.link.agent_connections import AgentConnections
from commonage.link.bundle import make_bundle
from commonage.link.certificate_authority import CertificateAuthority
from commonage.link.sites.service import InviteRules, SiteService
from commonage.ports.clock import Clock
from commonage.server.processes.ports import PortError, in_url
from commonage.server.secrets import authority_of
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


@dataclass(frozen=True, slots=True)
class PlatformTrust:
    """The control plane's registry (`HOST:PORT`, or empty), and the authority (PEM) that verifies it."""

    registry: str
    authority: str


def site_join_config(settings: Settings, address: str, site: str, shared_dir: Path, platform: PlatformTrust) -> Site:
    """As `join_config`, of an appliance: its nodes need its site agent alone, and the registry for images there."""
    made = join_config(settings, address, shared_dir, platform.registry)
    return replace(
        made,
        name=site,
        script_url=f"https://{made.listeners[0]}{SCRIPT_PATH}",
        serves_script=True,
        registry_authority=platform.authority,
    )


class _Listening:
    """The join listener at the address of the settings, with a certificate of the site's own authority."""

    def __init__(self, settings: Settings, authority: CertificateAuthority) -> None:
        self._settings, self._authority = settings, authority
        self._listener: JoinListener | None = None

    async def open(self, listener: JoinListener) -> None:
        """Raises PortError."""
        pair = await asyncio.to_thread(self._authority.serve, [NAME, self._settings.site_address or NAME])
        bind, port = self._settings.joining_bind, self._settings.joining_port
        self._listener = listener
        try:
            await listener.start(bind, port, pair.cert_pem, pair.key_pem)
        except OSError as error:
            raise PortError(
                f"Cannot listen for joining machines at {bind}, port {port}: {error.strerror or error}. Set "
                "joining_port or joining_bind."
            ) from error

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.stop()


class JoiningMachines:
    """The control plane's join service behind its listener, and the sites that dial.

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
        self._settings = settings
        tokens = _tokens(data_dir, authority)
        self.join_service = JoinService(site, authority, tokens, SwarmManager(settings.docker_url), clock)
        self.site_links = remote.links
        rules = InviteRules(site.listeners, frozenset([LOCAL_SITE]))
        self.site_service = SiteService(authority, remote.registry, remote.links, tokens, clock, rules)
        self._listening = _Listening(settings, authority)

    async def open(self, agents: AgentConnections | None, sites: SiteJoins, pods: PodJoins | None) -> None:
        """Start to accept nodes, `sites`, and agents in `pods`. Raises PortError, BundleError, SiteListenError."""
        await self.site_links.open(self._settings.sites_bind, self._settings.sites_port)
        bundle = await asyncio.to_thread(make_bundle)
        await asyncio.to_thread(self.join_service.open, bundle, agents)
        await self._listening.open(JoinListener(self.join_service, sites, pods))

    async def close(self) -> None:
        await self._listening.close()
        await self.site_links.close()


class JoiningPods:
    """The join listener of a control plane where nothing joins except the node agents of its own Kubernetes cluster."""

    def __init__(self, settings: Settings, data_dir: Path, pods: PodJoins) -> None:
        self._pods, self._listening = pods, _Listening(settings, authority_of(data_dir))

    async def open(self) -> None:
        """Raises PortError."""
        await self._listening.open(JoinListener(None, pods=self._pods))

    async def close(self) -> None:
        await self._listening.close()


class JoiningNodes:
    """The join service of an appliance with a Swarm, behind its listener. It serves the join script, too."""

    def __init__(self, settings: Settings, site: Site, data_dir: Path, clock: Clock) -> None:
        authority = authority_of(data_dir)
        swarm = SwarmManager(settings.docker_url)
        self.join_service = JoinService(site, authority, _tokens(data_dir, authority), swarm, clock)
        self._listening = _Listening(settings, authority)

    async def open(self, agents: AgentConnections) -> None:
        """Start to accept nodes. Raises PortError, BundleError."""
        bundle = await asyncio.to_thread(make_bundle)
        await asyncio.to_thread(self.join_service.open, bundle, agents)
        await self._listening.open(JoinListener(self.join_service))

    async def close(self) -> None:
        await self._listening.close()


def _tokens(data_dir: Path, authority: CertificateAuthority) -> Tokens:
    return Tokens(data_dir / "joining" / "secret", authority.fingerprint)
