"""The port `MaterialStorage`: versions, copies and credentials, in threads of their own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, TypeVar

from commonage.domain.errors import Conflict, Unavailable
from commonage.domain.materials import Material, MaterialCopy, Version
from commonage.domain.reasons import materials as reasons
from commonage.files.git import GitFailed
from commonage.ports.files import Place
from commonage.ports.materials import Damaged, Delivery, HomeCopies, MaterialAccess
from commonage.storage.materials.credentials import Credentials
from commonage.storage.materials.versions import Versions

T = TypeVar("T")
_SYNCS, _RECORDS = 8, 4  # threads: slow repositories must not delay anything else


@dataclass(slots=True)
class MaterialFolders:
    versions: Versions
    credentials: Credentials
    copies: HomeCopies
    _syncs: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_SYNCS, "material-sync"))
    _records: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_RECORDS, "material"))
    _rewriting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def version(self, name: str) -> Version | None:
        return await self._run(self._records, name, partial(self.versions.current, name))

    async def sync(self, name: str, material: Material, now: float) -> Version:
        def sync() -> Version:
            return self.versions.sync(name, material, self.credentials.git_access(name), now)

        return await self._run(self._syncs, name, sync)

    def syncing(self, name: str) -> reasons.MaterialSyncing | None:
        return self.versions.syncing.get(name)

    async def old_versions(self, name: str) -> Collection[str]:
        return await self._run(self._records, name, partial(self.versions.old, name))

    async def remove_version(self, name: str, tree: str) -> None:
        await self._run(self._records, name, partial(self.versions.discard, name, tree))

    async def names(self) -> Collection[str]:
        return await self._run(self._records, "", self.versions.names)

    async def remove(self, name: str) -> None:
        def remove() -> None:
            self.versions.remove(name)
            self.credentials.remove(name)

        await self._run(self._records, name, remove)

    async def deliver(
        self, name: str, home: Place, at: float, *, reset: Collection[str] = (), room_mib: int | None = None
    ) -> MaterialCopy:
        version = await self.version(name)
        if version is None:
            return MaterialCopy(error=reasons.MaterialWithoutVersion(material=name))

        def read(path: str) -> BinaryIO:
            return os.fdopen(self.versions.file(name, version.tree, path).open(os.O_RDONLY), "rb")

        deliver = partial(self.copies.deliver, name, home, Delivery(version, read, at, reset, room_mib))
        try:
            try:
                return await deliver()
            except Damaged:
                async with self._rewriting:
                    await self._run(self._records, name, partial(self._write_again, name, version))
                return await deliver()
        except Damaged as error:
            detail = f"The platform's copy of {error} is damaged."
            return MaterialCopy(error=reasons.CopyNotWritten(material=name, detail=detail))
        except (Conflict, Unavailable) as error:
            why = error.reason or reasons.CopyNotWritten(material=name, detail=error.message)
            return MaterialCopy(error=why)

    def _write_again(self, name: str, version: Version) -> None:
        if self.versions.is_damaged(name, version):
            self.versions.discard(name, version.tree)
            self.versions.extract(name, version)

    async def copy(self, name: str, home: Place) -> MaterialCopy | None:
        return await self.copies.look(name, home, await self.version(name))

    async def access(self, name: str) -> MaterialAccess:
        return await self._run(self._records, name, partial(self.credentials.access, name))

    async def set_token(self, name: str, user: str, token: str) -> None:
        await self._run(self._records, name, partial(self.credentials.set_token, name, user, token))

    def close(self) -> None:
        self.versions.stop()
        self.copies.close()
        for threads in (self._syncs, self._records):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, threads: ThreadPoolExecutor, name: str, work: Callable[[], T]) -> T:
        """Raises Unavailable with a reason, and what else `work` raises."""
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, work)
        except (OSError, GitFailed) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise Unavailable(reasons.CopyNotWritten(material=name, detail=why)) from error
