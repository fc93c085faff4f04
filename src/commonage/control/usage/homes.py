"""Measures the disk usage of homes and volumes every ten minutes, and has the file system enforce their limits.

A folder may grow by what the tightest of the quotas that count it leaves. Where the file system does not enforce that,
users can still write: above the limit of homes they get a warning, and above a quota of storage admission refuses new
work except sessions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commonage.control.access import access_of, tenants
from commonage.control.settings import ControlSettings
from commonage.domain.errors import CommonageError
from commonage.domain.iterations import Iterations
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.notes import HomeUsed
from commonage.domain.tenants import Tenant
from commonage.domain.volumes import folder_name
from commonage.ports.clock import Clock
from commonage.ports.homes import Enforcement, FolderSize, Homes

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
    enforced: bool = False

    @property
    def is_over(self) -> bool:
        return self.quota_mib is not None and self.used_mib > self.quota_mib

    @property
    def reason(self) -> HomeUsed:
        return HomeUsed(used_mib=self.used_mib, quota_mib=self.quota_mib, is_enforced=self.enforced)


class HomeWatch:
    """Measures homes and keeps the newest result. `homes` None: homes cannot be measured here."""

    def __init__(self, homes: Homes | None, clock: Clock, settings: ControlSettings) -> None:
        self._homes, self._clock, self._settings = homes, clock, settings
        self._quota_mib = settings.home_quota_mib
        self._used: Mapping[str, int] = {}
        self._volumes: Sequence[FolderSize] | None = None
        self._enforcement: Enforcement | None = None
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
            return
        folders = [(one, self._folder_limit(one)) for one in self._volumes]
        try:
            self._enforcement = await self._homes.enforce(self._home_limits(), folders, self._settings.volumes)
        except CommonageError as error:
            log.warning("the limits of homes and volumes are not set: %s", error)

    @property
    def measured_at(self) -> float:
        return self._at

    @property
    def enforcement(self) -> Enforcement | None:
        """Where file systems enforce limits; None before the first measurement."""
        return self._enforcement

    # --- limits -------------------------------------------------------------------------------------------------------

    def _home_limits(self) -> Mapping[str, int | None]:
        limits = {}
        for name, used in self._used.items():
            left = self._left_to_user(tenants(self._settings), name)
            limits[name] = _least(self._quota_mib, None if left is None else used + left)
        return limits

    def _folder_limit(self, folder: FolderSize) -> int | None:
        several = tenants(self._settings)
        if folder.tenant is not None:
            several = [one for one in several if folder_name(one.name) == folder.tenant]
        left = None if folder.user is None else self._left_to_user(several, folder.user)
        for tenant in several if folder.tenant is not None else ():
            bound = tenant.quota.nominal.storage_mib
            left = _least(left, None if bound is None else max(0, bound - self._stored(folder.tenant, None)))
        return None if left is None else folder.used_mib + left

    def _left_to_user(self, several: Sequence[Tenant], user: str) -> int | None:
        """The most that a quota of these tenants leaves to the owner of a folder; None if one has no bound.

        A home, or a folder of a user alone, belongs to no tenant: so it may use what the most generous one leaves.
        """
        bounds = [(folder_name(one.name), one.quota.per_user.storage_mib) for one in several]
        left = [None if bound is None else max(0, bound - self._stored(name, user)) for name, bound in bounds]
        known = [one for one in left if one is not None]
        return max(known) if known and len(known) == len(left) else None

    # --- use ----------------------------------------------------------------------------------------------------------

    def stored_mib(self, tenant: str, user: str | None = None) -> int | None:
        """What a tenant's folders hold, or a user's home and folders of that tenant; None before a measurement."""
        if self._volumes is None:
            return None
        return self._stored(folder_name(tenant), None if user is None else folder_name(user))

    def _stored(self, tenant: str | None, user: str | None) -> int:
        """As `stored_mib`, by the names of folders."""
        theirs = [one for one in self._volumes or () if one.tenant in (None, tenant)]
        if user is None:
            return sum(one.used_mib for one in theirs if one.tenant is not None)
        return sum(one.used_mib for one in theirs if one.user == user) + self._used.get(user, 0)

    def users(self, tenant: str) -> set[str]:
        """The users with a folder of this tenant; of the default tenant, which has all as members, those with a home.

        Only those whose folder has their name: the others' cannot be told from it.
        """
        of_tenant = {one.user for one in self._volumes or () if one.tenant == folder_name(tenant)}
        found = {*of_tenant, *(self._used if tenant == self._settings.default_tenant else ())}
        return {name for name in found if name is not None and folder_name(name) == name}

    @property
    def _are_homes_enforced(self) -> bool:
        return self._enforcement is not None and self._enforcement.homes is None

    def used_mib(self, user: str) -> int | None:
        """The size of a user's home; None before it is measured, and without one."""
        return self._used.get(folder_name(user))

    def of(self, principal: Principal) -> HomeView | None:
        """The caller's own home; None before the first measurement."""
        principal.need(Scope.READ)
        used = self._used.get(folder_name(principal.name))
        return None if used is None else HomeView(used, self._quota_mib, self._at, self._are_homes_enforced)

    def all(self, principal: Principal) -> Mapping[str, HomeView]:
        """All homes by folder name, the largest first. For operators and admins."""
        access_of(principal, self._settings).need(Permission.SEE_PLATFORM)
        largest = sorted(self._used.items(), key=lambda one: -one[1])
        return {name: HomeView(used, self._quota_mib, self._at, self._are_homes_enforced) for name, used in largest}


def _least(first: int | None, second: int | None) -> int | None:
    return min((one for one in (first, second) if one is not None), default=None)
