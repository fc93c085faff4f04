"""The homes and volumes of this site: measured and limited as the control plane asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commonage.link.exchange import RequestHandler
from commonage.link.messages import Nothing, RequestType
from commonage.link.sites.messages.storage import (
    LIMIT_STORAGE,
    MEASURE_HOMES,
    MEASURE_VOLUMES,
    FolderSizes,
    HomeSize,
    HomeSizes,
    StorageGaps,
    StorageLimits,
    VolumeGap,
    Volumes,
)
from commonage.ports.agents import OnProgress
from commonage.ports.homes import Enforcement, Storage


class SiteFolders:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def handlers(self) -> Mapping[RequestType[Any, Any], RequestHandler]:
        return {MEASURE_HOMES: self._homes, MEASURE_VOLUMES: self._volumes, LIMIT_STORAGE: self._limit}

    async def _homes(self, _nothing: Nothing, _: OnProgress) -> HomeSizes:
        found = await self._storage.measure()
        return HomeSizes(tuple(HomeSize(name, mib) for name, mib in found.items()))

    async def _volumes(self, wanted: Volumes, _: OnProgress) -> FolderSizes:
        return FolderSizes(tuple(await self._storage.measure_volumes(wanted.volumes)))

    async def _limit(self, limits: StorageLimits, _: OnProgress) -> StorageGaps:
        homes = {one.name: one.mib for one in limits.homes}
        folders = [(one.folder, one.mib) for one in limits.folders]
        found = await self._storage.enforce(homes, folders, limits.volumes) or Enforcement()
        return StorageGaps(found.homes, tuple(VolumeGap(name, gap) for name, gap in found.volumes.items()))
