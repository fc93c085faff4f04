"""Filters: conditions that a node must meet before a request fits there. Each filter explains its own refusal.

Called by explanations (explain/shortfalls.py) and by views of available resources. The pass uses the grid, which gives
no reasons. A property test checks that both agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from commonage.domain.nodes import Device, NodeState
from commonage.domain.reasons import waiting
from commonage.scheduler.model.grid import Grid, max_colocated, missing_labels
from commonage.scheduler.model.shapes import NEVER, Bools, Ints, Shape, model_matches


class Filter(Protocol):
    """One condition on a node. Each filter sees only the nodes that passed the filters before it."""

    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        """[n]: which of these nodes meet it."""
        ...

    def refusal(self, grid: Grid, shape: Shape, number: int) -> waiting.NodeShortfall | None:
        """Why the shape does not fit on node `number` by this condition; None if it does."""
        ...


class NodeReady:
    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        return grid.schedulable(shape, nodes)

    def refusal(self, grid: Grid, shape: Shape, number: int) -> waiting.NodeShortfall | None:
        node = grid.nodes[number]
        if node.state is NodeState.DRAINING:
            return waiting.NodeDraining(node=grid.label(number), by=node.drained_by)
        if node.state is not NodeState.READY:
            # Not the reason itself: its text may come from a daemon, so only admins see it, on the page of nodes.
            return (waiting.NodeUnavailable if node.state is NodeState.LOST else waiting.NodeFaulty)(
                node=grid.label(number)
            )
        if shape.request.on_full_disk or node.report.disk_pressure is None:
            return None
        return waiting.InsufficientDisk(node=grid.label(number), cause=node.report.disk_pressure)


class _CandidateSite:
    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        return grid.at_sites(shape, nodes)

    def refusal(self, grid: Grid, shape: Shape, number: int) -> waiting.NodeShortfall | None:
        sites = shape.request.sites
        is_candidate = sites is None or grid.nodes[number].site in sites
        return None if is_candidate else waiting.SiteExcluded(node=grid.label(number))


class _NodeLabels:
    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        return grid.has_labels(shape, nodes)

    def refusal(self, grid: Grid, shape: Shape, number: int) -> waiting.NodeShortfall | None:
        node = grid.nodes[number]
        missing = tuple(missing_labels(node, shape.request.labels))
        return waiting.NodeLabelsMismatch(node=grid.label(number), labels=missing) if missing else None


class _GpuModel:
    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        devices = usable(grid, shape, nodes)
        return np.ones(len(nodes), np.bool_) if shape.request.gpu is None else np.asarray(devices.any(axis=1), np.bool_)

    def refusal(self, grid: Grid, shape: Shape, number: int) -> waiting.NodeShortfall | None:
        gpu = shape.request.gpu
        if gpu is None or any(True for _ in matching(grid, shape, number)):
            return None
        return waiting.NoMatchingGpu(node=grid.label(number), model=gpu.model)


class _WholeDevices:
    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        gpu = shape.request.gpu
        if gpu is None or not gpu.whole:
            return np.ones(len(nodes), np.bool_)
        return np.asarray(np.count_nonzero(grid.devices_fit(shape, nodes), axis=1) >= gpu.whole, np.bool_)

    def refusal(self, grid: Grid, shape: Shape, number: int) -> waiting.NodeShortfall | None:
        gpu = shape.request.gpu
        if gpu is None or not gpu.whole:
            return None
        devices = [index for index, _ in matching(grid, shape, number)]
        fit = grid.devices_fit(shape, np.array([number]))[0]
        free = [index for index in devices if fit[index]]
        name = grid.label(number)
        if devices and all(device.parent_uuid is not None for _, device in matching(grid, shape, number)):
            return waiting.GpuIsPartitioned(node=name, model=gpu.model)
        if len(free) >= gpu.whole:
            return None
        return waiting.InsufficientGpus(
            node=name, model=gpu.model, requested=gpu.whole, free=len(free), present=len(devices)
        )


class _SameNumaNode:
    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        if not shape.request.one_numa or shape.devices < 2:
            return np.ones(len(nodes), np.bool_)
        together = max_colocated(grid.devices_fit(shape, nodes), grid.numa[nodes], shape)
        return np.asarray(together >= shape.devices, np.bool_)

    def refusal(self, grid: Grid, shape: Shape, number: int) -> waiting.NodeShortfall | None:
        nodes, gpu = np.array([number]), shape.request.gpu
        if gpu is None or self.passes(grid, shape, nodes)[0]:
            return None
        fit = grid.devices_fit(shape, nodes)
        together = int(max_colocated(fit, grid.numa[nodes], shape)[0])
        free, name = int(np.count_nonzero(fit)), grid.label(number)
        return waiting.InsufficientGpusOnNumaNode(
            node=name, model=gpu.model, requested=shape.devices, free=free, together=together
        )


class _PartOfDevice:
    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        if not shape.is_part:
            return np.ones(len(nodes), np.bool_)
        return np.asarray(grid.devices_fit(shape, nodes).any(axis=1), np.bool_)

    def refusal(self, grid: Grid, shape: Shape, number: int) -> waiting.NodeShortfall | None:
        gpu = shape.request.gpu
        if gpu is None or gpu.whole or grid.devices_fit(shape, np.array([number]))[0].any():
            return None
        free_mib, free_milli = grid.free_mib[number], grid.free_milli[number]

        def most(numbered: tuple[int, Device]) -> int:
            index, device = numbered
            return min(int(free_mib[index]), int(free_milli[index]) * device.memory_mib // 1000)

        index, device = max(matching(grid, shape, number), key=most)
        need = int(shape.need_mib[grid.kind[number, index]])
        asked, node = gpu.memory_on(device.memory_mib) if need >= NEVER else need, grid.label(number)
        if asked > free_mib[index]:
            return waiting.InsufficientGpuMemory(
                node=node,
                gpu=device.label,
                model=gpu.model,
                requested_mib=asked,
                free_mib=max(0, int(free_mib[index])),
                total_mib=device.memory_mib,
            )
        wanted = int(shape.need_milli[grid.kind[number, index]])
        return waiting.InsufficientGpuCompute(
            node=node,
            gpu=device.label,
            model=gpu.model,
            requested_milli=gpu.compute_on(device.memory_mib) if wanted >= NEVER else wanted,
            free_milli=int(free_milli[index]),
        )


class _Cpus:
    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        return np.asarray(grid.cpus[nodes] >= shape.cpus_milli, np.bool_)

    def refusal(self, grid: Grid, shape: Shape, number: int) -> waiting.NodeShortfall | None:
        if shape.cpus_milli <= grid.cpus[number]:
            return None
        return waiting.InsufficientCpu(
            node=grid.label(number),
            requested_cpus_milli=shape.cpus_milli,
            free_cpus_milli=max(0, int(grid.cpus[number])),
            total_cpus_milli=int(grid.cpus_total[number]),
        )


class _Memory:
    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        return np.asarray(grid.memory[nodes] >= shape.memory_mib, np.bool_)

    def refusal(self, grid: Grid, shape: Shape, number: int) -> waiting.NodeShortfall | None:
        if shape.memory_mib <= grid.memory[number]:
            return None
        return waiting.InsufficientMemory(
            node=grid.label(number),
            requested_mib=shape.memory_mib,
            free_mib=max(0, int(grid.memory[number])),
            total_mib=int(grid.memory_total[number]),
        )


FILTERS: tuple[Filter, ...] = (
    _CandidateSite(),
    NodeReady(),
    _NodeLabels(),
    _GpuModel(),
    _WholeDevices(),
    _SameNumaNode(),
    _PartOfDevice(),
    _Cpus(),
    _Memory(),
)


def refusal(grid: Grid, shape: Shape, number: int) -> waiting.NodeShortfall | None:
    """Why the shape does not fit on node `number` now, from the first filter that refuses; None if it fits."""
    return next(
        (reason for condition in FILTERS if (reason := condition.refusal(grid, shape, number)) is not None), None
    )


def usable(grid: Grid, shape: Shape, nodes: Ints) -> Bools:
    """[n, C]: the schedulable devices of these nodes that match the requested model."""
    gpu = shape.request.gpu
    of_model = [gpu is not None and model_matches(gpu, device.model) for _, device in grid.kinds]
    devices: Bools = np.array([*of_model, False])[grid.kind[nodes]]
    return devices


def matching(grid: Grid, shape: Shape, number: int) -> Iterator[tuple[int, Device]]:
    gpu = shape.request.gpu
    if gpu is not None:
        for index, device in enumerate(grid.nodes[number].report.devices):
            if not device.faults and model_matches(gpu, device.model):
                yield index, device
