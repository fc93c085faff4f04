"""The engines of all joined sites. Makes engines for sites that join later, and closes those of removed sites."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from commonage.engines.remote.engine import FromSites, RemoteEngine
from commonage.engines.settings import RemoteSettings
from commonage.link.sites.transport.connection import Handlers, SiteConnection
from commonage.ports.agents import RemoteDevices
from commonage.ports.clock import Clock
from commonage.ports.homes import Storage
from commonage.ports.joining import Joining

OnEngine = Callable[[RemoteEngine], Awaitable[None]]


class Sites:
    """`names` are the sites that have joined; their engines are opened and closed by their user.

    `added` is awaited for the engine of each site that joins later, and opens it. `removed` is awaited for the engine
    of each removed site, and closes it. By site: `devices` are the GPUs of each, `storage` its homes and volumes,
    `joining` lets nodes join it.
    """

    def __init__(
        self,
        names: Iterable[str],
        settings: RemoteSettings,
        clock: Clock,
        from_sites: FromSites,
        added: OnEngine,
        removed: OnEngine,
    ) -> None:
        self._settings, self._clock, self._from_sites = settings, clock, from_sites
        self._added, self._removed = added, removed
        self._engines = {name: self._make(name) for name in names}
        self.devices: dict[str, RemoteDevices] = {name: one.devices for name, one in self._engines.items()}
        self.storage: dict[str, Storage] = {name: one.storage for name, one in self._engines.items()}
        self.joining: dict[str, Joining] = {name: one.joining for name, one in self._engines.items()}
        self._changing = asyncio.Lock()

    def _make(self, site: str) -> RemoteEngine:
        return RemoteEngine(site, self._settings, self._clock, self._from_sites)

    def engines(self) -> Sequence[RemoteEngine]:
        return list(self._engines.values())

    # --- for the links ----------------------------------------------------------------------------------------------

    async def on_joined(self, site: str) -> None:
        """Does nothing if the site has joined before. Raises what `added` raises."""
        async with self._changing:
            if site not in self._engines:
                engine = self._make(site)
                await self._added(engine)
                self._engines[site], self.devices[site] = engine, engine.devices
                self.joining[site], self.storage[site] = engine.joining, engine.storage

    async def on_removed(self, site: str) -> None:
        async with self._changing:
            engine = self._engines.pop(site, None)
            self.devices.pop(site, None)
            self.joining.pop(site, None)
            self.storage.pop(site, None)
            if engine is not None:
                await self._removed(engine)

    def handlers(self, site: str) -> Handlers:
        engine = self._engines.get(site)
        return Handlers() if engine is None else engine.handlers()

    def on_connected(self, connection: SiteConnection) -> None:
        engine = self._engines.get(connection.site)
        if engine is None:  # its join could not be completed
            connection.close(f"the site {connection.site} has not joined completely: join again with the same token")
        else:
            engine.attach(connection)
