"""Measures the disk usage of homes and volumes every ten minutes, and finds homes above the limit.

The limit of homes only causes a warning: users can still write. Above a tenant's quota of storage, admission refuses
new work except sessions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commonage.control.access import access_of
from commonage.control.settings import ControlSettings
from commonage.domain.errors import CommonageError
from commonage.domain.iterations import Iterations
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.notes import HomeUsed
from commonage.domain.volumes import folder_name
from commonage.ports.clock import Clock
from commonage.ports.homes import FolderSize, Homes

log = logging.getLogger(__name__)
EVERY_S = 600.0
ITERATION_S = 3600.0  # measuring may take this long: homes hold millions of files
_SOON_S = 5.0


@dataclass(frozen=True, slots=True)
class HomeView:
    """The home of one user, in MiB. `quota_mib` is None without a limit; `at` is the time of the measurement."""

    used_mib: int
    quota_mib: int | None
    at: float

    @property
    def is_over(self) -> bool:
        return self.quota_mib is not None and self.used_mib > self.quota_mib

    @property
    def reason(self) -> HomeUsed:
        return HomeUsed(used_mib=self.used_mib, quota_mib=self.quota_mib)


class HomeWatch:
    """Measures homes and keeps the newest result. `homes` None: homes cannot be measured here."""

    def __init__(self, homes: Homes | None, clock: Clock, settings: ControlSettings) -> None:
        self._homes, self._clock, self._settings = homes, clock, settings
        self._quota_mib = settings.home_quota_mib
        self._used: Mapping[str, int] = {}
        self._volumes: Sequence[FolderSize] | None = None
        self._at = 0.0
        self.iterations = Iterations("homes", clock.now, ITERATION_S)

    async def run(self) -> None:
        await self._clock.sleep(_SOON_S)
        while True:
            await self.refresh()
            with self.iterations.rest():
                await self._clock.sleep(EVERY_S)

    async def refresh(self) -> None:
        if self._homes is None:
            return
        try:
            self._used = await self._homes.measure()
        except CommonageError as error:
            log.warning("the homes are not measured: %s", error)
        else:
            self._at = self._clock.now()
        try:
            self._volumes = await self._homes.measure_volumes(self._settings.volumes)
        except CommonageError as error:
            log.warning("the volumes are not measured: %s", error)

    @property
    def measured_at(self) -> float:
        return self._at

    def stored_mib(self, tenant: str, user: str | None = None) -> int | None:
        """What a tenant's folders hold, or a user's home and folders of that tenant; None before a measurement."""
        if self._volumes is None:
            return None
        theirs = [one for one in self._volumes if one.tenant in (None, folder_name(tenant))]
        if user is None:
            return sum(one.used_mib for one in theirs if one.tenant is not None)
        own = sum(one.used_mib for one in theirs if one.user == folder_name(user))
        return own + self._used.get(folder_name(user), 0)

    def used_mib(self, user: str) -> int | None:
        """The size of a user's home; None before it is measured, and without one."""
        return self._used.get(folder_name(user))

    def of(self, principal: Principal) -> HomeView | None:
        """The caller's own home; None before the first measurement."""
        principal.need(Scope.READ)
        used = self._used.get(folder_name(principal.name))
        return None if used is None else HomeView(used, self._quota_mib, self._at)

    def all(self, principal: Principal) -> Mapping[str, HomeView]:
        """All homes by folder name, the largest first. For operators and admins."""
        access_of(principal, self._settings).need(Permission.SEE_PLATFORM)
        largest = sorted(self._used.items(), key=lambda one: -one[1])
        return {name: HomeView(used, self._quota_mib, self._at) for name, used in largest}
