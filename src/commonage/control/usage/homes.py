"""Measures the disk usage of homes and volumes every ten minutes, and has the file system enforce their limits.

At each site: a user has a home at each of them.

A folder may grow by what the tightest of the quotas that count it leaves. Where the file system does not enforce that,
users can still write: above the limit of homes they get a warning, and above a quota of storage admission refuses new
work except sessions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from commonage.control.access import access_of, tenants
from commonage.control.settings import ControlSettings
from commonage.domain.errors import CommonageError
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import LOCAL_SITE
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.notes import HomeUsed
from commonage.domain.tenants import Tenant
from commonage.domain.volumes import Volume, folder_name
from commonage.ports.clock import Clock
from commonage.ports.homes import Enforcement, FolderSize, Homes, Storage

log = logging.getLogger(__name__)
EVERY_S = 600.0
ITERATION_S = 3600.0  # measuring may take this long: homes hold millions of files
_SOON_S = 5.0


@dataclass(frozen=True, slots=True)
class HomeView:
    """The home of one user, in MiB. `quota_mib` is None without a limit; `at` is the time of the measurement.

    `site` is empty for one at the control plane's own site.
    """

    used_mib: int
    quota_mib: int | None
    at: float
    enforced: bool = False
    site: str = ""

    @property
    def is_over(self) -> bool:
        return self.quota_mib is not None and self.used_mib > self.quota_mib

    @property
    def reason(self) -> HomeUsed:
        return HomeUsed(used_mib=self.used_mib, quota_mib=self.quota_mib, is_enforced=self.enforced, site=self.site)


@dataclass(frozen=True)
class _Stored:
    """A site's homes by folder name, and folders of volumes (None before a measurement), in MiB. `at`: of the homes."""

    homes: Mapping[str, int] = field(default_factory=dict)
    folders: Sequence[FolderSize] | None = None
    enforcement: Enforcement | None = None
    at: float = 0.0

    @cached_property
    def _counted(self) -> Counter[str | None]:
        """MiB of folders, by tenant."""
        found = Counter[str | None]()
        for one in self.folders or ():
            found[one.tenant] += one.counted_mib
        return found

    @cached_property
    def _used(self) -> Counter[tuple[str | None, str | None]]:
        """MiB in folders, by tenant and user."""
        found = Counter[tuple[str | None, str | None]]()
        for one in self.folders or ():
            found[one.tenant, one.user] += one.used_mib
        return found

    def by(self, tenant: str | None, user: str | None) -> int:
        if user is None:
            return 0 if tenant is None else self._counted[tenant]
        of_tenant = 0 if tenant is None else self._used[tenant, user]
        return of_tenant + self._used[None, user] + self.homes.get(user, 0)


class HomeWatch:
    """Measures homes and keeps the newest results. `homes` None: homes cannot be measured here.

    `elsewhere` are the homes and volumes of other sites, which come and go. Each is measured by itself, so that one
    that is slow delays no other; its measurements count for the tenants that may use it.
    """

    def __init__(
        self,
        homes: Homes | None,
        clock: Clock,
        settings: ControlSettings,
        elsewhere: Mapping[str, Storage] = MappingProxyType({}),
    ) -> None:
        self._homes, self._elsewhere, self._clock, self._settings = homes, elsewhere, clock, settings
        self._quota_mib = settings.home_quota_mib
        self._sites: dict[str, _Stored] = {}
        self.iterations = Iterations("homes", clock.now, ITERATION_S)

    async def run(self) -> None:
        await self._clock.sleep(_SOON_S)
        running: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                for site, storage in list(self._elsewhere.items()):
                    if site not in running or running[site].done():
                        running[site] = group.create_task(self._refresh(site, storage))
                if self._homes is not None:
                    await self._refresh(LOCAL_SITE, self._homes)
                with self.iterations.rest():
                    await self._clock.sleep(EVERY_S)

    async def refresh(self) -> None:
        """Measure all sites once."""
        own = {} if self._homes is None else {LOCAL_SITE: self._homes}
        await asyncio.gather(*(self._refresh(*one) for one in (*own.items(), *self._elsewhere.items())))

    async def _refresh(self, site: str, storage: Storage) -> None:
        volumes = [one for one in self._settings.volumes if site == LOCAL_SITE or one.is_at(site)]
        try:
            homes = await storage.measure()
        except CommonageError as error:
            log.warning("site %s: the homes are not measured: %s", site, error)
        else:
            self._note(site, homes=homes, at=self._clock.now())
        try:
            self._note(site, folders=await storage.measure_volumes(volumes))
        except CommonageError as error:
            log.warning("site %s: the volumes are not measured: %s", site, error)
            return
        known = self._stored_at(site).folders or ()
        folders = [(one, self._folder_limit(site, one)) for one in known if one.size_mib is None]
        try:
            self._note(site, enforcement=await storage.enforce(self._home_limits(site), folders, volumes))
        except CommonageError as error:
            log.warning("site %s: the limits of homes and volumes are not set: %s", site, error)

    def _note(self, site: str, **changes: Any) -> None:
        self._sites[site] = replace(self._stored_at(site), **changes)
        for removed in self._sites.keys() - self._elsewhere.keys() - {LOCAL_SITE}:
            del self._sites[removed]

    def _stored_at(self, site: str) -> _Stored:
        return self._sites.get(site, _NOTHING)

    @property
    def measured_at(self) -> float:
        return max((one.at for one in self._sites.values()), default=0.0)

    @property
    def enforcement(self) -> Enforcement | None:
        """Where file systems enforce limits, at all sites together; None before the first measurement."""
        found = [one.enforcement for one in self._sites.values() if one.enforcement is not None]
        if not found:
            return None
        gaps = {name: gap for one in found for name, gap in one.volumes.items()}
        return Enforcement(next((one.homes for one in found if one.homes is not None), None), gaps)

    # --- limits -------------------------------------------------------------------------------------------------------

    def _home_limits(self, site: str) -> Mapping[str, int | None]:
        limits = {}
        for name, used in self._stored_at(site).homes.items():
            left = self._left_to_user(self._tenants_at(site), name)
            limits[name] = _least(self._quota_mib, None if left is None else used + left)
        return limits

    def _folder_limit(self, site: str, folder: FolderSize) -> int | None:
        several = self._tenants_at(site)
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
        """MiB in a tenant's folders, or in a user's home and folders of that tenant; None before a measurement.

        At all sites that the tenant may use.
        """
        if all(one.folders is None for one in self._sites.values()):
            return None
        return self._stored(folder_name(tenant), None if user is None else folder_name(user))

    def _stored(self, tenant: str | None, user: str | None) -> int:
        """As `stored_mib`, by the names of folders."""
        return sum(one.by(tenant, user) for one in self._sites_of(tenant))

    def _tenants_at(self, site: str) -> Sequence[Tenant]:
        every, rules = tenants(self._settings), self._settings.rules
        return every if site == LOCAL_SITE else [one for one in every if site in rules.sites_of(one.name)]

    def _sites_of(self, tenant: str | None) -> Sequence[_Stored]:
        """MiB at the sites that a tenant may use, by the name of its folders; a site reports no other tenant."""
        names = [one.name for one in tenants(self._settings) if folder_name(one.name) == tenant]
        usable = [self._settings.rules.sites_of(name) for name in names]
        return [
            stored for site, stored in self._sites.items() if site == LOCAL_SITE or any(site in one for one in usable)
        ]

    def folder_mib(self, volume: str, tenant: str, user: str) -> int | None:
        """MiB of a volume's folder of this tenant and user at the control plane's site; None before a measurement."""
        found = [
            one.used_mib
            for one in self._stored_at(LOCAL_SITE).folders or ()
            if one.volume == volume
            and one.tenant in (None, folder_name(tenant))
            and one.user in (None, folder_name(user))
        ]
        return sum(found) if found else None

    def left_mib(self, user: str, volume: Volume | None = None, tenant: str = "") -> int | None:
        """The space that the limits leave to a user's home, or to a folder of a volume; None without a limit."""
        several = self._tenants_at(LOCAL_SITE)
        if volume is None and (claim := self._home_claim(user, tenant)) is not None:
            return max(0, claim.counted_mib - claim.used_mib) if claim.is_known else None
        if volume is None:
            used, left = self.used_mib(user) or 0, self._left_to_user(several, folder_name(user))
            return _least(left, None if self._quota_mib is None else max(0, self._quota_mib - used))
        if not volume.is_measured:
            return None
        parts = volume.source.split("/")
        one = FolderSize(
            volume.name,
            folder_name(tenant) if "{tenant}" in parts else None,
            folder_name(user) if "{user}" in parts else None,
            0,
        )
        return self._folder_limit(LOCAL_SITE, one)

    def users(self, tenant: str) -> set[str]:
        """The users with a folder of this tenant; of the default tenant, which has all as members, those with a home.

        Only users whose folder has their name: the names of others cannot be derived from it.
        """
        found: set[str | None] = set()
        for stored in self._sites_of(folder_name(tenant)):
            found |= {one.user for one in stored.folders or () if one.tenant == folder_name(tenant)}
            found |= stored.homes.keys() if tenant == self._settings.default_tenant else set()
        return {name for name in found if name is not None and folder_name(name) == name}

    def used_mib(self, user: str, tenant: str = "") -> int | None:
        """The size of a user's home at the control plane's site; None before it is measured, and without one.

        `tenant`: where a user has a home in each.
        """
        if (claim := self._home_claim(user, tenant)) is not None:
            return claim.used_mib if claim.is_known else None
        return self._stored_at(LOCAL_SITE).homes.get(folder_name(user))

    def _home_claim(self, user: str, tenant: str) -> FolderSize | None:
        """The claim of the user's home, in this tenant if homes are apart."""
        claims = _home_claims(self._stored_at(LOCAL_SITE))
        of_user = (one for one in claims if one.user == folder_name(user))
        return next((one for one in of_user if tenant in ("", one.tenant) or one.tenant == folder_name(tenant)), None)

    def of(self, principal: Principal) -> HomeView | None:
        """The caller's own home, at several sites the largest; None before the first measurement."""
        principal.need(Scope.READ)
        mine = access_of(principal, self._settings).tenants(Permission.SEE_TENANT)
        usable = [self._settings.rules.sites_of(one.name) for one in mine]
        name = folder_name(principal.name)
        found = [
            view
            for site, stored in self._sites.items()
            for view in self._views(site, stored).get(name, ())
            if (site == LOCAL_SITE or any(site in one for one in usable))
        ]
        return max(found, key=lambda one: (one.used_mib, not one.site), default=None)

    def all(self, principal: Principal) -> Mapping[str, HomeView]:
        """All homes by folder name, the largest first; of several sites the largest one. For operators and admins."""
        access_of(principal, self._settings).need(Permission.SEE_PLATFORM)
        every = [
            (name, view)
            for site, stored in self._sites.items()
            for name, views in self._views(site, stored).items()
            for view in views
        ]
        found: dict[str, HomeView] = {}
        for name, view in sorted(every, key=lambda one: -one[1].used_mib):
            found.setdefault(name, view)
        return found

    def _views(self, site: str, stored: _Stored) -> Mapping[str, Sequence[HomeView]]:
        """The homes of each user, by folder name."""
        is_enforced = stored.enforcement is not None and stored.enforcement.homes is None
        where = "" if site == LOCAL_SITE else site
        found = {
            name: [HomeView(used, self._quota_mib, stored.at, is_enforced, where)]
            for name, used in stored.homes.items()
        }
        for one in _home_claims(stored):
            if one.is_known and one.user is not None:
                view = HomeView(one.used_mib, one.size_mib, stored.at, True, where)
                found.setdefault(one.user, []).append(view)
        return found


_NOTHING = _Stored()


def _home_claims(stored: _Stored) -> Sequence[FolderSize]:
    return [one for one in stored.folders or () if not one.volume and one.size_mib is not None]


def _least(first: int | None, second: int | None) -> int | None:
    return min((one for one in (first, second) if one is not None), default=None)
