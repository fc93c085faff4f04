"""The current catalogue: the declared environments and those of registered images.

A mapping from names to environments that changes in place, so that all holders see the newest state. `images` alone
writes its images, and `resources` the other environments; submission, start requests, timers, the launch form and
listings read it. `Environments` adds the status of each entry, as users see it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from commonage.control.access import access_of
from commonage.control.settings import ControlSettings
from commonage.control.signals import Signal
from commonage.domain.errors import NotFound
from commonage.domain.images import (
    Environment,
    EnvironmentState,
    EnvironmentStatus,
    Image,
    contents_of,
    environments_of,
    remains_of,
)
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import OnFirstUse
from commonage.domain.reasons.waiting import EnvironmentNotFound, EnvironmentNotInImage, ImageRemoved
from commonage.units import quoted

_ORDER = (EnvironmentState.READY, EnvironmentState.BUILDING, EnvironmentState.FAILED, EnvironmentState.ABSENT)
"""Of the statuses at several sites, the first in this order is shown."""


MAX_REMOVED = 500
"""Removed images of a tenant that are remembered: the newest. Of older ones it is said that they never existed."""


class Catalogue(Mapping[str, Environment]):
    """`fixed` are the environments that do not come from an image. `changes` is sent after each change."""

    def __init__(self, fixed: Iterable[Environment] = ()) -> None:
        self._fixed = {one.name: one for one in fixed}
        self._images: dict[str, Image] = {}  # includes removed images: they explain why an environment is gone
        self._all: dict[str, Environment] = dict(self._fixed)
        self._from: dict[str, Image] = {}  # by environment name
        self.changes: Signal[[]] = Signal()

    def __getitem__(self, name: str) -> Environment:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def declare(self, fixed: Iterable[Environment]) -> None:
        """Replace the environments that do not come from an image."""
        self._fixed = {one.name: one for one in fixed}
        self.put(())

    def put(self, images: Iterable[Image]) -> None:
        self._images.update((one.name, one if one.removed is None else remains_of(one)) for one in images)
        self._forget_removed()
        brought = {one.name: (one, image) for image in self.images() for one in environments_of(image)}
        brought = {name: each for name, each in brought.items() if name not in self._fixed}
        self._all = self._fixed | {name: environment for name, (environment, _) in brought.items()}
        self._from = {name: image for name, (_, image) in brought.items()}
        self.changes.send()

    def _forget_removed(self) -> None:
        removed = defaultdict[str | None, list[tuple[float, str]]](list)  # by tenant: none pushes out those of others
        for image in self._images.values():
            if image.removed is not None:
                removed[image.tenant].append((image.removed.at, image.name))
        for of_tenant in removed.values():
            for _, name in sorted(of_tenant)[:-MAX_REMOVED]:
                del self._images[name]

    def images(self) -> Sequence[Image]:
        """The images that are not removed, by name."""
        return [self._images[name] for name in sorted(self._images) if self._images[name].removed is None]

    def image(self, name: str) -> Image | None:
        """The image of that name; None if it does not exist or was removed."""
        found = self._images.get(name)
        return found if found is not None and found.removed is None else None

    def image_changed_at(self, name: str) -> float:
        """The time at which the image of that name was registered or removed; 0 if it never existed."""
        found = self._images.get(name)
        if found is None:
            return 0.0
        return found.at if found.removed is None else found.removed.at

    def image_of(self, environment: str) -> Image | None:
        """The image that provides this environment; None for a fixed or unknown one."""
        return self._from.get(environment)

    def environments_for(self, principal: Principal | None, settings: ControlSettings) -> Sequence[Environment]:
        """The global environments and those of the principal's tenants; for admins (and None) all.

        The environment of builds is left out: no user chooses it.
        """
        mine = _tenants(principal, settings)
        offered = (one for one in self._all.values() if one.kinds)
        return [one for one in offered if mine is None or one.tenant is None or one.tenant in mine]

    def images_for(self, principal: Principal, settings: ControlSettings) -> Sequence[Image]:
        """Public images and those of the principal's tenants, by name; for admins all."""
        mine = _tenants(principal, settings)
        return [one for one in self.images() if mine is None or one.tenant is None or one.tenant in mine]

    def removed(self, environment: str) -> Image | None:
        """The removed image that provided this environment; None if it is present or never existed."""
        return None if environment in self._all else self._ever(environment)

    def _ever(self, environment: str) -> Image | None:
        return self._images.get(environment) or self._images.get(environment.rpartition("/")[0])

    def shortfall(self, environment: str) -> Reason | None:
        if environment in self._all:
            return None
        whole = self._ever(environment)
        if whole is None:
            return EnvironmentNotFound(environment=environment)
        if whole.removed is None:
            there = tuple(one.name for one in environments_of(whole))
            return EnvironmentNotInImage(environment=environment, image=whole.name, environments=there)
        return ImageRemoved(image=whole.name, by=whole.removed.by, removed_at=whole.removed.at)


def _tenants(principal: Principal | None, settings: ControlSettings) -> frozenset[str] | None:
    """The tenants of `principal`; None means all, as for an admin."""
    if principal is None or access_of(principal, settings).may(Permission.SEE_TENANT):
        return None
    return frozenset(one.name for one in access_of(principal, settings).tenants(Permission.SEE_TENANT))


@dataclass(frozen=True, slots=True)
class EnvironmentView:
    environment: Environment
    status: EnvironmentStatus


class Environments:
    """`image_status` gives the status of environments that come from an image."""

    def __init__(
        self,
        catalogue: Catalogue,
        image_status: Callable[[Environment], EnvironmentStatus | None],
        settings: ControlSettings,
    ) -> None:
        self._catalogue, self._image_status, self._settings = catalogue, image_status, settings
        self._statuses: dict[str, dict[str, EnvironmentStatus]] = defaultdict(dict)  # by name, then by site

    def note_status(self, site: str, status: EnvironmentStatus) -> None:
        self._statuses[status.name][site] = status

    def views(self, principal: Principal | None = None) -> Sequence[EnvironmentView]:
        """The catalogue as `principal` may see it (None: all of it), with the status of each entry."""
        found = self._catalogue.environments_for(principal, self._settings)
        return [EnvironmentView(one, self._status(one)) for one in found]

    def one(self, principal: Principal, name: str) -> EnvironmentView:
        """One environment. Raises NotFound, which lists those that the principal may see."""
        views = self.views(principal)
        found = next((view for view in views if view.environment.name == name), None)
        if found is None:
            there = ", ".join(view.environment.name for view in views[:20]) or "none"
            raise NotFound(f"there is no environment {quoted(name)}; there are: {there}", code="environment-not-found")
        return found

    def _status(self, environment: Environment) -> EnvironmentStatus:
        brought, image = self._image_status(environment), self._catalogue.image_of(environment.name)
        if brought is not None and image is not None:
            return replace(brought, contents=contents_of(image))
        on_first_use = OnFirstUse(is_image=environment.image is not None)
        contents = None if image is None else contents_of(image)
        absent = EnvironmentStatus(environment.name, "", EnvironmentState.ABSENT, on_first_use, contents=contents)
        by_site = self._statuses.get(environment.name, {}).values()
        return min(by_site, key=lambda one: _ORDER.index(one.state), default=absent)
