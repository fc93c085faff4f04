"""The bundles port without files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

from commonage.domain.errors import NotFound
from commonage.ports.bundles import KeptBundle, ReceivedBundle


class MemoryBundles:
    """Remembers what is kept; every archive has the digest that it consists of. Each call lets others run."""

    def __init__(self, *kept: KeptBundle) -> None:
        self.kept = {self.path(one): one for one in kept}
        self.removed: list[KeptBundle] = []

    async def all(self) -> Sequence[KeptBundle]:
        return list(self.kept.values())

    async def receive(self, chunks: AsyncIterator[bytes]) -> ReceivedBundle:
        content = b"".join([chunk async for chunk in chunks])
        digest, _, size = content.decode().partition(" ")
        return ReceivedBundle(Path("coming"), digest, int(size or 0))

    async def keep(self, received: ReceivedBundle, kept: KeptBundle) -> None:
        self.kept[self.path(kept)] = kept

    async def discard(self, received: ReceivedBundle) -> None:
        pass

    async def link(self, source: KeptBundle, kept: KeptBundle) -> None:
        self.kept[self.path(kept)] = kept

    async def note_use(self, kept: KeptBundle) -> None:
        if self.path(kept) not in self.kept:
            raise NotFound("it is gone", code="bundle-not-found")
        self.kept[self.path(kept)] = replace(kept)

    async def remove(self, kept: KeptBundle) -> None:
        self.removed.append(self.kept.pop(self.path(kept)))

    def path(self, kept: KeptBundle) -> Path:
        return Path("/bundles", kept.tenant, kept.owner, f"{kept.digest}.tar.gz")
