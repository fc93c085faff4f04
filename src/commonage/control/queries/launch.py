"""Queries for the launch form: what a user may request, and how well each volume works on this site. Read-only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from commonage.control.access import access_of, tenants
from commonage.control.catalogue.catalogue import Environments, EnvironmentView
from commonage.control.queries.node_views import NodeViews
from commonage.control.settings import ControlSettings
from commonage.control.state.live_state import LiveState
from commonage.control.usage.homes import HomeWatch
from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Device, NodeState
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.profiles import Profile
from commonage.domain.reasons import Reason
from commonage.domain.reasons.engines import VolumeIsLink, VolumeSizeNotEnforced
from commonage.domain.reasons.notes import StorageGap, StorageNotEnforced
from commonage.domain.reasons.refusals import MountsNotSupported
from commonage.domain.requests import Request, parse_gpus
from commonage.domain.statuses import Capabilities
from commonage.domain.tenants import PriorityClass, Tenant
from commonage.domain.volumes import Volume, VolumeKind, VolumeRequest, variable_of
from commonage.scheduler.fit.filters import refusal
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import Ints
from commonage.wire.hub import docs_page

_MAX_NAMED = 4


@dataclass(frozen=True, slots=True)
class VolumeView:
    """A volume available to a user: through `tenants`, mounted at `place`; `notes` are its limitations here.

    If it has a size, the nodes on `bounded_on` enforce it, and those on `unbounded_on` do not. `sites` are those where
    it is that the user may know; None: it is at all sites. `used_mib` is that of the user's folders in it, if it has
    such and they were measured.
    """

    volume: Volume
    tenants: tuple[str, ...]
    place: str
    notes: tuple[Reason, ...] = ()
    bounded_on: tuple[str, ...] = ()
    unbounded_on: tuple[str, ...] = ()
    sites: tuple[str, ...] | None = None
    used_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Volumes:
    node_views: NodeViews
    settings: ControlSettings
    homes: HomeWatch

    def offered(self, principal: Principal) -> Sequence[VolumeView]:
        """Volumes of the tenants that the caller may see, in the order of the settings."""
        principal.need(Scope.READ)
        access = access_of(principal, self.settings)
        mine = [one.name for one in access.tenants(Permission.SEE_TENANT)]
        engines = self.node_views.capabilities(access)
        mounted = all(one.mounts for one in engines)
        found = []
        for volume in self.settings.volumes:
            through = tuple(one for one in mine if volume.is_for(one))
            if through or access.may(Permission.SEE_TENANT):
                bounded, unbounded = _nodes(volume, engines)
                is_readonly_link = not mounted and volume.kind is VolumeKind.FOLDER and not volume.writable
                notes: list[Reason] = [VolumeIsLink()] if is_readonly_link else []
                if unbounded:
                    notes.append(VolumeSizeNotEnforced(nodes=unbounded, enforced_on=bounded))
                gap = self._storage_gap(volume)
                if gap is not None:
                    notes.append(StorageNotEnforced(gap=gap))
                sites = tuple(one for one in volume.sites if access.sees_site(one)) if volume.sites else None
                place = _place(volume, mounted)
                used = self._used_mib(volume, through, principal.name)
                found.append(VolumeView(volume, through, place, tuple(notes), bounded, unbounded, sites, used))
        return found

    def _used_mib(self, volume: Volume, through: Sequence[str], user: str) -> int | None:
        if not volume.is_measured:
            return None
        of_tenants = through if "{tenant}" in volume.source.split("/") else through[:1]
        known = [used for one in of_tenants if (used := self.homes.folder_mib(volume.name, one, user)) is not None]
        return sum(known) if known else None

    def _storage_gap(self, volume: Volume) -> StorageGap | None:
        """Why a quota of storage that counts the volume is not enforced there; None if it is enforced, or if no quota
        exists.
        """
        enforcement = self.homes.enforcement
        if enforcement is None or not volume.is_measured:
            return None
        quotas = [one.quota for one in tenants(self.settings) if volume.is_for(one.name)]
        bounds = [bounds.storage_mib for quota in quotas for bounds in (quota.nominal, quota.per_user)]
        return enforcement.volumes.get(volume.name) if any(one is not None for one in bounds) else None

    def warnings(self) -> Sequence[str]:
        engines = self.node_views.capabilities()
        loose: dict[tuple[str, ...], list[str]] = {}
        for volume in self.settings.volumes:
            _, unbounded = _nodes(volume, engines)
            if unbounded:
                loose.setdefault(unbounded, []).append(volume.name)
        return [
            f"Nothing enforces the size of {', '.join(names)} on {_named(nodes)}, so they can fill the disk there "
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


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """A share that can be requested; `why_not` is None if it could start now."""

    gpus: str
    title: str
    free_now: bool
    why_not: Reason | None


@dataclass(frozen=True, slots=True)
class LaunchView:
    environments: tuple[EnvironmentView, ...]
    gpu_choices: tuple[GpuChoice, ...]
    models: tuple[str, ...]
    max_cpus_milli: int
    max_memory_mib: int
    max_vram_mib: int
    free_cpus_milli: int
    free_memory_mib: int
    simulated_gpus: bool
    tenants: tuple[Tenant, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()
    profiles: tuple[Profile, ...] = ()


class Launch:
    def __init__(self, live_state: LiveState, environments: Environments, settings: ControlSettings) -> None:
        self._live_state, self._environments, self._settings = live_state, environments, settings

    def options(self, principal: Principal) -> LaunchView:
        principal.need(Scope.READ)
        access = access_of(principal, self._settings)
        may_raise = access.may(Permission.RAISE_PRIORITY)
        grid = self._live_state.snapshot.grid
        usable = np.array([at for at, node in enumerate(grid.nodes) if access.sees_site(node.site)], np.int64)
        seen = [node for node in self._live_state.nodes.values() if access.sees_site(node.site)]
        reports = [node.report for node in seen if node.state is not NodeState.LOST]
        devices = [device for report in reports for device in report.devices if not device.faults]
        environments = tuple(self._environments.views(principal))
        mine = list(access.own_tenants())
        return LaunchView(
            environments=environments,
            gpu_choices=self._choices(grid, devices, usable),
            models=tuple(sorted({device.model for device in devices})),
            max_cpus_milli=max((report.cpus_milli for report in reports), default=0),
            max_memory_mib=max((report.memory_mib for report in reports), default=0),
            max_vram_mib=max((device.memory_mib for device in devices), default=0),
            free_cpus_milli=int(grid.cpus[usable][grid.ready[usable]].max(initial=0)),
            free_memory_mib=int(grid.memory[usable][grid.ready[usable]].max(initial=0)),
            simulated_gpus=self._live_state.simulated_gpus,
            tenants=tuple(mine),
            priority_classes=tuple(one for one in self._settings.priority_classes if may_raise or not one.for_admins),
            profiles=self._profiles(mine, {one.environment.name for one in environments}),
        )

    def _profiles(self, mine: Sequence[Tenant], environments: Collection[str]) -> tuple[Profile, ...]:
        """Those for one of the user's tenants, whose environment the user may use."""
        return tuple(
            one
            for one in self._settings.profiles
            if any(one.is_for(tenant.name) for tenant in mine)
            and (one.environment is None or one.environment in environments)
        )

    def _choices(self, grid: Grid, devices: Sequence[Device], usable: Ints) -> tuple[GpuChoice, ...]:
        if not devices:
            return ()
        # A GPU with slots offers its slots; other GPUs offer any fraction.
        in_slots = sorted({device.slots for device in devices if device.slots})
        texts = [f"{part}/{slots}" for slots in in_slots for part in range(1, slots)]
        largest = max((device.memory_mib for device in devices if not device.slots), default=0)
        if largest:
            texts += [*(f"{gib}GiB" for gib in (4, 8, 12, 16) if gib * 1024 < largest), "0.25", "0.5"]
        texts.append("1")
        if grid.kind.shape[1] > 1:
            texts.append("2")
        return tuple(self._choice(text, grid, usable) for text in texts)

    def _choice(self, text: str, grid: Grid, usable: Ints) -> GpuChoice:
        gpu = parse_gpus(text)
        request = Request(self._settings.default_cpus_milli, self._settings.default_memory_mib, gpu)
        shape = grid.shape(request)
        free = bool(grid.fits(shape, usable).any())
        why_not = None if free or not len(usable) else refusal(grid, shape, int(usable[0]))
        return GpuChoice(text, f"{text} of a GPU" if "/" in text else str(gpu), free, why_not)
