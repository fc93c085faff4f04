"""Sites elsewhere, as the bootstrap wires them: their registry, their links, and an engine for each that has joined."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from commonage.domain.errors import EngineFailure
from commonage.engines.remote.engine import RemoteEngine, StoreSamples
from commonage.engines.remote.sites import Sites
from commonage.engines.settings import RemoteSettings
from commonage.link.certificate_authority import CertificateAuthority
from commonage.link.sites.links import SiteLinks
from commonage.link.sites.registry import SiteRegistry
from commonage.ports.clock import Clock
from commonage.server.workload_gateway import WorkloadAccess

_log = logging.getLogger(__name__)
FOLDER = "sites"
"""Folder of their last known states, in the data folder."""


@dataclass(frozen=True, slots=True)
class RemoteSites:
    registry: SiteRegistry
    links: SiteLinks
    engines: Sites


def remote_sites(
    authority: CertificateAuthority, data_dir: Path, clock: Clock, store_samples: StoreSamples, access: WorkloadAccess
) -> RemoteSites:
    """Blocks briefly. Raises Unavailable if the list of sites cannot be read."""
    registry = SiteRegistry(data_dir.absolute() / "authority" / "sites.json", clock.now)
    names = [one.name for one in registry.sites() if one.joined_at is not None]
    settings = RemoteSettings(data_dir.absolute() / FOLDER, access.gateway_port, access.ports)
    engines = Sites(names, settings, clock, store_samples, _added)
    links = SiteLinks(authority, registry, engines.handlers, on_connected=engines.on_connected, now=clock.now)
    return RemoteSites(registry, links, engines)


async def _added(engine: RemoteEngine) -> None:
    raise EngineFailure(f"restart the server to use the site {engine.site}", retryable=True)
