"""Keeps materials in sync with their repositories, and the copies in homes with the materials.

The loop asks each repository for a new commit at its interval, or when a webhook or a person says so. A new version is
copied to the homes of running sessions at once, and to others when their next session starts. Called by API, portal and
the reconcile loop.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from commonage.control.access import Access, access_of
from commonage.control.loops.session_restarts import restarts_of
from commonage.control.settings import ControlSettings
from commonage.control.signals import cancel_all, wait_at_most
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.control.usage.homes import HomeWatch
from commonage.domain.errors import CommonageError, Conflict, InvalidInput, NotFound, Unauthenticated
from commonage.domain.iterations import Iterations
from commonage.domain.materials import Material, MaterialCopy, Version
from commonage.domain.nodes import LOCAL_SITE
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons import Reason
from commonage.domain.reasons import materials as reasons
from commonage.domain.volumes import Volume, mounts_of
from commonage.domain.workloads import Attempt, Event, EventKind, Kind, State, Workload
from commonage.ports.clock import Clock
from commonage.ports.files import Place
from commonage.ports.materials import EVERYTHING, MaterialAccess, MaterialStorage

log = logging.getLogger(__name__)
EVERY_S = 5.0
RETRY_S = 30.0  # after a copy that was not complete
SETTLE_S = 90.0  # then replaced files are looked at again, and removed
BEFORE_START_S = 20.0  # a session does not wait longer for its files; they follow while it runs
_KEEP_OLD_S = 600.0
_MAX_RESET = 1000


class MaterialState(StrEnum):
    """`waiting`: nothing was read yet. `failing`: the last sync failed; the version before stays in force."""

    WAITING = "waiting"
    CURRENT = "current"
    FAILING = "failing"


@dataclass(frozen=True, slots=True)
class MaterialView:
    """A material that a user may use. `synced_at`: when the repository was last read. `syncing`: the step of a running
    sync. `pending`: number of running sessions whose copy is older than the version. `copy` is the user's own;
    `may_manage`: the user may change its credentials.
    """

    volume: Volume
    state: MaterialState
    version: Version | None
    synced_at: float | None
    syncing: Reason | None
    error: Reason | None
    pending: int
    copy: MaterialCopy | None
    may_manage: bool

    @property
    def material(self) -> Material:
        assert self.volume.material is not None
        return self.volume.material


@dataclass(slots=True)
class _Status:
    """`due`: when the repository is asked next. `material` is what it was asked for."""

    material: Material
    due: float = 0.0
    version: Version | None = None
    synced_at: float | None = None
    error: Reason | None = None
    task: asyncio.Task[None] | None = None
    superseded: dict[str, float] = field(default_factory=dict)


class _Key(NamedTuple):
    home: Place
    material: str

    @property
    def user(self) -> str:
        return self.home.home


@dataclass(slots=True)
class _Delivery:
    """The newest delivery to one home. `tree`: the version. `served`: the attempts, and their states, that have it."""

    tree: str
    served: frozenset[tuple[str, State]]
    at: float
    done: asyncio.Event = field(default_factory=asyncio.Event)
    copy: MaterialCopy | None = None
    is_settled: bool = False


class Materials:
    """`storage` None: this installation keeps no materials."""

    def __init__(
        self,
        storage: MaterialStorage | None,
        live_state: LiveState,
        writer: Writer,
        homes: HomeWatch,
        clock: Clock,
        settings: ControlSettings,
    ) -> None:
        self._storage, self._live_state, self._writer = storage, live_state, writer
        self._homes, self._clock, self._settings = homes, clock, settings
        self._statuses: dict[str, _Status] = {}
        self._deliveries: dict[_Key, _Delivery] = {}
        self._copying: dict[_Key, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self.iterations = Iterations("materials", clock.now)

    # --- the loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            while True:
                await self.round()
                with self.iterations.rest():
                    await wait_at_most(EVERY_S, self._wake, self._clock)
                self._wake.clear()
        finally:
            await cancel_all(list(self._tasks))

    def refresh(self) -> None:
        """Look at once what is declared."""
        self._wake.set()

    async def round(self) -> None:
        """Start the work that is due. Slow repositories and copies continue in tasks of their own."""
        if self._storage is None:
            return
        declared = {one.name: one for one in self._volumes()}
        for name, volume in declared.items():
            await self._begin_sync(self._storage, name, volume)
        sessions = self._sessions()
        for workload, volume in sessions:
            self._begin_delivery(self._storage, workload, volume)
        running = {self._key(workload.spec.owner, workload.spec.tenant, volume.name) for workload, volume in sessions}
        for key in self._deliveries.keys() - running:
            if self._deliveries[key].done.is_set():
                del self._deliveries[key]
                self._copying.pop(key, None)
        await self._remove_unused(self._storage, declared.keys())

    async def _begin_sync(self, storage: MaterialStorage, name: str, volume: Volume) -> None:
        material = volume.material
        assert material is not None
        status = self._statuses.get(name)
        if status is None:
            status = self._statuses[name] = _Status(material, version=await self._version(storage, name))
        if status.material != material:
            status.material, status.due = material, 0.0
        if status.task is None and status.due <= self._clock.now():
            # A webhook that arrives meanwhile sets it again.
            status.due = self._clock.now() + material.poll_s
            status.task = self._begin(self._sync(storage, name, status), f"material {name}")

    async def _version(self, storage: MaterialStorage, name: str) -> Version | None:
        try:
            return await storage.version(name)
        except CommonageError as error:
            log.warning("material %s: its version cannot be read: %s", name, error)
            return None

    async def _sync(self, storage: MaterialStorage, name: str, status: _Status) -> None:
        before, happened = status.version, []
        error: Reason | None = None
        try:
            version = await storage.sync(name, status.material, self._clock.now())
        except CommonageError as failure:
            error = failure.reason or reasons.MaterialNotWritten(material=name, detail=failure.message)
            if type(error) is not type(status.error):
                log.warning("material %s is not synced: %s", name, failure)
                happened.append(error)
        else:
            status.version, status.synced_at = version, self._clock.now()
            if before is None or before.tree != version.tree:
                log.info("material %s: commit %s with %s files", name, version.commit[:12], len(version.files))
                happened.append(
                    reasons.MaterialPublished(material=name, commit=version.commit, files=len(version.files))
                )
        finally:
            status.error, status.task = error, None
        self._wake.set()
        await self._tell(happened)

    async def _tell(self, happened: Iterable[Reason]) -> None:
        try:
            for one in happened:
                await self._writer.write(events=[Event(EventKind.AUDIT, self._clock.now(), one)])
        except CommonageError as error:
            log.warning("an event of a material is not written: %s", error)

    def _begin_delivery(self, storage: MaterialStorage, workload: Workload, volume: Volume) -> None:
        """Copy the version in force to the home of a running session, unless that was done."""
        status = self._statuses.get(volume.name)
        if status is None or status.version is None or workload.attempt is None:
            return
        key, now = self._key(workload.spec.owner, workload.spec.tenant, volume.name), self._clock.now()
        tree, mark = status.version.tree, (workload.attempt.id, workload.state)
        last = self._deliveries.get(key)
        if last is not None:
            if not last.done.is_set():
                return
            is_incomplete = last.copy is None or last.copy.error is not None
            is_served = last.tree == tree and mark in last.served
            if is_served and not (is_incomplete and now - last.at >= RETRY_S):
                if last.is_settled or now - last.at < SETTLE_S:
                    return
                last.is_settled = True
                self._begin(self._deliver(storage, key, replace(last, done=asyncio.Event())), f"material to {key.user}")
                return
        self._begin(self._deliver(storage, key, self._new_delivery(key, tree, mark)), f"material to {key.user}")

    def _key(self, user: str, tenant: str, material: str) -> _Key:
        return _Key(Place(home=user, tenant=tenant if self._settings.homes_per_tenant else ""), material)

    def _own_key(self, access: Access, volume: Volume) -> _Key:
        """Where the user has several homes: that in the first tenant of the material."""
        mine = [one.name for one in access.tenants(Permission.SUBMIT) if volume.is_for(one.name)]
        return self._key(access.principal.name, mine[0] if mine else "", volume.name)

    def _new_delivery(self, key: _Key, tree: str, mark: tuple[str, State]) -> _Delivery:
        """Of several sessions of one owner, each is served once with a version."""
        last = self._deliveries.get(key)
        served = frozenset() if last is None or last.tree != tree else last.served
        made = self._deliveries[key] = _Delivery(tree, served | {mark}, self._clock.now())
        return made

    async def _deliver(
        self,
        storage: MaterialStorage,
        key: _Key,
        delivery: _Delivery,
        reset: Collection[str] = (),
    ) -> None:
        user, home, name = key.user, key.home, key.material
        try:
            async with self._copying.setdefault(key, asyncio.Lock()):
                delivery.copy = await storage.deliver(
                    name, home, self._clock.now(), reset=reset, room_mib=self._homes.left_mib(user, tenant=home.tenant)
                )
            if delivery.copy.error is not None:
                log.warning("material %s is not complete in the home of %s: %s", name, user, delivery.copy.error)
        except CommonageError as error:
            delivery.copy = MaterialCopy(
                error=error.reason or reasons.CopyNotWritten(material=name, detail=error.message)
            )
            log.warning("material %s is not copied to the home of %s: %s", name, user, error)
        finally:
            delivery.done.set()

    async def _remove_unused(self, storage: MaterialStorage, declared: Collection[str]) -> None:
        """Remove versions that no workload can read any more, and leftovers of materials that are not declared."""
        try:
            for name in await storage.names():
                status, oldest = self._statuses.get(name), self._oldest_reader(name)
                if status is not None and status.task is not None:
                    continue
                if name not in declared and oldest is None:
                    self._statuses.pop(name, None)
                    await storage.remove(name)
                elif status is not None:
                    await self._remove_old_versions(storage, name, status, oldest)
        except CommonageError as error:
            log.warning("versions of materials are not removed: %s", error)

    async def _remove_old_versions(
        self, storage: MaterialStorage, name: str, status: _Status, oldest: float | None
    ) -> None:
        now, old = self._clock.now(), set(await storage.old_versions(name))
        status.superseded = {tree: status.superseded.get(tree, now) for tree in old}
        for tree, since in status.superseded.items():
            if now - since >= _KEEP_OLD_S and (oldest is None or oldest > since):
                await storage.remove_version(name, tree)

    def _oldest_reader(self, name: str) -> float | None:
        """When the first of the live workloads that mount the material was submitted; None without such a workload."""
        live = self._live_state.in_state(State.STARTING, State.RUNNING)
        return min((one.submitted_at for one in live if self._mounts(one, {name})), default=None)

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: %s", task.get_name(), error, exc_info=error)

    def close(self) -> None:
        if self._storage is not None:
            self._storage.close()

    # --- sessions ---------------------------------------------------------------------------------------------------

    async def prepare(self, workload: Workload) -> None:
        """Bring the copies of a session up to date before it starts. Waits a while at most, and never fails."""
        if self._storage is None or workload.attempt is None or not self._mounts(workload):
            return
        ready = asyncio.Event()
        work = self._begin(self._prepare(self._storage, workload, workload.attempt), f"materials of {workload.id}")
        work.add_done_callback(lambda _: ready.set())
        try:
            await wait_at_most(BEFORE_START_S, ready, self._clock)
        finally:
            work.cancel()  # deliveries that have begun continue

    async def _prepare(self, storage: MaterialStorage, workload: Workload, attempt: Attempt) -> None:
        begun = []
        for volume in self._mounts(workload):
            version = await self._version(storage, volume.name)  # makes the folder that is mounted
            if version is None or volume.material is None or workload.spec.kind is not Kind.SESSION:
                continue
            key = self._key(workload.spec.owner, workload.spec.tenant, volume.name)
            mark = (attempt.id, State.STARTING)
            delivery = self._deliveries.get(key)
            if delivery is None or delivery.tree != version.tree or mark not in delivery.served:
                is_reset = volume.material.reset_at_start and not self._goes_on(workload, attempt, volume)
                delivery = self._new_delivery(key, version.tree, mark)
                work = self._deliver(storage, key, delivery, EVERYTHING if is_reset else ())
                self._begin(work, f"material to {key.user}")
            begun.append(delivery.done)
        for one in begun:
            await one.wait()

    def _goes_on(self, workload: Workload, attempt: Attempt, volume: Volume) -> bool:
        """Whether the owner works with the material already: in a session that this one replaces, or in another."""
        if attempt.number > 1 or restarts_of(workload) > 0:
            return True
        mine = (attempt.allocation.at, workload.id)
        return any(
            one.state is State.RUNNING or (one.attempt is not None and (one.attempt.allocation.at, one.id) < mine)
            for one in self._live_state.in_state(State.STARTING, State.RUNNING)
            if one.spec.owner == workload.spec.owner
            and one.id != workload.id
            and one.spec.kind is Kind.SESSION
            and self._mounts(one, {volume.name})
        )

    def _volumes(self) -> list[Volume]:
        return [one for one in self._settings.volumes if one.material is not None]

    def _sessions(self) -> list[tuple[Workload, Volume]]:
        if not self._volumes():
            return []
        running = self._live_state.in_state(State.RUNNING)
        return [(one, volume) for one in running if one.spec.kind is Kind.SESSION for volume in self._mounts(one)]

    def _mounts(self, workload: Workload, names: Collection[str] | None = None) -> list[Volume]:
        """The materials that a workload of this site mounts, of these names."""
        materials = {one.name: one for one in self._volumes() if names is None or one.name in names}
        spec, attempt = workload.spec, workload.attempt
        if not materials or attempt is None or attempt.allocation.site != LOCAL_SITE:
            return []
        try:
            mounts = mounts_of(spec.volumes, self._settings.volumes, spec.owner, spec.tenant, LOCAL_SITE)
        except CommonageError:
            return []  # a volume of it was removed since
        return [materials[one.name] for one in mounts if one.name in materials]

    # --- use cases --------------------------------------------------------------------------------------------------

    async def all(self, principal: Principal) -> Sequence[MaterialView]:
        """The materials of the tenants that the caller may see, in the order of the resources."""
        principal.need(Scope.READ)
        access = access_of(principal, self._settings)
        return [await self._view(access, one) for one in self._volumes() if _sees(access, one)]

    def any_for(self, principal: Principal) -> bool:
        """Whether there are materials that the caller may see."""
        access = access_of(principal, self._settings)
        return any(_sees(access, one) for one in self._volumes())

    async def one(self, principal: Principal, name: str) -> MaterialView:
        """Raises NotFound."""
        principal.need(Scope.READ)
        access = access_of(principal, self._settings)
        return await self._view(access, self._visible(access, name))

    async def sync_now(self, principal: Principal, name: str) -> MaterialView:
        """Check the repository for a new commit at once. For teachers and managers. Raises NotFound, Forbidden."""
        self._managed(principal, name)
        self._ask(name)
        return await self.one(principal, name)

    async def reset(self, principal: Principal, name: str, files: Collection[str]) -> MaterialView:
        """Make files of the caller's copy as in the version, all without `files`; edited ones get another name.

        Raises NotFound, InvalidInput, Conflict.
        """
        principal.need(Scope.SUBMIT)
        access = access_of(principal, self._settings)
        volume, storage = self._visible(access, name), self._need_storage()
        if not any(volume.is_for(one.name) for one in access.tenants(Permission.SUBMIT)):
            access.need(Permission.SUBMIT, volume.tenants[0])  # a user who may only view a tenant has no copy
        status = self._statuses.get(name)
        if status is None or status.version is None:
            raise Conflict(reasons.MaterialWithoutVersion(material=name), code="material-without-version")
        if len(files) > _MAX_RESET:
            raise InvalidInput(
                f"{len(files)} files were named; at most {_MAX_RESET} are allowed. Name none to reset all.",
                field="files",
            )
        unknown = sorted(set(files) - status.version.files.keys())
        if unknown:
            raise InvalidInput(
                f"Material {name} has no file {unknown[0][:80]!r}. "
                f"`commonage material show {name}` lists the files that you edited.",
                field="files",
                code="unknown-file",
            )
        key = self._own_key(access, volume)
        delivery = _Delivery(status.version.tree, frozenset(), self._clock.now())
        await self._deliver(storage, key, delivery, frozenset(files) or EVERYTHING)
        view = await self._view(access, volume)
        failed = None if delivery.copy is None else delivery.copy.error
        return view if failed is None or view.copy is None else replace(view, copy=replace(view.copy, error=failed))

    async def access(self, principal: Principal, name: str) -> MaterialAccess:
        """The deploy key and the webhook's secret. For teachers and managers. Raises NotFound, Forbidden."""
        self._managed(principal, name)
        return await self._need_storage().access(name)

    async def set_token(self, principal: Principal, name: str, user: str, token: str) -> MaterialAccess:
        """Keep a token for HTTPS, or remove it. For teachers and managers. Raises NotFound, Forbidden."""
        self._managed(principal, name)
        storage = self._need_storage()
        await storage.set_token(name, user, token)
        self._ask(name)
        return await storage.access(name)

    async def webhook(self, name: str, body: bytes, github: str, gitlab: str) -> None:
        """A push, from the repository's server: `github` is its signature of the body, `gitlab` its token.

        Raises Unauthenticated, also for a material that does not exist.
        """
        if not any(one.name == name for one in self._volumes()) or self._storage is None:
            raise _bad_signature()
        secret = (await self._storage.access(name)).webhook_secret
        expected = f"sha256={hmac.new(secret.encode(), body, 'sha256').hexdigest()}"
        is_github = bool(github) and hmac.compare_digest(github.encode(), expected.encode())
        is_gitlab = bool(gitlab) and hmac.compare_digest(gitlab.encode(), secret.encode())
        if not (is_github or is_gitlab):
            raise _bad_signature()
        self._ask(name)

    def _ask(self, name: str) -> None:
        status = self._statuses.get(name)
        if status is not None:
            status.due = 0.0
        self._wake.set()

    def _visible(self, access: Access, name: str) -> Volume:
        found = next((one for one in self._volumes() if one.name == name and _sees(access, one)), None)
        if found is None:
            names = ", ".join(one.name for one in self._volumes() if _sees(access, one)) or "none"
            raise NotFound(
                f"There is no material {name[:60]!r} for you. Materials: {names}.", code="material-not-found"
            )
        return found

    def _managed(self, principal: Principal, name: str) -> Volume:
        access = access_of(principal, self._settings)
        volume = self._visible(access, name)
        if not _manages(access, volume):
            access.need(Permission.MANAGE_MATERIALS, volume.tenants[0] if volume.tenants else None)
        return volume

    def _need_storage(self) -> MaterialStorage:
        if self._storage is None:
            raise Conflict("This installation keeps no materials.")
        return self._storage

    async def _view(self, access: Access, volume: Volume) -> MaterialView:
        status, name = self._statuses.get(volume.name), volume.name
        may_manage = _manages(access, volume)
        version = None if status is None else status.version
        error = None if status is None else status.error
        if isinstance(error, reasons.MaterialUnreachable) and not may_manage:
            error = replace(error, detail="")  # it has names of hosts
        state = MaterialState.WAITING if version is None else MaterialState.CURRENT
        key = self._own_key(access, volume)
        delivery = self._deliveries.get(key)
        copy = None if self._storage is None else await self._storage.copy(name, key.home)
        if delivery is not None and delivery.copy is not None and copy is not None:
            copy = replace(copy, error=delivery.copy.error)
        return MaterialView(
            volume=volume,
            state=state if error is None else MaterialState.FAILING,
            version=version,
            synced_at=None if status is None else status.synced_at,
            syncing=None if self._storage is None else self._storage.syncing(name),
            error=error,
            pending=sum(self._is_pending(one, name, version) for one, each in self._sessions() if each.name == name),
            copy=copy,
            may_manage=may_manage,
        )

    def _is_pending(self, workload: Workload, name: str, version: Version | None) -> bool:
        last = self._deliveries.get(self._key(workload.spec.owner, workload.spec.tenant, name))
        return version is not None and (last is None or last.copy is None or last.copy.tree != version.tree)


def _sees(access: Access, volume: Volume) -> bool:
    mine = access.tenants(Permission.SEE_TENANT)
    return access.may(Permission.SEE_TENANT) or any(volume.is_for(one.name) for one in mine)


def _manages(access: Access, volume: Volume) -> bool:
    """A material for several tenants can be managed by those who may in all of them; one for everybody by admins."""
    if access.may(Permission.MANAGE_MATERIALS):
        return True
    return bool(volume.tenants) and all(access.may(Permission.MANAGE_MATERIALS, one) for one in volume.tenants)


def _bad_signature() -> Unauthenticated:
    return Unauthenticated(
        "The signature of the webhook is wrong. `commonage material access NAME` shows the address and the secret to "
        "set at the repository's server."
    )
