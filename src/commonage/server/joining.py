"""The join service and its listener, with the join config from the settings. Made by the bootstrap, opened by main."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commonage.engines.swarm.nodes.membership import SwarmManager
from commonage.join.client import NAME
from commonage.join.listener import JoinListener
from commonage.join.service import JoinService, Site
from commonage.join.tokens import Tokens
from commonage.link.agent_connections import AgentConnections
from commonage.link.bundle import make_bundle
from commonage.link.certificate_authority import CertificateAuthority
from commonage.ports.clock import Clock
from commonage.server.processes.ports import PortError, in_url
from commonage.server.settings.settings import Settings
from commonage.wire.hub import PORTAL_PATH

# Services cannot request no-new-privileges, so the daemon sets it for all containers. Swarm mode refuses live-restore.
_DAEMON: Mapping[str, Any] = {"no-new-privileges": True, "live-restore": False}


def join_config(settings: Settings, address: str, shared_dir: Path, registry: str = "") -> Site:
    """The site's part of the join config. Nodes reach this machine at `address`. `registry` is HOST:PORT or empty."""
    here = settings.public_url or f"http://{in_url(address)}:{settings.port}"
    images = [settings.docker_image, *(entry.image for entry in settings.environments)]
    agent = {"isolation": settings.gpu_isolation, "slots": settings.gpu_slots, "cpu_hold": settings.cpu_hold}
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
    """The join service behind its listener. `join_service` is the port for the API."""

    def __init__(
        self, settings: Settings, address: str, site: Site, authority: CertificateAuthority, folder: Path, clock: Clock
    ) -> None:
        self._settings, self._address, self._authority = settings, address, authority
        tokens = Tokens(folder / "secret", authority.fingerprint)
        self.join_service = JoinService(site, authority, tokens, SwarmManager(settings.docker_url), clock)
        self._join_listener = JoinListener(self.join_service)

    async def open(self, agents: AgentConnections | None) -> None:
        """Start to accept nodes. Raises PortError, BundleError."""
        bundle = await asyncio.to_thread(make_bundle)
        await asyncio.to_thread(self.join_service.open, bundle, agents)
        pair = await asyncio.to_thread(self._authority.serve, [NAME, self._address])
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
