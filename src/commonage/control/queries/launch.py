"""Content of the launch form: what a user may request, and what is free now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonage.control.catalogue.environments import Environments, EnvironmentView
from commonage.control.settings import ControlSettings
from commonage.control.state.live_state import LiveState
from commonage.control.tenants.membership import tenants_of
from commonage.domain.nodes import Device, NodeState
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons import Reason
from commonage.domain.requests import GpuRequest, Request, parse_gpus
from commonage.domain.tenants import PriorityClass, Tenant
from commonage.scheduler.fit.filters import refusal
from commonage.scheduler.model.grid import Grid


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


class Launch:
    def __init__(self, live_state: LiveState, environments: Environments, settings: ControlSettings) -> None:
        self._live_state, self._environments, self._settings = live_state, environments, settings

    def options(self, who: Principal) -> LaunchView:
        who.need(Scope.READ)
        grid = self._live_state.snapshot.grid
        reports = [node.report for node in self._live_state.nodes.values() if node.state is not NodeState.LOST]
        devices = [device for report in reports for device in report.devices if not device.faults]
        return LaunchView(
            environments=tuple(self._environments.views(who)),
            gpu_choices=self._choices(grid, devices),
            models=tuple(sorted({device.model for device in devices})),
            max_cpus_milli=max((report.cpus_milli for report in reports), default=0),
            max_memory_mib=max((report.memory_mib for report in reports), default=0),
            max_vram_mib=max((device.memory_mib for device in devices), default=0),
            free_cpus_milli=int(grid.cpus[grid.ready].max(initial=0)),
            free_memory_mib=int(grid.memory[grid.ready].max(initial=0)),
            simulated_gpus=self._live_state.simulated_gpus,
            tenants=tuple(tenants_of(who.groups, self._settings)),
            priority_classes=tuple(
                one for one in self._settings.priority_classes if who.is_admin or not one.for_admins
            ),
        )

    def _choices(self, grid: Grid, devices: Sequence[Device]) -> tuple[GpuChoice, ...]:
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
        return tuple(self._choice(text, grid) for text in texts)

    def _choice(self, text: str, grid: Grid) -> GpuChoice:
        gpu = parse_gpus(text)
        request = Request(self._settings.default_cpus_milli, self._settings.default_memory_mib, gpu)
        shape = grid.shape(request)
        free = bool(grid.fits(shape, np.arange(len(grid.nodes))).any())
        why_not = None if free or not grid.nodes else refusal(grid, shape, 0)
        return GpuChoice(text, f"{text} of a GPU" if "/" in text else _title(gpu), free, why_not)


def _title(gpu: GpuRequest | None) -> str:
    return "no GPU" if gpu is None else str(gpu)
