"""Free and total resources of every node and device as arrays: fast for a thousand nodes.

The snapshot adds nodes and allocations; filters, policies and the pass read.

Axes: N nodes, C devices of the largest node. Memory and VRAM in MiB, CPUs and compute in thousandths.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from commonage.domain.nodes import Allocation, Device, Node, NodeKey, NodeState, Share
from commonage.domain.requests import Request, part_of
from commonage.domain.sites import SiteSet
from commonage.scheduler.model.shapes import Bools, DeviceKind, Ints, Shape, shape_of

MAX_SHAPES = 50_000  # cached shapes of requests
_COUNTERS = ("_changed_at", "_put_at", "_relabelled_at")
MAX_ROWS = 4096  # cached rows of one `Rows`; requests vary over months


class Grid:
    """Nodes by number. Only this class writes the arrays.

    `cpus`, `memory` [N] are free; `cpus_total`, `memory_total` [N] are the capacity; `ready` [N]: schedulable;
    `disk_pressure` [N]: its disk is nearly full, so it takes only requests with `Request.on_full_disk`; `free_mib`,
    `free_milli`, `total_mib`, `numa` [N, C]; `site` [N] is the number of the site in `site_names`; `kind` [N, C] is the
    number of the device's kind, -1 for no device or an unschedulable one. `changes` counts the changes of single nodes,
    for row caches; `epoch` counts events that invalidate all caches, `puts` counts reports of single nodes.
    """

    def __init__(self, nodes: Sequence[Node] = ()) -> None:
        self.nodes: list[Node] = []
        self.number: dict[NodeKey, int] = {}
        self.kinds: list[tuple[DeviceKind, Device]] = []
        self.site_names: list[str] = []
        self.changes = 0
        self.epoch = 0
        self.puts = 0
        self._kind_number: dict[DeviceKind, int] = {}
        self._site_number: dict[str, int] = {}
        self._device: list[dict[str, int]] = []
        self._allocated: list[dict[str, Allocation]] = []
        self._labels: list[set[tuple[str, str]]] = []
        self._carriers: defaultdict[tuple[str, str], set[int]] = defaultdict(set)  # by label: the nodes that carry it
        self._shapes: dict[Request, Shape] = {}
        self._last_shape = 0
        self._shape_arrays(0, 0)
        self.put(nodes)

    # --- nodes ----------------------------------------------------------------------------------------------------

    def put(self, nodes: Sequence[Node]) -> None:
        width = max([self.free_mib.shape[1], *(len(node.report.devices) for node in nodes)])
        fresh = [node for node in nodes if node.key not in self.number]
        if fresh or width > self.free_mib.shape[1]:
            self._shape_arrays(len(self.nodes) + len(fresh), width)
        for node in fresh:
            self.number[node.key] = len(self.nodes)
            self.nodes.append(node)
            self._allocated.append({})
            self._device.append({})
            self._labels.append(set())
        known = len(self.kinds)
        for node in nodes:
            self._write(self.number[node.key], node)
        if len(self.kinds) != known:
            self._shapes = {
                request: shape_of(shape.number, request, self.kinds) for request, shape in self._shapes.items()
            }
            self._invalidate()

    def remove(self, key: NodeKey) -> None:
        gone = self.number[key]
        nodes = [node for node in self.nodes if node.key != key]
        del self._allocated[gone]
        allocations = [allocation for allocated in self._allocated for allocation in allocated.values()]
        self.nodes, self.number, self._allocated, self._device, self._labels = [], {}, [], [], []
        self._carriers.clear()
        self._shape_arrays(0, 0)
        self.put(nodes)
        for allocation in allocations:
            self.take(allocation)

    def _shape_arrays(self, n: int, c: int) -> None:
        def resize(name: str, fill: int, shape: tuple[int, ...], dtype: type = np.int64) -> None:
            new: npt.NDArray[Any] = np.full(shape, fill, dtype)
            old = getattr(self, name, None)
            if old is not None and n:
                new[tuple(slice(length) for length in old.shape)] = old
            setattr(self, name, new)

        self.cpus: Ints
        self.memory: Ints
        self.cpus_total: Ints
        self.site: Ints
        self.memory_total: Ints
        self.free_mib: Ints
        self.free_milli: Ints
        self.total_mib: Ints
        self.kind: Ints
        self.numa: Ints
        self.ready: Bools
        self.disk_pressure: Bools
        self._changed_at: Ints  # [N]: `changes` after the last change of each node
        self._put_at: Ints  # [N]: `puts` after the last report of each node
        self._relabelled_at: Ints  # [N]: `puts` after the last change of its labels
        for name in ("cpus", "memory", "cpus_total", "memory_total", "site", *_COUNTERS):
            resize(name, 0, (n,))
        for name in ("ready", "disk_pressure"):
            resize(name, 0, (n,), np.bool_)
        for name in ("free_mib", "free_milli", "total_mib"):
            resize(name, 0, (n, c))
        resize("kind", -1, (n, c))
        resize("numa", -1, (n, c))
        self._invalidate()

    def _write(self, number: int, node: Node) -> None:
        report = node.report
        if [device.uuid for device in self.nodes[number].report.devices] != [device.uuid for device in report.devices]:
            self._invalidate()
        self.nodes[number] = node
        self.site[number] = self._number_of_site(node.site)
        self.ready[number] = node.state is NodeState.READY and report.disk_pressure is None
        self.disk_pressure[number] = node.state is NodeState.READY and report.disk_pressure is not None
        self.cpus[number] = self.cpus_total[number] = report.cpus_milli
        self.memory[number] = self.memory_total[number] = report.memory_mib
        self.kind[number] = self.numa[number] = -1
        self.free_mib[number] = self.free_milli[number] = self.total_mib[number] = 0
        self._device[number] = {device.uuid: index for index, device in enumerate(report.devices)}
        for index, device in enumerate(report.devices):
            self.free_mib[number, index] = self.total_mib[number, index] = device.memory_mib
            self.free_milli[number, index] = 1000
            self.numa[number, index] = -1 if device.numa is None else device.numa
            if not device.faults:
                self.kind[number, index] = self._number_of_kind(device)
        for allocation in self._allocated[number].values():
            self._apply(allocation, 1)
        self.touch(number)
        self.puts += 1
        self._put_at[number] = self.puts
        self._relabel(number, labels_of(node))

    def _relabel(self, number: int, labels: set[tuple[str, str]]) -> None:
        before = self._labels[number]
        if labels == before:
            return
        for label in before - labels:
            self._carriers[label].discard(number)
            if not self._carriers[label]:
                del self._carriers[label]
        for label in labels - before:
            self._carriers[label].add(number)
        self._labels[number] = labels
        self._relabelled_at[number] = self.puts

    def _number_of_site(self, site: str) -> int:
        number = self._site_number.setdefault(site, len(self.site_names))
        if number == len(self.site_names):
            self.site_names.append(site)
        return number

    def _number_of_kind(self, device: Device) -> int:
        kind = DeviceKind.of(device)
        number = self._kind_number.get(kind)
        if number is None:
            number = self._kind_number[kind] = len(self.kinds)
            self.kinds.append((kind, device))
        return number

    def _invalidate(self) -> None:
        self.epoch += 1

    def touch(self, number: int) -> None:
        self.changes += 1
        self._changed_at[number] = self.changes

    def changed_since(self, changes: int) -> Ints:
        """The nodes that changed since the counter `changes` had this value, in ascending order."""
        return (self._changed_at > changes).nonzero()[0]  # faster than `flatnonzero`

    def put_since(self, puts: int) -> Ints:
        """The nodes that reported since the counter `puts` had this value, in ascending order."""
        return (self._put_at > puts).nonzero()[0]

    def relabelled_since(self, puts: int) -> Ints:
        """The nodes among them with changed labels."""
        return (self._relabelled_at > puts).nonzero()[0]

    # --- allocations ----------------------------------------------------------------------------------------------

    def take(self, allocation: Allocation) -> None:
        number = self.number.get(allocation.node_key)
        if number is not None and allocation.attempt_id not in self._allocated[number]:
            self._allocated[number][allocation.attempt_id] = allocation
            self._apply(allocation, 1)

    def give(self, allocation: Allocation) -> None:
        number = self.number.get(allocation.node_key)
        if number is not None and self._allocated[number].pop(allocation.attempt_id, None) is not None:
            self._apply(allocation, -1)

    def _apply(self, allocation: Allocation, sign: int) -> None:
        number = self.number[allocation.node_key]
        self.cpus[number] -= sign * allocation.cpus_milli
        self.memory[number] -= sign * allocation.memory_mib
        for share in allocation.shares:
            index = self._device[number].get(share.device_uuid)
            if index is not None:
                self.free_mib[number, index] -= sign * share.memory_mib
                self.free_milli[number, index] -= sign * share.compute_milli
        self.touch(number)

    @contextmanager
    def reduced(self, number: int, row: Ints) -> Iterator[None]:
        """Inside the context, a node has `row` less free: CPUs, memory, VRAM of each device, compute of each device."""
        self._reduce(number, row)
        try:
            yield
        finally:
            self._reduce(number, -row)

    def _reduce(self, number: int, row: Ints) -> None:
        devices = self.kind.shape[1]
        self.cpus[number] -= row[0]
        self.memory[number] -= row[1]
        self.free_mib[number] -= row[2 : 2 + devices]
        self.free_milli[number] -= row[2 + devices :]
        self.touch(number)

    def allocated_on(self, number: int) -> Sequence[Allocation]:
        return list(self._allocated[number].values())

    def device(self, number: int, uuid: str) -> int | None:
        """The index of the device on that node; None if it has no such device."""
        return self._device[number].get(uuid)

    def label(self, number: int) -> str:
        return self.nodes[number].key.label

    # --- requests -------------------------------------------------------------------------------------------------

    def shape(self, request: Request) -> Shape:
        """The shape of a request; the same object for equal requests until the kinds of devices change."""
        shape = self._shapes.get(request)
        if shape is None:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            shape = self._shapes[request] = shape_of(self._last_shape, request, self.kinds)
            self._last_shape += 1
        return shape

    def has_labels(self, shape: Shape, nodes: Ints) -> Bools:
        """[len(nodes)]: which nodes carry the labels that the request wants."""
        wanted = shape.request.labels
        if shape.request.sites is not None:  # they include the label `site`
            wanted = tuple(label for label in wanted if label[0] != "site")
        if not wanted:
            return np.ones(len(nodes), np.bool_)
        carriers = set.intersection(*(self._carriers_of(key, value) for key, value in wanted))
        return np.array([number in carriers for number in nodes.tolist()], np.bool_)

    def _carriers_of(self, key: str, value: str) -> set[int]:
        """The nodes that carry the label; one of `site=north|south` is enough. The caller must not change the set."""
        labels = ((key, alternative) for alternative in value.split("|"))
        found = [self._carriers[label] for label in labels if label in self._carriers]
        return found[0] if len(found) == 1 else set[int]().union(*found)

    def at_sites(self, shape: Shape, nodes: Ints) -> Bools:
        """[len(nodes)]: which nodes are at a candidate site of the request."""
        sites = shape.request.sites
        if sites is None:
            return np.ones(len(nodes), np.bool_)
        candidates: Bools = self.among(sites)[self.site[nodes]]
        return candidates

    def among(self, sites: SiteSet) -> Bools:
        """[sites]: which sites, by number, are in the set."""
        return np.array([name in sites for name in self.site_names], np.bool_)

    def admits(self, shape: Shape, nodes: Ints) -> Bools:
        """[len(nodes)]: which nodes are open to the request: at its sites, with its labels."""
        return self.at_sites(shape, nodes) & self.has_labels(shape, nodes)

    def schedulable(self, shape: Shape, nodes: Ints) -> Bools:
        """[len(nodes)]: which nodes are schedulable for this shape, whatever is free."""
        ready: Bools = self.ready[nodes]
        return ready | self.disk_pressure[nodes] if shape.request.on_full_disk else ready

    def devices_fit(self, shape: Shape, nodes: Ints) -> Bools:
        """[len(nodes), C]: which devices have the resources that the shape takes from one."""
        kind = self.kind[nodes]
        enough: Bools = (self.free_mib[nodes] >= shape.need_mib[kind]) & (
            self.free_milli[nodes] >= shape.need_milli[kind]
        )
        return enough

    def fits(self, shape: Shape, nodes: Ints) -> Bools:
        fit: Bools = self.schedulable(shape, nodes) & (self.cpus[nodes] >= shape.cpus_milli)
        fit &= self.memory[nodes] >= shape.memory_mib
        return self._with_devices(fit, shape, nodes, self.devices_fit)

    def fits_empty(self, shape: Shape, nodes: Ints) -> Bools:
        return self.schedulable(shape, nodes) & self.could_fit(shape, nodes)

    def could_fit(self, shape: Shape, nodes: Ints) -> Bools:
        """[len(nodes)]: the same, regardless of node states."""
        fit: Bools = self.cpus_total[nodes] >= shape.cpus_milli
        fit &= self.memory_total[nodes] >= shape.memory_mib
        return self._with_devices(fit, shape, nodes, self._devices_large_enough)

    def _devices_large_enough(self, shape: Shape, nodes: Ints) -> Bools:
        kind = self.kind[nodes]
        enough: Bools = (self.total_mib[nodes] >= shape.need_mib[kind]) & (shape.need_milli[kind] <= 1000)
        return enough

    def _with_devices(self, fit: Bools, shape: Shape, nodes: Ints, devices: Callable[[Shape, Ints], Bools]) -> Bools:
        """`fit` [len(nodes)], restricted to nodes that admit it and have enough of the `devices` [len(nodes), C]."""
        if shape.is_restricted:
            fit &= self.admits(shape, nodes)
        if shape.devices:
            fit &= max_colocated(devices(shape, nodes), self.numa[nodes], shape) >= shape.devices
        return fit

    def allocation(self, shape: Shape, number: int, devices: Sequence[int], attempt_id: str, now: float) -> Allocation:
        node = self.nodes[number]
        shares = tuple(share_of(node.report.devices[index], shape) for index in devices)
        return Allocation(attempt_id, node.site, node.name, shape.cpus_milli, shape.memory_mib, shares, now)


def missing_labels(node: Node, wanted: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The labels that a node does not carry. One of `site=north|south` is enough."""
    labels = labels_of(node)
    return [
        (key, value)
        for key, value in wanted
        if not any((key, alternative) in labels for alternative in value.split("|"))
    ]


_OWN_LABELS = frozenset({"node", "site", "engine"})


def labels_of(node: Node) -> set[tuple[str, str]]:
    """A node that reports the name of another site or node as a label of its own does not get their workloads."""
    return {
        *((key, value) for key, value in node.report.labels if key not in _OWN_LABELS),
        ("node", node.name),
        ("node", str(node.key)),
        ("site", node.site),
        ("engine", node.engine),
    }


def max_colocated(devices: Bools, numa: Ints, shape: Shape) -> Ints:
    """[n]: the number of fitting devices [n, C] that a shape can have together: all, or those of one NUMA node."""
    if not shape.request.one_numa or shape.devices < 2:
        return np.asarray(np.count_nonzero(devices, axis=1), np.int64)
    together = [np.count_nonzero(devices & (numa == place), axis=1) for place in np.unique(numa)]
    return np.asarray(np.max(together, axis=0), np.int64) if together else np.zeros(len(devices), np.int64)


def share_of(device: Device, shape: Shape) -> Share:
    gpu = shape.request.gpu
    part = part_of(device, gpu) if gpu is not None else None
    if part is None:
        raise ValueError(f"{shape.request} takes nothing of {device.uuid}")
    return Share(
        device_uuid=device.uuid,
        device_index=device.index,
        model=device.model,
        memory_mib=part.memory_mib,
        compute_milli=part.compute_milli,
        whole=part.whole,
        device_memory_mib=device.memory_mib,
        simulated=device.simulated,
        isolation=device.isolation,
    )


class Row:
    """Caches a value for every node. Computes it when it is asked for, and again only after the node has changed.

    `compute(nodes)` returns the values of these nodes, [len(nodes), ...]; there may be none.
    """

    def __init__(self, grid: Grid, compute: Callable[[Ints], npt.NDArray[Any]]) -> None:
        self._grid, self._compute = grid, compute
        self._epoch, self._at = -1, 0
        self._row: npt.NDArray[Any] | None = None
        self._known: Bools = np.zeros(0, np.bool_)  # [N]: whether `_row` was right after `_at` changes

    def of(self, among: Bools | None = None) -> npt.NDArray[Any]:
        """[N, ...], read-only until the grid changes. Undefined where `among` [N] is False; None: nowhere."""
        known = self._still_known()
        return self._with((~known if among is None else among & ~known).nonzero()[0])

    def at(self, nodes: Ints) -> npt.NDArray[Any]:
        """[len(nodes), ...]: the values of these nodes; computes no others."""
        known = self._still_known()
        values: npt.NDArray[Any] = self._with(nodes[~known[nodes]])[nodes]
        return values

    def _still_known(self) -> Bools:
        grid = self._grid
        if self._epoch != grid.epoch:
            self._row, self._known = None, np.zeros(len(grid.nodes), np.bool_)
        elif self._at != grid.changes:
            self._known[grid.changed_since(self._at)] = False
        self._epoch, self._at = grid.epoch, grid.changes
        return self._known

    def _with(self, missing: Ints) -> npt.NDArray[Any]:
        """The row, once it has the values of these nodes."""
        if len(missing) or self._row is None:
            values = self._compute(missing)
            if self._row is None:
                self._row = np.zeros((len(self._grid.nodes), *values.shape[1:]), values.dtype)
            self._row[missing] = values
            self._known[missing] = True
        return self._row


class Rows:
    """A row over all nodes for each shape. `compute(shape, nodes)` gives the values for these nodes."""

    def __init__(self, grid: Grid, compute: Callable[[Shape, Ints], npt.NDArray[Any]]) -> None:
        self._grid, self._compute = grid, compute
        self._rows: dict[int, Row] = {}
        self._epoch = grid.epoch

    def of(self, shape: Shape, among: Bools | None = None) -> npt.NDArray[Any]:
        """As `Row.of`."""
        return self._for(shape).of(among)

    def at(self, shape: Shape, nodes: Ints) -> npt.NDArray[Any]:
        """As `Row.at`."""
        return self._for(shape).at(nodes)

    def _for(self, shape: Shape) -> Row:
        if self._epoch != self._grid.epoch:  # the numbers of shapes may mean others now
            self._rows.clear()
            self._epoch = self._grid.epoch
        row = self._rows.get(shape.number)
        if row is None:
            if len(self._rows) >= MAX_ROWS:
                self._rows.clear()
            row = self._rows[shape.number] = Row(self._grid, partial(self._compute, shape))
        return row

    def clear(self) -> None:
        self._rows.clear()
