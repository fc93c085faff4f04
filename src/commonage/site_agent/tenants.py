"""The tenants of the site and what each has there, such as a namespace, as the control plane asks for it.

Without the link, the agent continues with the tenants of the last request.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from commonage.domain.errors import CommonageError
from commonage.domain.tenants import Tenant
from commonage.link.sites.messages.tenants import SiteTenants, TenantsWaiting
from commonage.ports.agents import OnProgress
from commonage.ports.clock import Clock
from commonage.ports.engine import Engine
from commonage.site_agent.kept_message import KeptMessage

EVERY_S = 60.0
_log = logging.getLogger(__name__)


class KeptTenants:
    """In the file `tenants.json` of the agent's folder."""

    def __init__(self, engine: Engine, folder: Path, clock: Clock) -> None:
        self._engine, self._clock = engine, clock
        self._kept = KeptMessage(SiteTenants, folder / "tenants.json")
        self._asked_at: float | None = None

    async def keep(self, wanted: SiteTenants, _: OnProgress) -> TenantsWaiting:
        self._asked_at = self._clock.now()
        await asyncio.to_thread(self._kept.keep, wanted)
        found = await self._engine.keep_tenants([Tenant(one.name, quota=one.quota) for one in wanted.tenants])
        return TenantsWaiting(tuple(found.items()))

    async def run(self) -> None:
        """Keep those of the last request, when the control plane has not asked for a while."""
        while True:
            try:
                await self._go_on()
            except CommonageError as error:
                _log.warning("what tenants have at this site is not kept: %s", error)
            await self._clock.sleep(EVERY_S)

    async def _go_on(self) -> None:
        if self._asked_at is not None and self._clock.now() - self._asked_at < 2 * EVERY_S:
            return
        if (last := await asyncio.to_thread(self._kept.read)) is not None:
            await self._engine.keep_tenants([Tenant(one.name, quota=one.quota) for one in last.tenants])
