"""Sites elsewhere, as the bootstrap wires them: their registry, their links, and an engine for each that has joined."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from commonage.control.engines import Engines
from commonage.engines.remote.engine import FromSites, RemoteEngine
from commonage.engines.remote.sites import Sites
from commonage.engines.settings import RemoteSettings
from commonage.link.certificate_authority import CertificateAuthority
from commonage.link.sites.links import SiteEvents, SiteLinks
from commonage.link.sites.registry import SiteRegistry
from commonage.ports.clock import Clock

FOLDER = "sites"
"""Folder of their last known states, in the data folder."""


@dataclass(frozen=True, slots=True)
class RemoteSites:
    registry: SiteRegistry
    links: SiteLinks
    engines: Sites


def remote_sites(
    authority: CertificateAuthority,
    data_dir: Path,
    clock: Clock,
    from_sites: FromSites,
    settings: RemoteSettings,
    all_engines: Engines,
) -> RemoteSites:
    """Adds the engines of joined sites to `all_engines`, and later those of sites that join while the server runs.

    Blocks briefly. Raises Unavailable if the list of sites cannot be read.
    """

    async def added(engine: RemoteEngine) -> None:
        await engine.open()
        all_engines.add(engine)

    async def removed(engine: RemoteEngine) -> None:
        all_engines.remove(engine.site)
        await engine.close()
        await engine.delete_records()

    registry = SiteRegistry(data_dir.absolute() / "authority" / "sites.json", clock.now)
    names = [one.name for one in registry.sites() if one.joined_at is not None]
    engines = Sites(names, settings, clock, from_sites, added, removed)
    for engine in engines.engines():
        all_engines.add(engine)
    events = SiteEvents(engines.on_connected, engines.on_joined, engines.on_removed)
    links = SiteLinks(authority, registry, engines.handlers, events, now=clock.now)
    return RemoteSites(registry, links, engines)
