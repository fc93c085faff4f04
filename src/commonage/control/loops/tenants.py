"""Requests each site to keep its objects for the tenants that may use it, such as a namespace with its quota.

Each site has a task of its own: at a change of tenants, and every minute against drift. Work of a tenant for which no
site is ready is held; the reason is live state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from commonage.control.access import tenants as declared_tenants
from commonage.control.engines import Engines
from commonage.control.settings import ControlSettings
from commonage.control.signals import Signal, wait_at_most
from commonage.control.state.live_state import LiveState
from commonage.domain.errors import CommonageError
from commonage.domain.iterations import Iterations
from commonage.domain.reasons import Reason
from commonage.domain.tenants import Tenant
from commonage.domain.workloads import Spec, Workload
from commonage.ports.clock import Clock
from commonage.ports.engine import Engine

log = logging.getLogger(__name__)
EVERY_S = 60.0
RETRY_S = 5.0


class TenantsAtSites:
    """`changes` are sent when a tenant becomes ready at a site, or is no longer."""

    def __init__(self, engines: Engines, live_state: LiveState, settings: ControlSettings, clock: Clock) -> None:
        self._engines, self._live_state, self._settings, self._clock = engines, live_state, settings, clock
        self.changes = Signal[[]]()
        self._undeclared: set[str] = set()
        self._waiting: dict[str, Mapping[str, Reason]] = {}  # by site and tenant
        self._woken: dict[str, asyncio.Event] = {}  # by site
        self.iterations = Iterations("tenants", clock.now)

    def declared(self) -> None:
        for event in self._woken.values():
            event.set()

    def changed(self, workload: Workload) -> None:
        """Work may name a tenant that is not declared, or one for which no site is ready yet."""
        tenant = workload.spec.tenant
        if tenant not in self._undeclared and all(one.name != tenant for one in declared_tenants(self._settings)):
            self._undeclared.add(tenant)
            self.declared()

    def shortfall(self, spec: Spec) -> Reason | None:
        """Why no site that its tenant may use is ready for it; None if one is, or if that is not known."""
        sites = [site for site in self._engines if site in self._settings.rules.sites_of(spec.tenant)]
        found = [self._waiting.get(site, {}).get(spec.tenant) for site in sites]
        return found[0] if found and None not in found else None

    async def run(self) -> None:
        with self.iterations.rest():
            await self._engines.run_each(self._keep_at)

    async def _keep_at(self, engine: Engine) -> None:
        woken = self._woken[engine.site] = asyncio.Event()
        try:
            while True:
                woken.clear()
                pause_s = EVERY_S if await self._keep(engine) else RETRY_S
                self.iterations.end()
                await wait_at_most(pause_s, woken, self._clock)
        finally:
            del self._woken[engine.site]
            self._waiting.pop(engine.site, None)

    async def _keep(self, engine: Engine) -> bool:
        """Whether all its tenants are ready."""
        site = engine.site
        try:
            found = await engine.keep_tenants(self._at(site))
        except CommonageError as error:
            log.warning("site %s: what tenants have there is not kept, will try again: %s", site, error)
            return False
        if found != self._waiting.get(site, {}):
            self._waiting[site] = found
            self.changes.send()
        return not found

    def _at(self, site: str) -> list[Tenant]:
        """Those that may use the site, with what a site needs of them."""
        working = {one.spec.tenant for one in self._live_state}
        declared = declared_tenants(self._settings)
        self._undeclared = working - {one.name for one in declared}
        rules = self._settings.rules
        tenants = [*declared, *(Tenant(name) for name in sorted(self._undeclared))]
        return [Tenant(one.name, quota=one.quota) for one in tenants if site in rules.sites_of(one.name)]
