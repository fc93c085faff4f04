"""A site with a hub, homes and resources in memory, which can be killed at any effect on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.unit.control.world import ROOT, FakeHub, Site

from commonage.control.control import Control
from commonage.control.resources.resources import Documents
from commonage.domain.offboarding import Change, Offboarding, Subject, Wanted
from commonage.domain.volumes import Volume, folder_name
from commonage.ports.homes import Enforcement, FolderSize, Homes, OwnedFolder
from commonage.ports.identity import Account
from commonage.ports.store import Batch
from commonage.testing import factories
from commonage.testing.fakes.store import MemoryStore

DOCUMENTS: Sequence[dict[str, Any]] = (
    {
        "kind": "Tenant",
        "name": "optics",
        "nominal": {"gpus": 1},
        "members": [{"user": "ann", "role": "manager"}, {"user": "bob", "role": "member"}],
    },
    {"kind": "Tenant", "name": "chemistry", "members": [{"group": "optics", "role": "viewer"}]},
    {"kind": "Volume", "name": "lab", "source": "/srv/lab", "tenants": ["optics"]},
    {"kind": "Volume", "name": "shared", "source": "/srv/shared", "tenants": ["chemistry", "optics"]},
)


class Killed(BaseException):
    """The process ends here."""


class Killer:
    """Counts effects, and kills the process before or after the one numbered `at`."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.seen = 0

    def point(self) -> None:
        self.seen += 1
        if self.at is not None and self.seen == self.at:
            self.at = None
            raise Killed


class DeadlyStore(MemoryStore):
    def __init__(self, killer: Killer) -> None:
        super().__init__()
        self.killer = killer

    async def commit(self, batch: Batch) -> None:
        changed = (batch.offboardings, batch.resources, batch.images, batch.reservations, batch.reassigned)
        deadly = any(changed) or bool(batch.cron_jobs or batch.removed_cron_jobs)
        if deadly:
            self.killer.point()
        await super().commit(batch)
        if deadly:
            self.killer.point()

    async def rename(self, subject: Subject, name: str, to: str, *, limit: int) -> bool:
        self.killer.point()
        return await super().rename(subject, name, to, limit=1)


class DeadlyHub(FakeHub):
    def __init__(self, killer: Killer) -> None:
        super().__init__()
        self.killer = killer
        self.users = {name: Account(name, tokens=2) for name in ("ann", "bob", "root")}
        self.members = {"optics": {"ann", "eve"}}

    def _answer(self) -> None:
        super()._answer()
        self.killer.point()

    async def stop_session(self, user: str, name: str) -> None:
        self._answer()
        left = tuple(one for one in self.users[user].sessions if one != name)
        self.users[user] = replace(self.users[user], sessions=left)


class MemoryHomes(Homes):
    """`there` are contents by path, `packed` those in archives, by the names of these."""

    def __init__(self, killer: Killer) -> None:
        self.killer = killer
        self.there: dict[str, str] = {"/homes/ann": "thesis", "/homes/bob": "paper"}
        self.packed: dict[str, str] = {}
        self.claims: dict[str, str] = {}
        """The user or tenant of each."""

    async def claims_of(
        self, volumes: Sequence[Volume], *, user: str | None = None, tenant: str | None = None
    ) -> Sequence[str]:
        return [claim for claim, owner in self.claims.items() if owner == (user or tenant)]

    async def measure(self) -> dict[str, int]:
        return {path.removeprefix("/homes/"): 5 for path in self.there}

    async def measure_volumes(self, volumes: Sequence[Volume]) -> Sequence[FolderSize]:
        return []

    async def enforce(self, *_: object) -> Enforcement:
        return Enforcement()

    async def folders_of(
        self, volumes: Sequence[Volume], *, user: str | None = None, tenant: str | None = None
    ) -> Sequence[OwnedFolder]:
        whose = [f"/homes/{folder_name(user)}"] if user is not None else [f"/data/{folder_name(tenant or '')}"]
        return [OwnedFolder("" if user else "data", path) for path in whose if path in self.there]

    def place(self, folder: OwnedFolder, name: str, within: str | None = None) -> str:
        parent = folder.path.rpartition("/")[0]
        below = "" if within is None else f"/{folder_name(within)}"
        return f"{parent}{below}/{'from-' if within else ''}{folder_name(name)}"

    async def is_free(self, path: str) -> bool:
        return path not in self.there

    async def move(self, folder: OwnedFolder, to: str) -> None:
        self.killer.point()
        if folder.path in self.there:
            assert to not in self.there
            self.there[to] = self.there.pop(folder.path)
        self.killer.point()

    @property
    def archives(self) -> str:
        return "/archive"

    async def archive(self, folder: OwnedFolder, name: str) -> None:
        if name not in self.packed:
            self.packed[name] = self.there[folder.path]
        self.killer.point()
        self.there.pop(folder.path, None)
        self.killer.point()

    async def delete(self, folder: OwnedFolder) -> None:
        self.there.pop(folder.path, None)
        self.killer.point()


class World:
    """`site` outlives control planes."""

    def __init__(self) -> None:
        self.killer = Killer()
        self.site = Site([factories.node("cpu-1")], store=DeadlyStore(self.killer))
        self.hub = self.site.hub = DeadlyHub(self.killer)
        self.homes = self.site.homes = MemoryHomes(self.killer)

    async def declare(self, control: Control) -> None:
        await control.resources.apply(ROOT, Documents(DOCUMENTS))

    async def begin(self, control: Control, wanted: Wanted) -> Offboarding:
        plan = await control.offboardings.plan(ROOT, wanted)
        return await control.offboardings.begin(ROOT, wanted, plan.version)

    async def until_done(self, control: Control) -> Offboarding:
        """Let time pass until nothing is pending; the newest."""
        for _ in range(400):
            if not control.names.pending():
                return control.names.all()[-1]
            await self.site.clock.advance(0.5)
        raise AssertionError(f"not done: {control.names.pending()}")


def rename(name: str = "ann", to: str = "anna", subject: Subject = Subject.USER, **more: Any) -> Wanted:
    return Wanted(subject, Change.RENAME, name, to=to, **more)


def remove(name: str = "ann", subject: Subject = Subject.USER, **more: Any) -> Wanted:
    return Wanted(subject, Change.REMOVE, name, **more)
