"""The files of a cluster's homes and volumes for their users, and the copies of materials in homes.

The ports `Files` and `HomeCopies` over file Pods. Folders that no claim holds, and versions of materials, are on the
control plane's machine as on other engines.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, closing

from commonage.domain.codec import Json
from commonage.domain.errors import Conflict, NotFound
from commonage.domain.files import Listing, Parts
from commonage.domain.materials import MaterialCopy, Version
from commonage.domain.reasons.refusals import FilesGap, FilesNotHere
from commonage.domain.volumes import Extent, Mount, Volume, VolumeKind
from commonage.engines.kubernetes.storage.file_pod import FilePlace
from commonage.engines.kubernetes.storage.file_pods import FilePods, NoClaim
from commonage.engines.kubernetes.storage.mounts import home_volume, requested_volumes
from commonage.engines.kubernetes.storage.pod_link import PodLink
from commonage.engines.kubernetes.translate import namespace_of
from commonage.engines.settings import KubernetesSettings
from commonage.link.file_pods import (
    MAX_DATA,
    Copy,
    Count,
    Deliver,
    FileStatus,
    ListFolder,
    Look,
    MakeFolder,
    Move,
    Nothing,
    ReadFile,
    Receive,
    Remove,
    ShowFile,
    ShowUpload,
    VersionFiles,
)
from commonage.ports.files import Files, OpenFile, Place, Upload
from commonage.ports.materials import Damaged, Delivery, HomeCopies, Open

_PLACE = "/data"  # replaced by that of the file Pod


class ClusterFiles(Files):
    """`local`: the files of the control plane's machine. `pods` are those of the open engine."""

    def __init__(self, local: Files, settings: KubernetesSettings, pods: Callable[[], FilePods]) -> None:
        self._local, self._settings, self._pods = local, settings, pods

    def gap(self, volume: Volume | None) -> FilesGap | None:
        settings = self._settings
        if volume is None:
            if settings.homes == "empty":
                return FilesGap.POD
            return None if settings.storage.files_image else FilesGap.NO_IMAGE
        is_here = volume.kind is VolumeKind.DOCKER or (volume.kind is VolumeKind.FOLDER and self._has_claim(volume))
        if not is_here:
            return self._local.gap(volume)
        return None if settings.storage.files_image else FilesGap.NO_IMAGE

    def is_per_tenant(self, volume: Volume | None) -> bool:
        settings = self._settings
        if volume is None:
            return homes_per_tenant(settings)
        if volume.kind is VolumeKind.DOCKER:
            return settings.namespaces != "single" or volume.per is not Extent.ALL
        return self._local.is_per_tenant(volume)

    def _has_claim(self, volume: Volume) -> bool:
        return volume.material is None and place_of(Place(source=volume.source), self._settings) is not None

    async def list(self, place: Place, path: Parts) -> Listing:
        if (there := place_of(place, self._settings)) is None:
            return await self._local.list(place, path)
        try:
            async with self._pods().open(there) as link:
                return (await link.ask(ListFolder(path), Listing))[0]
        except NoClaim:
            if path:
                raise _not_found(path) from None
            return Listing()

    async def open(self, place: Place, path: Parts) -> OpenFile:
        if (there := place_of(place, self._settings)) is None:
            return await self._local.open(place, path)
        try:
            async with self._pods().open(there) as link:
                status, _ = await link.ask(ShowFile(path), FileStatus)
        except NoClaim:
            raise _not_found(path) from None
        return _Opened(self._pods(), there, path, status)

    async def uploaded(self, place: Place, path: Parts, key: str) -> int:
        if (there := place_of(place, self._settings)) is None:
            return await self._local.uploaded(place, path, key)
        try:
            async with self._pods().open(there) as link:
                return (await link.ask(ShowUpload(path, key), Count))[0].size
        except NoClaim:
            return 0

    async def receive(self, place: Place, upload: Upload, offset: int, chunks: AsyncIterator[bytes]) -> int:
        if (there := place_of(place, self._settings)) is None:
            return await self._local.receive(place, upload, offset, chunks)
        request = Receive(upload.path, upload.key, upload.length, upload.replace, offset)
        async with self._changing(place, there) as link, aclosing(_parts(chunks)) as parts:

            async def pull(_: Json) -> bytes:
                return await anext(parts, b"")

            return (await link.ask(request, Count, pull))[0].size

    async def make_folder(self, place: Place, path: Parts) -> None:
        if (there := place_of(place, self._settings)) is None:
            return await self._local.make_folder(place, path)
        async with self._changing(place, there) as link:
            await link.ask(MakeFolder(path), Nothing)

    async def move(self, place: Place, path: Parts, to: Parts) -> None:
        if (there := place_of(place, self._settings)) is None:
            return await self._local.move(place, path, to)
        async with self._changing(place, there) as link:
            await link.ask(Move(path, to), Nothing)

    async def remove(self, place: Place, path: Parts) -> None:
        if (there := place_of(place, self._settings)) is None:
            return await self._local.remove(place, path)
        async with self._changing(place, there) as link:
            await link.ask(Remove(path), Nothing)

    @asynccontextmanager
    async def _changing(self, place: Place, there: FilePlace) -> AsyncIterator[PodLink]:
        try:
            async with self._pods().open(there) as link:
                yield link
        except NoClaim:
            raise Conflict(FilesNotHere(volume=place.volume, gap=FilesGap.NOT_MADE), code="files-not-here") from None


def homes_per_tenant(settings: KubernetesSettings) -> bool:
    return settings.namespaces != "single" and settings.homes in ("claim", "shared-claim")


class _Opened(OpenFile):
    """Opened again for each part: nothing in the Pod has to be closed."""

    def __init__(self, pods: FilePods, place: FilePlace, path: Parts, status: FileStatus) -> None:
        self._pods, self._place, self._path, self._status = pods, place, path, status

    @property
    def size_bytes(self) -> int:
        return self._status.size_bytes

    @property
    def modified_at(self) -> float:
        return self._status.modified_at

    @property
    def version(self) -> str:
        return self._status.version

    async def read(self, offset: int, size: int) -> bytes:
        async with self._pods.open(self._place) as link:
            request = ReadFile(self._path, self._status.version, offset, min(size, MAX_DATA))
            return (await link.ask(request, Nothing))[1]

    async def close(self) -> None:
        """Nothing is open."""


class ClusterCopies(HomeCopies):
    """The copies of materials in the homes of a cluster. `pods` are those of the open engine."""

    def __init__(self, settings: KubernetesSettings, pods: Callable[[], FilePods]) -> None:
        self._settings, self._pods = settings, pods

    async def deliver(self, name: str, home: Place, delivery: Delivery) -> MaterialCopy:
        async def pull(wanted: Json) -> bytes:
            path, offset = wanted
            return await asyncio.to_thread(_part, delivery.read, str(path), int(offset))

        version = VersionFiles.of(delivery.version)
        request = Deliver(name, version, delivery.at, tuple(delivery.reset), delivery.room_mib)
        async with self._open(home) as link:
            found, _ = await link.ask(request, Copy, pull)
        if found.damaged or found.copy is None:
            raise Damaged(found.damaged)
        return found.copy

    async def look(self, name: str, home: Place, version: Version | None) -> MaterialCopy | None:
        try:
            async with self._open(home) as link:
                found, _ = await link.ask(Look(name, None if version is None else VersionFiles.of(version)), Copy)
        except Conflict:
            return None
        return found.copy

    @asynccontextmanager
    async def _open(self, home: Place) -> AsyncIterator[PodLink]:
        """Raises Conflict with a reason, Unavailable."""
        settings = self._settings
        gap = FilesGap.POD if settings.homes == "empty" else None if settings.storage.files_image else FilesGap.NO_IMAGE
        place = place_of(home, settings)
        if gap is not None or place is None:
            raise Conflict(FilesNotHere(volume="", gap=gap or FilesGap.POD), code="files-not-here")
        try:
            async with self._pods().open(place) as link:
                yield link
        except NoClaim:
            raise Conflict(FilesNotHere(volume="", gap=FilesGap.NOT_MADE), code="files-not-here") from None

    def close(self) -> None:
        """The engine closes the Pods."""


def place_of(place: Place, settings: KubernetesSettings) -> FilePlace | None:
    """The claim that a file Pod mounts for a place; None: the place is on the control plane's machine."""
    namespace = namespace_of(place.tenant, settings)
    if place.home:
        return FilePlace(namespace, place.tenant, home_volume(place.home, settings))
    if place.link:
        return None
    kind = VolumeKind.FOLDER if place.source.startswith("/") else VolumeKind.DOCKER
    mount = Mount(place.volume, kind, place.source, _PLACE, place.writable)
    volumes = requested_volumes([mount], settings.storage)
    if "persistentVolumeClaim" not in volumes.volumes[0]:
        return None
    return FilePlace(namespace, place.tenant, volumes, place.writable)


async def _parts(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The same bytes in parts that a frame takes, none of them empty."""
    waiting = bytearray()
    try:
        async for chunk in chunks:
            waiting += chunk
            while len(waiting) >= MAX_DATA:
                yield bytes(waiting[:MAX_DATA])
                del waiting[:MAX_DATA]
    except BaseException:
        if waiting:
            yield bytes(waiting)
        raise
    if waiting:
        yield bytes(waiting)


def _part(read: Open, path: str, offset: int) -> bytes:
    """A part of a file of a version; none if it cannot be read. Blocks."""
    try:
        with closing(read(path)) as file:
            file.seek(offset)
            return file.read(MAX_DATA)
    except OSError:
        return b""


def _not_found(path: Parts) -> NotFound:
    return NotFound(f"there is no /{'/'.join(path)} here", code="file-not-found")
