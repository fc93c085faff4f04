"""The engines of all joined sites: finds the engine of a connection, and makes engines for sites that join later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from commonage.domain.errors import CommonageError
from commonage.engines.remote.engine import RemoteEngine, StoreSamples
from commonage.engines.settings import RemoteSettings
from commonage.link.sites.connection import Handlers, SiteConnection
from commonage.ports.agents import RemoteDevices
from commonage.ports.clock import Clock

_log = logging.getLogger(__name__)


class Sites:
    """`names` are the sites that have joined; their engines are opened and closed by their user.

    `devices` are the GPUs of each, by site.
    `added` is awaited for the engine of each site that joins later, and opens it; then the site dials again.
    """

    def __init__(
        self,
        names: Iterable[str],
        settings: RemoteSettings,
        clock: Clock,
        store_samples: StoreSamples,
        added: Callable[[RemoteEngine], Awaitable[None]],
    ) -> None:
        self._settings, self._clock, self._store_samples, self._added = settings, clock, store_samples, added
        self._engines = {name: self._make(name) for name in names}
        self.devices: dict[str, RemoteDevices] = {name: one.devices for name, one in self._engines.items()}
        self._adding: dict[str, asyncio.Task[None]] = {}

    def _make(self, site: str) -> RemoteEngine:
        return RemoteEngine(site, self._settings, self._clock, self._store_samples)

    def engines(self) -> Sequence[RemoteEngine]:
        return list(self._engines.values())

    def engine_of(self, site: str) -> RemoteEngine | None:
        return self._engines.get(site)

    def remove(self, site: str) -> None:
        """The site was removed, and its engine closed. If it joins again, it is a new site."""
        self._engines.pop(site, None)
        self.devices.pop(site, None)

    # --- for the links ----------------------------------------------------------------------------------------------

    def handlers(self, site: str) -> Handlers:
        engine = self._engines.get(site)
        return Handlers() if engine is None else engine.handlers()

    def on_connected(self, connection: SiteConnection) -> None:
        engine = self._engines.get(connection.site)
        if engine is not None:
            engine.attach(connection)
            return
        if connection.site not in self._adding:
            task = self._adding[connection.site] = asyncio.create_task(self._add(connection))
            task.add_done_callback(lambda _: self._adding.pop(connection.site))

    async def _add(self, connection: SiteConnection) -> None:
        """The connection has no handlers of the new engine: the next one has."""
        engine = self._make(connection.site)
        try:
            await self._added(engine)
        except CommonageError as error:
            _log.error("the site %s cannot be used yet: %s", connection.site, error)
        else:
            self._engines[connection.site] = engine
            self.devices[connection.site] = engine.devices
            connection.close(f"the site {connection.site} was added: dial again")
