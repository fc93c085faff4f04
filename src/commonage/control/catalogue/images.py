"""Images in the catalogue: registered after a push, removed when unused, pulled onto nodes.

The only writer of images. Members of a tenant register its images, under names that are free or their own. Admins may
register any image, including images of other registries and global ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from commonage.control.access import Access, access_of
from commonage.control.catalogue.catalogue import Catalogue
from commonage.control.catalogue.prepulls import OnNode, Prepulls
from commonage.control.nodes.node_states import node_named
from commonage.control.settings import ControlSettings
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.domain.errors import Conflict, Forbidden, InvalidInput, NotFound
from commonage.domain.images import (
    PUBLIC,
    Image,
    Removal,
    check,
    environments_of,
    parse_image_name,
    remains_of,
    repository_of,
    scope_of,
)
from commonage.domain.nodes import NodeState
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons import Reason
from commonage.domain.reasons.notes import ImageReassigned, ImageRegistered, ImageUnregistered
from commonage.domain.workloads import Event, EventKind, State
from commonage.files.apps import apps_of_environments
from commonage.ports.clock import Clock
from commonage.ports.store import Store

MAX = 2000
MAX_OF_TENANT = 200


@dataclass(frozen=True, slots=True)
class ImageView:
    """An image, its status per node, and how many workloads use it. `mine`: the caller may change it."""

    image: Image
    nodes: tuple[OnNode, ...]
    running: int
    waiting: int
    mine: bool


@dataclass(slots=True)
class Images:
    store: Store
    live_state: LiveState
    writer: Writer
    catalogue: Catalogue
    prepulls: Prepulls
    clock: Clock
    settings: ControlSettings
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)  # the second change of a name must see the first

    async def open(self) -> None:
        self.catalogue.put(await self.store.images())

    def visible(self, principal: Principal) -> Sequence[ImageView]:
        """Global images and those of the caller's tenants; for admins all. Sorted by name."""
        principal.need(Scope.READ)
        counts = self._workloads()
        return [self._view(one, principal, counts) for one in self.catalogue.images_for(principal, self.settings)]

    def one(self, principal: Principal, name: str) -> ImageView:
        """One image. Raises NotFound, which lists the visible images."""
        principal.need(Scope.READ)
        return self._view(self._known(principal, name), principal, self._workloads())

    def _access(self, principal: Principal) -> Access:
        return access_of(principal, self.settings)

    def _known(self, principal: Principal, name: str) -> Image:
        asked = str(parse_image_name(name))
        seen = self.catalogue.images_for(principal, self.settings)
        found = next((one for one in seen if one.name == asked), None)
        if found is None:
            there = ", ".join(one.name for one in seen[:20]) or "none"
            raise NotFound(f"there is no image {asked!r}; there are: {there}", code="image-not-found")
        return found

    def _view(self, image: Image, principal: Principal, counts: Mapping[str, tuple[int, int]]) -> ImageView:
        work = [counts.get(one.name, (0, 0)) for one in environments_of(image)]
        running, waiting = sum(one[0] for one in work), sum(one[1] for one in work)
        access = self._access(principal)
        nodes = tuple(one for one in self.prepulls.of(image) if access.sees_site(one.site))
        return ImageView(
            image,
            nodes,
            running,
            waiting,
            _may_change(access, image),
        )

    def _workloads(self) -> dict[str, tuple[int, int]]:
        """(running, waiting) workloads by environment."""
        found: dict[str, tuple[int, int]] = {}
        for workload in self.live_state:
            running, waiting = found.get(workload.spec.environment, (0, 0))
            waits = workload.state.waits
            found[workload.spec.environment] = (running + (not waits), waiting + waits)
        return found

    def check_name(self, principal: Principal, name: str) -> tuple[str, str | None, Image | None]:
        """Raise what `add` would raise for this name, before anything is built or pushed under it.

        Returns the full name, its tenant (None: global), and the image that would be replaced.
        """
        principal.need(Scope.SUBMIT)
        parsed = parse_image_name(name)
        tenant = self._tenant_of(principal, parsed.scope)
        before = self.catalogue.image(str(parsed))
        if before is not None:
            _need_owner(self._access(principal), before, "push another in its place; choose another name or tag")
        self.check_room(str(parsed), tenant)
        return str(parsed), tenant, before

    def check_room(self, name: str, tenant: str | None) -> None:
        """Raise Conflict if the catalogue has no room for an image of this tenant; one that replaces another fits."""
        if self.catalogue.image(name) is not None:
            return
        there = self.catalogue.images()
        if tenant is not None and sum(one.tenant == tenant for one in there) >= MAX_OF_TENANT:
            raise Conflict(
                f"{tenant} has {MAX_OF_TENANT} images, which is the maximum of a tenant; remove unused ones "
                "(`commonage image rm NAME`), or replace one",
            )
        if len(there) >= MAX:
            raise Conflict(
                f"the catalogue has {MAX} images, which is the maximum of all tenants together; ask an admin to remove "
                "unused ones",
            )

    async def add(self, principal: Principal, wanted: Image, registry: str | None) -> ImageView:
        """Register a pushed image; an image of the same name is replaced.

        `registry` is the address of the site's own registry (None: no registry). Raises InvalidInput, Forbidden,
        Conflict.
        """
        name, tenant, _ = self.check_name(principal, wanted.name)
        check(wanted, [one.name for one in apps_of_environments()])
        _check_source(self._access(principal), wanted.reference, parse_image_name(name).repository, registry)
        now = self.clock.now()
        made = replace(wanted.provenance, by=principal.name)
        image = replace(wanted, name=name, tenant=tenant, by=principal.name, at=now, provenance=made, removed=None)
        async with self._changing:
            self.check_name(principal, name)  # the name may have been taken in the meantime
            await self._write(image)
        return self.one(principal, image.name)

    async def register(self, image: Image) -> None:
        """Register an image that a build of its tenant pushed; an image of the same name is replaced.

        Raises Conflict.
        """
        async with self._changing:
            self.check_room(image.name, image.tenant)
            await self._write(image)

    async def _write(self, image: Image) -> None:
        before = self.catalogue.image(image.name)
        registered = ImageRegistered(
            by=image.by, image=image.name, digest=image.digest, is_replacement=before is not None
        )
        event = Event(EventKind.AUDIT, image.at, registered, owner=image.by, tenant=image.tenant)
        await self.writer.write(events=[event], images=[image])
        self.catalogue.put([image])
        self.prepulls.wake()

    async def remove(self, principal: Principal, name: str) -> tuple[ImageView, Sequence[str]]:
        """Remove an image from the catalogue. Running workloads continue; returns the ids of those that wait for it.

        Raises NotFound, Forbidden.
        """
        principal.need(Scope.SUBMIT)
        async with self._changing:
            image = self._known(principal, name)
            _need_owner(self._access(principal), image, "remove it")
            view = self._view(image, principal, self._workloads())
            names = {one.name for one in environments_of(image)}
            now = self.clock.now()
            removed = ImageUnregistered(by=principal.name, image=image.name)
            event = Event(EventKind.AUDIT, now, removed, owner=image.by, tenant=image.tenant)
            gone = remains_of(replace(image, removed=Removal(principal.name, now)))
            await self.writer.write(events=[event], images=[gone])
            self.catalogue.put([gone])
        waiting = [
            one.id for one in self.live_state.in_state(State.HELD, State.QUEUED) if one.spec.environment in names
        ]
        return view, sorted(waiting)

    async def revise(self, by: str, image: Image) -> None:
        """Give an image another owner or tenant, or remove it: its own is renamed or removed."""
        reason: Reason
        if image.removed is not None:
            reason = ImageUnregistered(by=by, image=image.name)
            image = remains_of(image)
        else:
            reason = ImageReassigned(by=by, image=image.name, owner=image.by, tenant=image.tenant or "")
        async with self._changing:
            event = Event(EventKind.AUDIT, self.clock.now(), reason, owner=image.by, tenant=image.tenant)
            await self.writer.write(events=[event], images=[image])
            self.catalogue.put([image])

    async def prepull(self, principal: Principal, name: str, nodes: Sequence[str]) -> ImageView:
        """Pull an image onto these nodes (empty: all schedulable nodes). Raises NotFound, Forbidden."""
        principal.need(Scope.SUBMIT)
        image = self._known(principal, name)
        access = self._access(principal)
        _need_owner(access, image, "have it brought to nodes")
        seen = [one for one in self.live_state.nodes.values() if access.sees_site(one.site)]
        chosen = [node_named(node, seen).key for node in nodes]
        ready = [one.key for one in seen if one.state is NodeState.READY]
        away = next((one for one in chosen if one not in ready), None)
        if away is not None or not ready:
            what = f"{away} takes no work now" if away is not None else "no node takes work now"
            raise Conflict(f"{what}, so {image.name} is not pulled; `commonage node ls` shows the reasons")
        self.prepulls.request(image, chosen or ready)
        return self.one(principal, image.name)

    def _tenant_of(self, principal: Principal, scope: str) -> str | None:
        """The tenant whose image names start with `scope`. Raises Forbidden; InvalidInput with the possible names."""
        access = self._access(principal)
        if scope == PUBLIC:
            if not access.may(Permission.PUBLISH_IMAGES):
                raise Forbidden(
                    f"only admins may give an image to everybody, as {PUBLIC}/…; name it after your tenant",
                    code="not-admin",
                )
            return None
        choice = access.tenants(Permission.SUBMIT)
        for one in choice:
            if scope_of(one.name) == scope:
                return one.name
        there = ", ".join(f"{scope_of(one.name)}/…" for one in choice)
        if access.may(Permission.SUBMIT):
            raise InvalidInput(
                f"there is no tenant {scope!r}; names begin with {there}, {PUBLIC}/…",
                field="name",
                code="unknown-tenant",
            )
        raise Forbidden(f"{principal.name} is no member of {scope!r}; names begin with {there}", code="not-a-member")


def _may_change(access: Access, image: Image) -> bool:
    if image.tenant is None:
        return access.may(Permission.PUBLISH_IMAGES) or access.principal.name == image.by
    return access.may_on(Permission.MANAGE_IMAGES, image.by, image.tenant)


def _need_owner(access: Access, image: Image, action: str) -> None:
    if not _may_change(access, image):
        raise Forbidden(
            f"{image.name} is {image.by}'s; only {image.by}, managers of its tenant and admins may {action}",
            code="not-yours",
        )


def _check_source(access: Access, reference: str, repository: str, registry: str | None) -> None:
    """Raise unless the image has its own name in the site's registry; admins may use other registries."""
    source = repository_of(reference)
    if access.may(Permission.PUBLISH_IMAGES) or (registry is not None and source == f"{registry}/{repository}"):
        return
    if registry is None:
        raise Forbidden(
            "this installation has no registry of its own, so only admins may register images", code="not-admin"
        )
    found = source or "one without a registry"
    raise Forbidden(
        f"its image must be the one that was pushed as {registry}/{repository}, not {found[:100]}; only admins may "
        "register images of other registries",
        code="not-admin",
    )
