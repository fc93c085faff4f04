"""The port `HomeCopies` for homes on disks that this machine sees, in threads of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from commonage.domain.errors import Unavailable
from commonage.domain.materials import MaterialCopy, Version
from commonage.domain.reasons import materials as reasons
from commonage.domain.volumes import folder_name
from commonage.files.safe_path import SafePath
from commonage.ports.files import Place
from commonage.ports.materials import Delivery, HomeCopies
from commonage.storage.materials.copies import HomeCopy

T = TypeVar("T")
_COPIES, _LOOKS = 4, 4  # threads


@dataclass(slots=True)
class FolderCopies(HomeCopies):
    """Homes are the folders below `homes`."""

    homes: SafePath
    _copies: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_COPIES, "material-copy"))
    _looks: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_LOOKS, "material-look"))
    _looking: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    async def deliver(self, name: str, home: Place, delivery: Delivery) -> MaterialCopy:
        one, deliver = delivery, self._copy(name, home).deliver
        return await _run(self._copies, name, partial(deliver, one.version, one.read, one.at, one.reset, one.room_mib))

    async def look(self, name: str, home: Place, version: Version | None) -> MaterialCopy | None:
        look = partial(self._copy(name, home).look, version)
        lock = self._looking.setdefault(home.home, asyncio.Lock())  # one user does not take all threads
        async with lock:
            looking = asyncio.ensure_future(_run(self._looks, name, look))
            try:
                return await asyncio.shield(looking)
            finally:
                await asyncio.wait([looking])  # even if the caller was cancelled: the thread continues

    def _copy(self, name: str, home: Place) -> HomeCopy:
        return HomeCopy(self.homes / folder_name(home.home), name)

    def close(self) -> None:
        for threads in (self._copies, self._looks):
            threads.shutdown(wait=False, cancel_futures=True)


async def _run(threads: ThreadPoolExecutor, name: str, work: Callable[[], T]) -> T:
    """Raises Unavailable with a reason, and Damaged."""
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, work)
    except OSError as error:
        raise Unavailable(reasons.CopyNotWritten(material=name, detail=error.strerror or str(error))) from error
