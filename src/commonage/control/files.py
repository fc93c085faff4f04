"""Files of homes and volumes outside of workloads: who may see and change them, and how much may be stored.

Used by API and portal. Users reach exactly what their workloads could mount; the adapter treats the folders as hostile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from commonage.control.access import Access, access_of
from commonage.control.downloads import Download, download_of
from commonage.control.queries.launch import Volumes
from commonage.control.settings import ControlSettings
from commonage.control.usage.homes import HomeWatch
from commonage.domain.errors import Conflict, Forbidden, InvalidInput, NotFound, TooMany, Unavailable
from commonage.domain.files import Listing, check_key, need_name, parse_path
from commonage.domain.materials import CURRENT
from commonage.domain.nodes import LOCAL_SITE
from commonage.domain.permissions import Permission
from commonage.domain.principals import OPERATOR, Principal, Scope
from commonage.domain.reasons import Reason
from commonage.domain.reasons.refusals import FilesGap, FilesNotHere, UploadTooLarge
from commonage.domain.volumes import Volume, Writers, source_of
from commonage.ports.files import Files, OpenFile, Place, Upload

UPLOADS_PER_USER = 8  # at the same time
LOOKS_PER_USER, WAITING_PER_USER = 2, 16  # of everything else: a folder may have millions of files
UPLOAD_WITHIN_S = 900  # of one part: a slow sender occupies one of those places
MAX_UPLOAD_BYTES = 2**50
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Where:
    """A file or folder as a request names it: in the home, or in `volume`, of this tenant if the volume differs."""

    path: str = ""
    volume: str = ""
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class PlaceView:
    """The home (`volume` empty), or a volume for one of the caller's tenants, in MiB.

    `gap`: why its files cannot be seen here. `used_mib` is None if it is not measured, or not yet.
    """

    volume: str
    tenant: str
    title: str
    writable: bool
    gap: Reason | None = None
    used_mib: int | None = None
    left_mib: int | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    place: Place
    view: PlaceView


class UserFiles:
    """`files` None: this installation does not see homes and volumes."""

    def __init__(self, files: Files | None, volumes: Volumes, homes: HomeWatch, settings: ControlSettings) -> None:
        self._files, self._volumes, self._homes, self._settings = files, volumes, homes, settings
        self._receiving: Counter[str] = Counter()
        self._running: dict[str, tuple[asyncio.Semaphore, int]] = {}  # by user, with those that run or wait
        self._stored: Counter[Place] = Counter()  # bytes since the last measurement
        self._announced: Counter[Place] = Counter()  # bytes that open uploads may still send
        self._stored_since = 0.0

    # --- reading ------------------------------------------------------------------------------------------------------

    def places(self, principal: Principal) -> Sequence[PlaceView]:
        """The home, and each volume that the caller's workloads may mount, once for each tenant that has its own."""
        principal.need(Scope.SUBMIT)
        access = access_of(principal, self._settings)
        found = [] if principal.name == OPERATOR else [self._home_view(access, one) for one in self._homes_of(access)]
        for view in self._volumes.offered(principal):
            tenants = [one for one in view.tenants if access.may(Permission.SUBMIT, one)]
            if not self._is_per_tenant(view.volume):
                tenants = sorted(tenants, key=lambda one: not _may_write(access, view.volume, one))[:1]
            found += [self._view(access, view.volume, one) for one in tenants]
        return found

    async def list(self, principal: Principal, where: Where) -> tuple[PlaceView, Listing]:
        """Raises NotFound, InvalidInput, Forbidden, Conflict, Unavailable, likewise all methods below."""
        found = self._find(principal, where)
        path, adapter = parse_path(where.path), self._adapter()
        async with self._turn(principal):
            return found.view, await adapter.list(found.place, path)

    async def open(self, principal: Principal, where: Where) -> OpenFile:
        """A plain file, which the caller closes."""
        found = self._find(principal, where)
        path, adapter = need_name(parse_path(where.path)), self._adapter()
        async with self._turn(principal):
            return await adapter.open(found.place, path)

    async def download(
        self, principal: Principal, where: Where, byte_range: str | None, if_range: str | None
    ) -> Download:
        """A file as the answer to a request with these headers `Range` and `If-Range`. Raises RangeInvalid, too."""
        file = await self.open(principal, where)
        return await download_of(file, parse_path(where.path)[-1], byte_range, if_range)

    # --- changing -----------------------------------------------------------------------------------------------------

    async def uploaded(self, principal: Principal, where: Where, key: str) -> int:
        """How many bytes of this upload were received."""
        found = self._find_writable(principal, where)
        path, adapter = need_name(parse_path(where.path)), self._adapter()
        check_key(key)
        async with self._turn(principal):
            return await adapter.uploaded(found.place, path, key)

    async def receive(
        self,
        principal: Principal,
        where: Where,
        part: tuple[str, int, int],
        chunks: AsyncIterator[bytes],
        *,
        replace: bool,
    ) -> int:
        """Append a part (key, offset, length of the whole file) to an upload; return its bytes so far."""
        key, offset, length = part
        if not 0 <= offset <= length <= MAX_UPLOAD_BYTES:
            raise InvalidInput(
                f"the offset {offset} must be at most the length {length}, and that at most 1 PiB",
                field="Upload-Offset",
                code="upload-mismatch",
            )
        found = self._find_writable(principal, where)
        upload = Upload(need_name(parse_path(where.path)), check_key(key), length, replace)
        if self._receiving[principal.name] >= UPLOADS_PER_USER:
            raise TooMany(
                f"{principal.name} has {UPLOADS_PER_USER} uploads open, the most that are allowed; wait for one to end",
                code="too-many-uploads",
                retry_after_s=5.0,
            )
        adapter = self._adapter()
        self._check_room(found, length - offset)
        room = _Room(found.place, length - offset, self._announced, self._stored)
        self._receiving[principal.name] += 1
        try:
            async with asyncio.timeout(UPLOAD_WITHIN_S):
                return await adapter.receive(found.place, upload, offset, room.counted(chunks))
        except TimeoutError:
            raise Unavailable(
                "the part took longer than 15 minutes; the received bytes are kept, so continue from their end"
            ) from None
        finally:
            room.give_back()
            self._receiving[principal.name] -= 1
            if not self._receiving[principal.name]:
                del self._receiving[principal.name]

    async def make_folder(self, principal: Principal, where: Where) -> None:
        found = self._find_writable(principal, where)
        path, adapter = need_name(parse_path(where.path)), self._adapter()
        async with self._turn(principal):
            await adapter.make_folder(found.place, path)

    async def move(self, principal: Principal, where: Where, to: str) -> None:
        """Rename within the home or volume; `to` is the whole new path."""
        found = self._find_writable(principal, where)
        before, after = need_name(parse_path(where.path)), need_name(parse_path(to, field="to"), field="to")
        if before == after:
            raise Conflict("the new name is the old one; choose another", code="file-exists")
        if after[: len(before)] == before:
            raise InvalidInput(
                "a folder cannot be moved into itself; choose another one", field="to", code="invalid-path"
            )
        adapter = self._adapter()
        async with self._turn(principal):
            await adapter.move(found.place, before, after)

    async def remove(self, principal: Principal, where: Where) -> None:
        """Delete a file, or a folder with its content."""
        found = self._find_writable(principal, where)
        path, adapter = need_name(parse_path(where.path)), self._adapter()
        async with self._turn(principal):
            await adapter.remove(found.place, path)

    @asynccontextmanager
    async def _turn(self, principal: Principal) -> AsyncIterator[None]:
        """Wait until the user has fewer operations that run, so that others have threads left. Raises TooMany."""
        user = principal.name
        turns, several = self._running.get(user, (asyncio.Semaphore(LOOKS_PER_USER), 0))
        if several >= LOOKS_PER_USER + WAITING_PER_USER:
            raise TooMany(
                f"{several} requests of {user} for files are open, the most that are allowed; wait for one to end",
                retry_after_s=5.0,
            )
        self._running[user] = turns, several + 1
        try:
            async with turns:
                yield
        finally:
            several = self._running[user][1] - 1
            self._running[user] = turns, several
            if not several:
                del self._running[user]

    # --- places -------------------------------------------------------------------------------------------------------

    def _adapter(self) -> Files:
        if self._files is None:
            raise NotFound("this installation does not see the files of homes and volumes", code="file-not-found")
        return self._files

    def _find_writable(self, principal: Principal, where: Where) -> _Found:
        found = self._find(principal, where)
        if not found.view.writable:
            raise Forbidden(
                f"you may only read the volume {where.volume}; ask one of its managers, or an admin, for changes",
                code="volume-read-only",
            )
        return found

    def _find(self, principal: Principal, where: Where) -> _Found:
        principal.need(Scope.SUBMIT)
        if not where.volume and principal.name == OPERATOR:
            raise NotFound("the operator has no home; use the token of a user", code="file-not-found")
        views = [one for one in self.places(principal) if one.volume == where.volume]
        if where.tenant is not None:
            volume = next((one for one in self._settings.volumes if one.name == where.volume), None)
            is_shared = len(views) == 1 and not self._is_per_tenant(volume)
            views = [one for one in views if is_shared or one.tenant == where.tenant]
        if not views and not where.volume:
            raise NotFound("you have no home in this tenant; `commonage data ls` lists yours", code="file-not-found")
        if not views:
            names = ", ".join(sorted({one.volume for one in self.places(principal) if one.volume})) or "none"
            raise NotFound(
                f"there is no volume {where.volume[:80]!r} for you; there are: {names}", code="volume-not-found"
            )
        if len(views) > 1:
            names = ", ".join(one.tenant for one in views)
            raise InvalidInput(
                f"each tenant has its own files in {where.volume or 'your home'}; name one of {names}",
                field="tenant",
                code="which-tenant",
            )
        [view] = views
        if view.gap is not None:
            raise Conflict(view.gap, code="files-not-here")
        if not where.volume:
            return _Found(Place(home=principal.name, tenant=view.tenant), view)
        volume = next(one for one in self._settings.volumes if one.name == view.volume)
        source = source_of(volume, principal.name, view.tenant)
        link = CURRENT if volume.material is not None else ""
        place = Place(
            source=source,
            is_made="{" in volume.source,
            link=link,
            volume=volume.name,
            tenant=view.tenant,
            writable=volume.writable,
        )
        return _Found(place, view)

    def _is_per_tenant(self, volume: Volume | None) -> bool:
        return self._files is not None and self._files.is_per_tenant(volume)

    def _homes_of(self, access: Access) -> Sequence[str]:
        """The tenant of each home; "" for one that is the same in all tenants."""
        if not self._is_per_tenant(None):
            return [""]
        return [one.name for one in access.tenants(Permission.SUBMIT)]

    def _home_view(self, access: Access, tenant: str) -> PlaceView:
        user = access.principal.name
        gap = None if self._files is None else self._files.gap(None)
        why = None if gap is None else FilesNotHere(volume="", gap=gap)
        used, left = self._homes.used_mib(user, tenant), self._homes.left_mib(user, tenant=tenant)
        return PlaceView("", tenant, "Home", True, why, used, left)

    def _view(self, access: Access, volume: Volume, tenant: str) -> PlaceView:
        user = access.principal.name
        return PlaceView(
            volume.name,
            tenant,
            volume.title or volume.name,
            _may_write(access, volume, tenant),
            self._gap(volume),
            self._homes.folder_mib(volume.name, tenant, user) if volume.is_measured else None,
            self._homes.left_mib(user, volume, tenant),
        )

    def _gap(self, volume: Volume) -> Reason | None:
        if not volume.is_at(LOCAL_SITE):
            return FilesNotHere(volume=volume.name, gap=FilesGap.ELSEWHERE, sites=volume.sites)
        gap = None if self._files is None else self._files.gap(volume)
        return None if gap is None else FilesNotHere(volume=volume.name, gap=gap)

    # --- room ---------------------------------------------------------------------------------------------------------

    def _check_room(self, found: _Found, size: int) -> None:
        """Limits as last measured, what was uploaded since, and what open uploads may still send.

        File systems with project quotas count exactly.
        """
        left = found.view.left_mib
        if left is None or not size:
            return
        if self._stored_since != self._homes.measured_at:
            self._stored_since = self._homes.measured_at
            self._stored.clear()
        free = left * _MIB - self._stored[found.place] - self._announced[found.place]
        if size > free:
            reason = UploadTooLarge(
                volume=found.view.volume, requested_mib=-(-size // _MIB), left_mib=max(0, free // _MIB)
            )
            raise Conflict(reason, code="storage-full")


class _Room:
    """Room of a place for an open upload: announced bytes become stored ones, the rest is given back."""

    def __init__(self, place: Place, size: int, announced: Counter[Place], stored: Counter[Place]) -> None:
        self._place, self._left, self._announced, self._stored = place, size, announced, stored
        announced[place] += size

    async def counted(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            self._take(min(len(chunk), self._left))
            self._stored[self._place] += len(chunk)
            yield chunk

    def give_back(self) -> None:
        self._take(self._left)

    def _take(self, size: int) -> None:
        self._left -= size
        self._announced[self._place] -= size
        if not self._announced[self._place]:
            del self._announced[self._place]


def _may_write(access: Access, volume: Volume, tenant: str) -> bool:
    return volume.writable and (volume.writers is Writers.EVERYBODY or access.may(Permission.WRITE_VOLUMES, tenant))
