"""The homes and volumes of a site elsewhere: the port `Storage` over the site link."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons.nodes import SiteUnreachable
from commonage.domain.volumes import Volume
from commonage.engines.remote.claims import checked_folders, checked_homes
from commonage.engines.remote.records import SiteRecords, Stored
from commonage.link.messages import Nothing
from commonage.link.sites.messages.storage import (
    LIMIT_STORAGE,
    MEASURE_HOMES,
    MEASURE_VOLUMES,
    FolderLimit,
    HomeLimit,
    StorageLimits,
    Volumes,
)
from commonage.link.sites.transport.connection import SiteConnection
from commonage.ports.homes import Enforcement, FolderSize, Storage


class SiteStorage(Storage):
    """Sizes are the last known ones while the link is down, also after a restart.

    `connection` returns the current connection, None without one. `measures`: whether the site measures its storage.
    `unreachable` says why there is no connection.
    """

    def __init__(
        self,
        records: SiteRecords,
        connection: Callable[[], SiteConnection | None],
        measures: Callable[[], bool],
        unreachable: Callable[[], SiteUnreachable],
    ) -> None:
        self._records, self._connection = records, connection
        self._measures, self._unreachable = measures, unreachable
        self._last = Stored()

    def restore(self, last: Stored) -> None:
        self._last = last

    def _measured_by(self) -> SiteConnection | None:
        """The connection to a site that measures; None without a link, and to an older one."""
        connection = self._connection()
        return connection if connection is not None and self._measures() else None

    async def measure(self) -> Mapping[str, int]:
        if (connection := self._measured_by()) is not None:
            homes = checked_homes((await connection.request(MEASURE_HOMES, Nothing())).homes)
            self._last = replace(self._last, homes=homes)
            self._records.keep_stored(self._last)
        return {one.name: one.used_mib for one in self._last.homes}

    async def measure_volumes(self, volumes: Sequence[Volume]) -> Sequence[FolderSize]:
        if (connection := self._measured_by()) is not None:
            answer = await connection.request(MEASURE_VOLUMES, Volumes(tuple(volumes)))
            folders = checked_folders(answer.folders, {one.name for one in volumes})
            self._last = replace(self._last, folders=folders)
            self._records.keep_stored(self._last)
        return self._last.folders

    async def enforce(
        self,
        homes: Mapping[str, int | None],
        folders: Sequence[tuple[FolderSize, int | None]],
        volumes: Sequence[Volume],
    ) -> Enforcement | None:
        """Without the link, the limits that were set last hold there. Raises EngineFailure."""
        connection = self._connection()
        if connection is None:
            raise EngineFailure(self._unreachable(), retryable=True)
        if not self._measures():
            return None
        limits = StorageLimits(
            tuple(HomeLimit(name, mib) for name, mib in homes.items()),
            tuple(FolderLimit(folder, mib) for folder, mib in folders),
            tuple(volumes),
        )
        found = await connection.request(LIMIT_STORAGE, limits)
        return Enforcement(found.homes, {one.volume: one.gap for one in found.volumes})
