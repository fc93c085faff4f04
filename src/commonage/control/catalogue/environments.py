"""Environments with their status, as users see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from commonage.control.catalogue.catalogue import Catalogue
from commonage.control.settings import ControlSettings
from commonage.domain.images import Environment, EnvironmentState, EnvironmentStatus
from commonage.domain.principals import Principal
from commonage.domain.reasons.attempts import OnFirstUse


@dataclass(frozen=True, slots=True)
class EnvironmentView:
    """A catalogue entry and its status."""

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
        self._statuses: dict[str, EnvironmentStatus] = {}

    def note_status(self, status: EnvironmentStatus) -> None:
        """Store the status that an engine reports."""
        self._statuses[status.name] = status

    def views(self, who: Principal | None = None) -> Sequence[EnvironmentView]:
        """The catalogue as `who` may see it (None: all of it), with the status of each entry."""
        found = self._catalogue.environments_for(who, self._settings)
        return [EnvironmentView(one, self._status(one)) for one in found]

    def _status(self, environment: Environment) -> EnvironmentStatus:
        brought = self._image_status(environment)
        if brought is not None:
            return brought
        on_first_use = OnFirstUse(is_image=environment.image is not None)
        absent = EnvironmentStatus(environment.name, "", EnvironmentState.ABSENT, on_first_use)
        return self._statuses.get(environment.name, absent)
