"""Volumes available to a user, and how well they work here. Changes nothing; used by `workloads`, API and portal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commonage.control.queries.node_views import NodeViews
from commonage.control.settings import ControlSettings
from commonage.control.tenants.membership import tenants_of
from commonage.domain.errors import InvalidInput
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.refusals import MountsNotSupported
from commonage.domain.statuses import Capabilities
from commonage.domain.volumes import Volume, VolumeKind, VolumeRequest, variable_of
from commonage.wire.hub import docs_page

_LINK = "a link in ~/volumes here: read-only is an agreement, not a wall"
_NO_SIZE = "its size is not bounded here"


_MAX_NAMED = 4


@dataclass(frozen=True, slots=True)
class VolumeView:
    """A volume available to a user: through `tenants`, mounted at `place`; `notes` are its limitations here.

    If it has a size, the nodes on `bounded_on` enforce it, and those on `unbounded_on` do not.
    """

    volume: Volume
    tenants: tuple[str, ...]
    place: str
    notes: tuple[str, ...] = ()
    bounded_on: tuple[str, ...] = ()
    unbounded_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Volumes:
    """Computed from the settings and the engines' capabilities."""

    node_views: NodeViews
    settings: ControlSettings

    def offered(self, who: Principal) -> Sequence[VolumeView]:
        """Volumes of the caller's tenants, for admins all, in the order of the settings."""
        who.need(Scope.READ)
        mine = [one.name for one in tenants_of(who.groups, self.settings)]
        engines = self.node_views.capabilities()
        mounted = all(one.mounts for one in engines)
        found = []
        for volume in self.settings.volumes:
            tenants = tuple(one for one in mine if volume.is_for(one))
            if tenants or who.is_admin:
                bounded, unbounded = _nodes(volume, engines)
                notes = (*_link_notes(volume, mounted), *_size_notes(bounded, unbounded))
                found.append(VolumeView(volume, tenants, _place(volume, mounted), notes, bounded, unbounded))
        return found

    def warnings(self) -> Sequence[str]:
        """Warnings for the admin who declared them, as sentences."""
        engines = self.node_views.capabilities()
        loose: dict[tuple[str, ...], list[str]] = {}
        for volume in self.settings.volumes:
            _, unbounded = _nodes(volume, engines)
            if unbounded:
                loose.setdefault(unbounded, []).append(volume.name)
        return [
            f"Nothing holds the size of {', '.join(names)} on {_named(nodes)}, so they take what the disk has there "
            f"({docs_page('operate/storage')}). `commonage volume ls` says so to everybody."
            for nodes, names in loose.items()
        ]


def _place(volume: Volume, mounted: bool) -> str:
    if mounted:
        return volume.place
    # Each attempt has its own scratch, so no link in the shared home can lead to it.
    return f"${variable_of(volume.name)}" if volume.kind is VolumeKind.SCRATCH else f"~/volumes/{volume.name}"


def _nodes(volume: Volume, engines: Sequence[Capabilities]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Nodes that enforce its size, and those that do not. A volume in memory is bounded wherever it is mounted."""
    bounded: list[str] = []
    unbounded: list[str] = []
    for one in engines if volume.size_mib is not None else ():
        in_memory = volume.memory and one.mounts
        bounded += [*one.bounded_on, *(one.unbounded_on if in_memory else ())]
        unbounded += () if in_memory else one.unbounded_on
    return tuple(sorted(bounded)), tuple(sorted(unbounded))


def _link_notes(volume: Volume, mounted: bool) -> Sequence[str]:
    return [_LINK] if not mounted and volume.kind is VolumeKind.FOLDER and not volume.writable else []


def _size_notes(bounded: Sequence[str], unbounded: Sequence[str]) -> Sequence[str]:
    if not unbounded:
        return []
    return [f"bounded on {_named(bounded)}; not bounded on {_named(unbounded)}" if bounded else _NO_SIZE]


def _named(nodes: Sequence[str]) -> str:
    more = len(nodes) - _MAX_NAMED
    return ", ".join(nodes) if more <= 1 else f"{', '.join(nodes[:_MAX_NAMED])} and {more} more"


def check_mountable(asked: Sequence[VolumeRequest], engines: Sequence[Capabilities]) -> None:
    """Raise InvalidInput if a mount path was requested and no engine here mounts anything anywhere."""
    elsewhere = next((one for one in asked if one.target), None)
    if elsewhere is not None and engines and not any(one.mounts for one in engines):
        raise InvalidInput(
            MountsNotSupported(volume=elsewhere.text, name=elsewhere.name, target=elsewhere.target),
            field="volumes",
            code="invalid-volume",
        )
