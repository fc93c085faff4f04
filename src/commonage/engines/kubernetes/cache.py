"""A copy of some objects of the cluster, kept by list and watch. Generic over the kind of object.

The first list is followed by watches. A watch that ends or breaks is resumed from the last resourceVersion seen. If the
server no longer has that version (410), everything is listed again, and the differences from the copy are reported,
including deletions in the gap.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from commonage.domain.errors import EngineFailure
from commonage.domain.iterations import Iterations
from commonage.engines.kubernetes.manifest import Manifest

_PAUSE_MIN_S, _PAUSE_MAX_S = 0.2, 15.0
_MAX_UNREAD = 100
_log = logging.getLogger(__name__)


class Expired(EngineFailure):
    """The server no longer has the resourceVersion that was asked for: list again."""

    retryable = True


@dataclass(frozen=True, slots=True)
class Listed:
    items: Sequence[Manifest]
    version: str


@dataclass(frozen=True, slots=True)
class Event:
    """`kind`: ADDED, MODIFIED, DELETED or BOOKMARK."""

    kind: str
    object: Manifest


class Source(Protocol):
    """Where the objects come from. Both may raise EngineFailure; `watch` raises Expired."""

    async def list_all(self) -> Listed: ...

    def watch(self, version: str) -> AsyncGenerator[Event]: ...


OnChange = Callable[[Manifest, bool], None]
"""Called with the new object and False, or with the last known one and True if it is deleted."""


def key_of(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


class Cache:
    """`fault` is empty while the server answers. An exception of `on_change` is logged, and concerns that object only:
    tenants and nodes write parts of the objects.
    """

    def __init__(self, source: Source, on_change: OnChange, name: str) -> None:
        self._source = source
        self._on_change = on_change
        self._name = name
        self._objects: dict[str, Manifest] = {}
        self._version: str | None = None
        self._is_synced = False
        self._unread: set[tuple[str, type[Exception]]] = set()  # logged
        self.fault = ""

    @property
    def objects(self) -> Sequence[Manifest]:
        return tuple(self._objects.values())

    @property
    def is_synced(self) -> bool:
        """True if it was listed once."""
        return self._is_synced

    def find(self, key: str) -> Manifest | None:
        return self._objects.get(key)

    async def sync(self) -> None:
        """List, and report what differs from the copy. Raises EngineFailure."""
        listed = await self._source.list_all()
        found = {key_of(one): one for one in listed.items}
        self._version, self._is_synced = listed.version, True
        for key in self._objects.keys() - found.keys():
            self._remove(key, self._objects[key])
        for key, manifest in found.items():
            self._put(key, manifest)

    async def keep(self, iterations: Iterations) -> None:
        """Follow the changes, forever."""
        failures = expiries = 0
        while True:
            try:
                if self._version is None:
                    await self.sync()
                await self._follow(iterations)
                self._answered()
                failures = expiries = 0
            except Expired as error:
                _log.info("%s: the watch is too far behind, so all are listed again: %s", self._name, error)
                self._version = None
                failures, expiries = 0, expiries + 1  # it answers: the pauses of an outage are over
                self._answered()
            except EngineFailure as error:
                if not self.fault:
                    _log.warning("%s: %s", self._name, error)
                self.fault = str(error)
                failures += 1
            if count := failures or expiries:
                pause = min(_PAUSE_MAX_S, _PAUSE_MIN_S * 2 ** min(count - 1, 10))
                with iterations.rest():
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, no secret

    def _answered(self) -> None:
        if self.fault:
            _log.warning("%s: the cluster answers again", self._name)
        self.fault = ""

    async def _follow(self, iterations: Iterations) -> None:
        """One watch, to its end."""
        async with aclosing(self._source.watch(self._version or "")) as events:
            while True:
                with iterations.rest():
                    event = await anext(events, None)
                if event is None:
                    return
                self._answered()
                self.take(event)

    def take(self, event: Event) -> None:
        """Apply one change."""
        version = event.object["metadata"].get("resourceVersion")
        if event.kind != "BOOKMARK":
            key = key_of(event.object)
            if event.kind == "DELETED":
                self._remove(key, event.object)
            else:
                self._put(key, event.object)
        if version:
            self._version = str(version)

    def _put(self, key: str, manifest: Manifest) -> None:
        before = self._objects.get(key)
        if before is not None and before["metadata"].get("uid") != manifest["metadata"].get("uid"):
            self._remove(key, before)  # deleted and made again under the same name
            before = None
        self._objects[key] = manifest
        if before is None or before["metadata"].get("resourceVersion") != manifest["metadata"].get("resourceVersion"):
            self._report(manifest, False)

    def _remove(self, key: str, last: Manifest) -> None:
        known = self._objects.get(key)
        if known is None or known["metadata"].get("uid") != last["metadata"].get("uid"):
            return
        del self._objects[key]
        self._report(last, True)

    def _report(self, manifest: Manifest, deleted: bool) -> None:
        try:
            self._on_change(manifest, deleted)
        except Exception as error:  # any exception: the other objects must still be followed
            where = (key_of(manifest), type(error))
            if where not in self._unread and len(self._unread) < _MAX_UNREAD:
                self._unread.add(where)
                _log.exception("%s: %s cannot be read, and is left out", self._name, key_of(manifest))
