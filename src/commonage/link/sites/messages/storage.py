"""Messages of a site link about an appliance's homes and volumes: sizes, and limits for its file systems.

The control plane's end is `engines.remote.storage`, the site's is `site_agent.storage`.
"""

from __future__ import annotations

from dataclasses import dataclass

from commonage.domain.reasons.notes import StorageGap
from commonage.domain.volumes import Volume
from commonage.link.messages import Nothing, RequestType
from commonage.ports.homes import FolderSize


@dataclass(frozen=True, slots=True)
class HomeSize:
    """`name` is that of the folder."""

    name: str
    used_mib: int


@dataclass(frozen=True, slots=True)
class HomeSizes:
    homes: tuple[HomeSize, ...] = ()


@dataclass(frozen=True, slots=True)
class Volumes:
    volumes: tuple[Volume, ...] = ()


@dataclass(frozen=True, slots=True)
class FolderSizes:
    folders: tuple[FolderSize, ...] = ()


@dataclass(frozen=True, slots=True)
class HomeLimit:
    """`mib` None: no limit."""

    name: str
    mib: int | None


@dataclass(frozen=True, slots=True)
class FolderLimit:
    """`mib` None: no limit."""

    folder: FolderSize
    mib: int | None


@dataclass(frozen=True, slots=True)
class StorageLimits:
    homes: tuple[HomeLimit, ...] = ()
    folders: tuple[FolderLimit, ...] = ()
    volumes: tuple[Volume, ...] = ()


@dataclass(frozen=True, slots=True)
class VolumeGap:
    volume: str
    gap: StorageGap


@dataclass(frozen=True, slots=True)
class StorageGaps:
    """Why the file systems there enforce no limits."""

    homes: StorageGap | None = None
    volumes: tuple[VolumeGap, ...] = ()


MEASURE_HOMES = RequestType("measure-homes", Nothing, HomeSizes, None)
"""No timeout, likewise for the next ones: homes hold millions of files. They end with the link."""
MEASURE_VOLUMES = RequestType("measure-volumes", Volumes, FolderSizes, None)
LIMIT_STORAGE = RequestType("limit-storage", StorageLimits, StorageGaps, None)
