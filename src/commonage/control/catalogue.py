"""The catalogue as it is now: the environments of the installation, and those of the images that were pushed to it.

A mapping from names to environments that changes while everybody holds it: whoever looks sees the newest. Written by
`images` alone; read by submission, orders, timers, launch form and listings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from commonage.control.membership import tenants_of
from commonage.control.settings import ControlSettings
from commonage.control.signals import Signal
from commonage.domain.environments import Environment
from commonage.domain.images import Image, environments_of
from commonage.domain.principals import Principal
from commonage.domain.reasons import Reason
from commonage.domain.reasons.waiting import EnvironmentNotFound, EnvironmentNotInImage, ImageRemoved


class Catalogue(Mapping[str, Environment]):
    """`fixed` are the environments that no image brings. `changes` is sent after each change."""

    def __init__(self, fixed: Iterable[Environment] = ()) -> None:
        self._fixed = {one.name: one for one in fixed}
        self._images: dict[str, Image] = {}  # removed ones, too: they tell why something is not there any more
        self._all: dict[str, Environment] = dict(self._fixed)
        self._from: dict[str, Image] = {}  # by the names of environments
        self.changes: Signal[[]] = Signal()

    def __getitem__(self, name: str) -> Environment:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    # --- images ---------------------------------------------------------------------------------------------------

    def put(self, images: Iterable[Image]) -> None:
        """Take in images as they were just written: new ones, others of the same name, and removed ones."""
        self._images.update((one.name, one) for one in images)
        brought = {one.name: (one, image) for image in self.images() for one in environments_of(image)}
        brought = {name: each for name, each in brought.items() if name not in self._fixed}
        self._all = self._fixed | {name: environment for name, (environment, _) in brought.items()}
        self._from = {name: image for name, (_, image) in brought.items()}
        self.changes.send()

    def images(self) -> Sequence[Image]:
        """Those that are there, by name."""
        return [self._images[name] for name in sorted(self._images) if self._images[name].removed is None]

    def image(self, name: str) -> Image | None:
        """The image of that name, if it is there."""
        found = self._images.get(name)
        return found if found is not None and found.removed is None else None

    def image_of(self, environment: str) -> Image | None:
        """The image that brings this environment; None for a fixed one, or one that is not there."""
        return self._from.get(environment)

    # --- who sees what --------------------------------------------------------------------------------------------

    def environments_for(self, who: Principal | None, settings: ControlSettings) -> Sequence[Environment]:
        """What `who` may choose: what is everybody's and what is their tenants'; for admins (and None) all."""
        mine = _tenants(who, settings)
        return [one for one in self._all.values() if mine is None or one.tenant is None or one.tenant in mine]

    def images_for(self, who: Principal, settings: ControlSettings) -> Sequence[Image]:
        """The images `who` may see, likewise, by name."""
        mine = _tenants(who, settings)
        return [one for one in self.images() if mine is None or one.tenant is None or one.tenant in mine]

    # --- what is not there ----------------------------------------------------------------------------------------

    def removed(self, environment: str) -> Image | None:
        """The image that brought this environment, which is not there any more; None if there never was one."""
        return None if environment in self._all else self._ever(environment)

    def _ever(self, environment: str) -> Image | None:
        return self._images.get(environment) or self._images.get(environment.rpartition("/")[0])

    def lack(self, environment: str) -> Reason | None:
        """Why nothing can run in this environment; None if it is there."""
        if environment in self._all:
            return None
        whole = self._ever(environment)
        if whole is None:
            return EnvironmentNotFound(environment=environment)
        if whole.removed is None:
            there = tuple(one.name for one in environments_of(whole))
            return EnvironmentNotInImage(environment=environment, image=whole.name, environments=there)
        return ImageRemoved(image=whole.name, by=whole.removed.by, removed_at=whole.removed.at)


def _tenants(who: Principal | None, settings: ControlSettings) -> frozenset[str] | None:
    """The tenants `who` belongs to; None: all, as for an admin."""
    if who is None or who.is_admin:
        return None
    return frozenset(one.name for one in tenants_of(who.groups, settings))
