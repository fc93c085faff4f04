"""Which volumes somebody may have, and how well they hold here. Changes nothing; used by `work`, API and portal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commonage.control.fleet import Fleet
from commonage.control.membership import tenants_of
from commonage.control.settings import ControlSettings
from commonage.domain.errors import InvalidInput
from commonage.domain.principals import Principal, Scope
from commonage.domain.sightings import Capabilities
from commonage.domain.volumes import Volume, VolumeKind, VolumeRequest, variable_of

_LINK = "a link in ~/volumes here: read-only is an agreement, not a wall"
_NO_SIZE = "its size is not bounded here"


@dataclass(frozen=True, slots=True)
class VolumeView:
    """A volume that somebody may have: on the account of `tenants`, at `place`; `notes` are what does not hold here."""

    volume: Volume
    tenants: tuple[str, ...]
    place: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Volumes:
    """Made from the settings and what the engines can do."""

    fleet: Fleet
    settings: ControlSettings

    def offered(self, who: Principal) -> Sequence[VolumeView]:
        """Those of one's tenants, for admins all, in the order of the settings."""
        who.need(Scope.READ)
        mine = [one.name for one in tenants_of(who.groups, self.settings)]
        engines = self.fleet.capabilities()
        mounted, bounded = all(one.mounts for one in engines), all(one.bounds_volumes for one in engines)
        found = []
        for volume in self.settings.volumes:
            tenants = tuple(one for one in mine if volume.is_for(one))
            if tenants or who.is_admin:
                notes = _notes(volume, mounted=mounted, bounded=bounded)
                found.append(VolumeView(volume, tenants, _place(volume, mounted), notes))
        return found

    def warnings(self) -> Sequence[str]:
        """What an admin who declared them should know, in sentences."""
        engines = self.fleet.capabilities()
        mounted, bounded = all(one.mounts for one in engines), all(one.bounds_volumes for one in engines)
        loose = [one.name for one in self.settings.volumes if not _holds_size(one, mounted=mounted, bounded=bounded)]
        if not loose:
            return ()
        kinds = " and ".join(sorted({one.name for one in engines if not one.bounds_volumes}))
        return (
            f"Nothing holds the size of {', '.join(loose)}: {kinds} cannot bound volumes here, so they take what the "
            "disk has (docs/howto/storage.md). `commonage volume ls` says so to everybody.",
        )


def _place(volume: Volume, mounted: bool) -> str:
    if mounted:
        return volume.place
    # Of scratch each attempt has its own, so no link in the home that all share can lead to it.
    return f"${variable_of(volume.name)}" if volume.kind is VolumeKind.SCRATCH else f"~/volumes/{volume.name}"


def _notes(volume: Volume, *, mounted: bool, bounded: bool) -> tuple[str, ...]:
    notes = [_LINK] if not mounted and volume.kind is VolumeKind.FOLDER and not volume.writable else []
    return (*notes, *([] if _holds_size(volume, mounted=mounted, bounded=bounded) else [_NO_SIZE]))


def _holds_size(volume: Volume, *, mounted: bool, bounded: bool) -> bool:
    """False if it has a size that may be exceeded. What is in memory is bounded wherever it is mounted."""
    return volume.size_mib is None or (mounted if volume.memory else bounded)


def see_that_all_can_be_mounted(asked: Sequence[VolumeRequest], engines: Sequence[Capabilities]) -> None:
    """Raises InvalidInput where a place was asked for, and no engine here mounts anything anywhere."""
    elsewhere = next((one for one in asked if one.target), None)
    if elsewhere is not None and engines and not any(one.mounts for one in engines):
        raise InvalidInput(
            f"{elsewhere.text}: nothing is mounted here, as workloads are processes of this machine; leave "
            f"@{elsewhere.target} out and use ~/volumes/{elsewhere.name}",
            field="volumes",
            code="invalid-volume",
        )
