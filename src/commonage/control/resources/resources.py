"""Reads and changes platform resources. The only writer of them; what changes is in force when the call returns.

Called by the API and the portal. A change is planned, checked as a whole, committed with its events in one transaction,
and then passed to `on_change`, which updates what runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from commonage.control.access import Access, access_of
from commonage.control.resources.affected import Affected, Impact
from commonage.control.settings import ControlSettings
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.domain.errors import CommonageError, Conflict, NotFound
from commonage.domain.images import Environment
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal
from commonage.domain.reasons import Reason
from commonage.domain.reasons import resources as reasons
from commonage.domain.reasons.offboarding import TenantNotEmpty
from commonage.domain.resources import Action, Document, Platform, ResourceChange, StoredResource
from commonage.domain.workloads import Event, EventKind
from commonage.ports.clock import Clock
from commonage.ports.platform import PlatformSupport
from commonage.ports.store import Batch, Store
from commonage.resources.documents import Key, body_of, form_of, parse, parse_all
from commonage.resources.fields import Form
from commonage.resources.kinds import KINDS, ORDER, kind_named
from commonage.resources.plan import Declaration, changes_of, need_unmanaged
from commonage.resources.platform import check_references, platform_of
from commonage.resources.scheduling import SiteEntry

log = logging.getLogger(__name__)
ANY_VERSION = -1
_NAMED = 8


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """`refusal`: why `apply` refuses this change, and all others with it."""

    change: ResourceChange
    affected: tuple[Affected, ...] = ()
    refusal: Reason | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """`revision` grows with every change of any resource: a plan holds as long as it stays the same."""

    revision: int
    changes: tuple[PlannedChange, ...]

    @property
    def is_empty(self) -> bool:
        return all(one.change.action is Action.UNCHANGED for one in self.changes)


@dataclass(frozen=True, slots=True)
class Documents:
    """A set of documents to plan or apply; see `resources.plan.Declaration`."""

    documents: Sequence[Document]
    managed_by: str = ""
    prune: bool = False
    take_over: bool = False

    def declaration(self) -> Declaration:
        return Declaration(parse_all(self.documents), self.managed_by, self.prune, self.take_over)


@dataclass(frozen=True, slots=True)
class _Next:
    """The resources after some changes, checked; `rows` are the changed ones."""

    forms: Mapping[Key, Form]
    platform: Platform
    rows: Sequence[StoredResource]
    events: Sequence[Event]


@dataclass(slots=True)
class Resources:
    """`sites` are those with an engine. `on_change` is called with the resources in force, also on opening.

    `admit`, called with the resources in force and those after a change, raises if it may not be made.
    `is_claimed`: whether the name of a tenant was given up, or is being taken by a rename.
    `left_in`, called before a tenant is deleted, gives the reason why that needs an offboarding. Its second argument
    is whether members are a reason.
    `ignored`: settings of the file that the database has replaced.
    """

    store: Store
    live_state: LiveState
    writer: Writer
    clock: Clock
    settings: ControlSettings
    support: PlatformSupport
    builtin: Platform
    sites: Collection[str]
    on_change: Callable[[Platform], None]
    left_in: Callable[[str, bool], Awaitable[TenantNotEmpty | None]]
    is_claimed: Callable[[str], bool] = lambda _tenant: False
    admit: Callable[[Platform, Platform], None] = lambda _before, _after: None
    ignored: tuple[str, ...] = ()
    _stored: dict[Key, StoredResource] = field(default_factory=dict)
    _forms: Mapping[Key, Form] = field(default_factory=dict)
    _platform: Platform = field(default_factory=Platform)
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _unsure: bool = False  # a commit failed, and it is unknown whether it was written

    async def open(self, declared: Mapping[str, Sequence[Document]]) -> None:
        """Load them. Kinds that the database never had are imported from `declared`, the settings file, by kind.

        Raises InvalidInput if those do not fit together. Called before the writer runs.
        """
        self._stored = {one.key: one for one in await self.store.resources()}
        there = {kind for kind, _ in self._stored}
        new = [one for kind, documents in declared.items() if kind not in there for one in documents]
        if new:
            await self._import(new)
        self.ignored = tuple(KINDS[kind].setting for kind, documents in declared.items() if kind in there and documents)
        if self.ignored:
            log.warning(
                "the settings %s are not used: they were imported into the database, which is changed by "
                "`commonage apply` and in the portal. Delete them from the settings file; `commonage export` prints "
                "the resources in force",
                ", ".join(self.ignored),
            )
        self._put(self._stored.values())

    async def _import(self, documents: Sequence[Document]) -> None:
        forms = parse_all(documents)
        now = self.clock.now()
        rows = [StoredResource(*key, 1, body_of(form), "", "commonage.toml", now) for key, form in forms.items()]
        known = {key: form_of(one) for key, one in self._stored.items() if one.body is not None}
        self._check({**known, **forms})
        seq = await self.store.last_event_seq()
        counts = {kind: sum(one.kind == kind for one in rows) for kind in KINDS}
        imported = [reasons.ResourcesImported(kind=kind, count=count) for kind, count in counts.items() if count]
        events = [Event(EventKind.AUDIT, now, one, seq=seq + number) for number, one in enumerate(imported, 1)]
        await self.store.commit(Batch(events=events, resources=rows))
        self._stored |= {one.key: one for one in rows}
        log.info("imported %s resources from the settings into the database", len(rows))

    @property
    def platform(self) -> Platform:
        return self._platform

    def _access(self, principal: Principal) -> Access:
        return access_of(principal, self.settings)

    def not_offered(self) -> Sequence[Environment]:
        """Declared environments that no engine here can run."""
        return [one for one in self._platform.environments if not self.support.offers(one)]

    @property
    def revision(self) -> int:
        return sum(one.version for one in self._stored.values())

    def all(self, principal: Principal, kind: str | None = None) -> Sequence[StoredResource]:
        """Declared resources by kind. For operators and admins. Raises NotFound for an unknown kind."""
        self._access(principal).need(Permission.SEE_PLATFORM)
        if kind is not None:
            kind_named(kind)
        found = [one for one in self._stored.values() if one.body is not None and kind in (None, one.kind)]
        return sorted(found, key=lambda one: (ORDER[one.kind], one.name))

    def present(self) -> Sequence[StoredResource]:
        """All declared resources, for changes that follow from others."""
        return [one for one in self._stored.values() if one.body is not None]

    def changed_at(self, kind: str, name: str) -> float:
        """The time of its last change or its deletion; 0 if it never existed."""
        found = self._stored.get((kind, name))
        return 0.0 if found is None else found.changed_at

    async def revise(self, by: str, documents: Sequence[Document], gone: Collection[Key]) -> None:
        """Change and delete resources at once, as the renaming or removal of a user or tenant requires.

        Reservations are not checked for room again, because admitted ones follow their user or tenant.

        Raises Conflict if one of them is managed by git, InvalidInput if they do not fit together.
        """
        async with self._changing:
            await self._reread()
            forms = parse_all(documents)
            for key in (*forms, *gone):
                if key in self._forms:
                    need_unmanaged(self._stored[key])
            deleted = [ResourceChange(*key, Action.DELETE, self._stored[key].version) for key in gone]
            changes = [*changes_of(self._stored, Declaration(forms)), *deleted]
            _, following = self._after(changes, forms, by, admitted=True)
            await self._commit(following)

    def one(self, principal: Principal, kind: str, name: str) -> StoredResource:
        """For operators and admins. Raises NotFound."""
        self._access(principal).need(Permission.SEE_PLATFORM)
        return self._one(kind, name)

    def of_kind(self, kind: str) -> Sequence[StoredResource]:
        """Those of one kind, by name: for use cases that check what their caller may see."""
        return sorted((one for one in self.present() if one.kind == kind), key=lambda one: one.name)

    def _one(self, kind: str, name: str) -> StoredResource:
        kind_named(kind)
        found = self._stored.get((kind, name))
        if found is None or found.body is None:
            names = ", ".join(one.name for one in self.of_kind(kind)[:20]) or "none"
            raise NotFound(f"there is no {kind} {name[:60]!r}; there are: {names}", code="resource-not-found")
        return found

    async def plan(self, principal: Principal, documents: Documents) -> Plan:
        """Preview `apply`. Raises InvalidInput with the field, Conflict, and Unavailable if folders cannot be read."""
        self._access(principal).need(Permission.SEE_PLATFORM)
        return await self._with_refusals(self._planned(documents.declaration())[0])

    async def apply(self, principal: Principal, documents: Documents, revision: int | None = None) -> Plan:
        """Make the resources as declared: all of it or nothing. With `revision`, only if that is still the present one.

        Raises InvalidInput, Conflict, and Unavailable if folders cannot be read.
        """
        self._access(principal).need(Permission.MANAGE_PLATFORM)
        wanted = documents.declaration()
        # Before the lock: to look at folders, and at claims of a cluster, may take long.
        empty = await self._empty(self._planned(wanted, principal.name)[0], frozenset())
        async with self._changing:
            await self._reread()
            if revision is not None and revision != self.revision:
                raise Conflict(
                    "Resources were changed since the plan was made. Make a new plan.", code="version-mismatch"
                )
            plan, following = self._planned(wanted, principal.name)
            await self._empty(plan, empty)
            await self._commit(following)
        return plan

    async def _empty(self, plan: Plan, known: Collection[str]) -> Collection[str]:
        """Names of the tenants that it deletes. Raises Conflict for one that is not empty; `known` are."""
        changes = [one for one in plan.changes if one.change.name not in known]
        for one in (await self._with_refusals(replace(plan, changes=tuple(changes)))).changes:
            if one.refusal is not None:
                raise _not_empty(one.refusal)
        deleted = (one.change for one in plan.changes if one.change.action is Action.DELETE)
        return {change.name for change in deleted if change.kind == "Tenant"}

    async def _with_refusals(self, plan: Plan) -> Plan:
        """Members are no reason to refuse: they go with the document that declares them, as the plan shows."""
        changes = []
        for planned in plan.changes:
            change, left = planned.change, None
            if change.kind == "Tenant" and change.action is Action.DELETE:
                left = await self.left_in(change.name, False)
            changes.append(
                planned if left is None else replace(planned, refusal=replace(left, managed_by=change.managed_by))
            )
        return replace(plan, changes=tuple(changes))

    async def put(
        self, principal: Principal, document: Document, version: int, *, kind: str, name: str
    ) -> StoredResource:
        """Create (version 0) or replace one resource of this version. Raises InvalidInput, Conflict."""
        self._access(principal).need(Permission.MANAGE_PLATFORM)
        return await self.put_for(principal.name, document, version, kind=kind, name=name)

    async def put_for(self, by: str, document: Document, version: int, *, kind: str, name: str) -> StoredResource:
        """`put` by a use case that has checked what its caller may do."""
        kind_named(kind)
        key, form = parse({**document, "kind": kind, "name": name})
        async with self._changing:
            await self._reread()
            self._need_version(key, version)
            if key in self._forms:
                need_unmanaged(self._stored[key])
            _, following = self._planned(Declaration({key: form}), by)
            await self._commit(following)
        return self._stored[key]

    async def delete(
        self, principal: Principal, kind: str, name: str, version: int, *, force: bool = False
    ) -> StoredResource:
        """Delete one resource of this version; while workloads use it only with `force`. Raises NotFound, Conflict.

        A tenant with work, folders or members needs an offboarding instead, and `force` does not help.
        """
        self._access(principal).need(Permission.MANAGE_PLATFORM)
        if kind == "Tenant":
            need_unmanaged(self._one(kind, name))
            if (left := await self.left_in(name, True)) is not None:
                raise _not_empty(left)
        return await self.delete_for(principal.name, kind, name, version, force=force)

    async def delete_for(self, by: str, kind: str, name: str, version: int, *, force: bool = False) -> StoredResource:
        """`delete` by a use case that has checked what its caller may do."""
        async with self._changing:
            await self._reread()
            found = self._one(kind, name)
            self._need_version(found.key, version)
            need_unmanaged(found)
            change = ResourceChange(kind, name, Action.DELETE, found.version)
            plan, following = self._after([change], {}, by)
            if any(one.workloads for one in plan.changes[0].affected) and not force:
                raise _in_use(plan.changes[0])
            await self._commit(following)
        return found

    async def _reread(self) -> None:
        """After a commit with an unknown outcome, take what the store has."""
        if self._unsure:
            self._stored = {one.key: one for one in await self.store.resources()}
            self._unsure = False
            self._put(self._stored.values())

    def _need_version(self, key: Key, version: int) -> None:
        found = self._stored.get(key)
        present = found.version if found is not None and found.body is not None else 0
        if version not in (present, ANY_VERSION):
            state = f"is at version {present}" if present else "does not exist"
            follows = f"follows version {version}" if version else "would create it"
            raise Conflict(
                f"{key[0]} {key[1]} {state}, and this change {follows}. Read it again and repeat the change.",
                code="version-mismatch",
            )

    def _planned(self, wanted: Declaration, by: str = "") -> tuple[Plan, _Next]:
        changes = changes_of(self._stored, wanted)
        for one in changes:
            if one.kind == "Tenant" and one.action is Action.CREATE and self.is_claimed(one.name):
                raise Conflict(
                    f"The name of tenant {one.name} is retired, because a tenant of that name was renamed or removed. "
                    f"Run `commonage tenant release {one.name}` first, or choose another name.",
                    code="name-not-released",
                )
        return self._after(changes, wanted.forms, by, wanted.managed_by)

    def _after(
        self,
        changes: Sequence[ResourceChange],
        wanted: Mapping[Key, Form],
        by: str,
        managed_by: str = "",
        *,
        admitted: bool = False,
    ) -> tuple[Plan, _Next]:
        """The plan of these changes, and the resources after them, checked. `admitted`: by an earlier call."""
        forms = dict(self._forms)
        rows, events = [], []
        now, source = self.clock.now(), managed_by or by
        for change in changes:
            key = (change.kind, change.name)
            if change.action is Action.UNCHANGED:
                continue
            body = None
            if change.action is Action.DELETE:
                self._need_closed(forms.pop(key, None))
            else:
                forms[key], body = wanted[key], body_of(wanted[key])
            rows.append(StoredResource(*key, change.version + 1, body, managed_by if body is not None else "", by, now))
            tenant = change.name if change.kind == "Tenant" else None
            events.append(Event(EventKind.AUDIT, now, _note(change, source), tenant=tenant))
        platform = self._check(forms) if rows else self._platform
        if rows and not admitted:
            self.admit(self._platform, platform)
        impact = Impact(self.live_state, self._platform, platform)
        planned = tuple(PlannedChange(change, tuple(impact.of(change))) for change in changes)
        return Plan(self.revision, planned), _Next(forms, platform, rows, events)

    def _need_closed(self, gone: Form | None) -> None:
        """Raise Conflict if the site that `gone` restricts to tenants would be open to all of them without it."""
        if isinstance(gone, SiteEntry) and gone.tenants and gone.name in self.sites:
            raise Conflict(
                f"Site {gone.name} is for {', '.join(gone.tenants)} only, and without its resource all tenants could "
                f"use it. To give the site up, remove it first (`commonage site rm {gone.name}`). To share it with all "
                "tenants, set its tenants to [].",
                code="site-would-open",
            )

    def _check(self, forms: Mapping[Key, Form]) -> Platform:
        platform = platform_of(forms, self.builtin)
        check_references(forms, platform, self.sites, self.settings.default_tenant)
        self.support.check(platform)
        return platform

    async def _commit(self, following: _Next) -> None:
        if following.rows:
            try:
                await self.writer.write(events=following.events, resources=following.rows)
            except CommonageError:
                self._unsure = True
                raise
            self._stored |= {one.key: one for one in following.rows}
            self._put(self._stored.values())

    def _put(self, stored: Collection[StoredResource]) -> None:
        self._forms = MappingProxyType({one.key: form_of(one) for one in stored if one.body is not None})
        self._platform = platform_of(self._forms, self.builtin)
        offered = tuple(one for one in self._platform.environments if self.support.offers(one))
        self.on_change(replace(self._platform, environments=offered))


def _note(change: ResourceChange, by: str) -> Reason:
    if change.action is Action.CREATE:
        return reasons.ResourceCreated(by=by, kind=change.kind, name=change.name)
    if change.action is Action.DELETE:
        return reasons.ResourceDeleted(by=by, kind=change.kind, name=change.name)
    paths = tuple(one.path for one in change.fields)
    return reasons.ResourceChanged(by=by, kind=change.kind, name=change.name, fields=paths)


def _not_empty(left: Reason) -> Conflict:
    return Conflict(left, code="tenant-not-empty")


def _in_use(planned: PlannedChange) -> Conflict:
    workloads = [one for affected in planned.affected for one in affected.workloads]
    people = sorted({one.spec.owner for one in workloads})
    named = ", ".join(one.id for one in workloads[:_NAMED])
    more = f" and {len(workloads) - _NAMED} more" if len(workloads) > _NAMED else ""
    change = planned.change
    return Conflict(
        f"{change.kind} {change.name} is in use by workloads {named}{more} of {', '.join(people[:_NAMED])}. "
        "Wait for them, stop them, or repeat with force.",
        code="resource-in-use",
    )
