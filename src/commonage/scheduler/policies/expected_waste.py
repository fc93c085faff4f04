"""`expected-waste`: the node and device that add least to the GPU capacity that is expected to be wasted.

Each device is looked up in tables (waste_tables.py) by its idle share and its part of the node's free CPUs, which are
divided among the devices in proportion to their idle shares. Memory counts as the CPUs that usually come with it. The
tables rest on the typical workloads, learned from arrivals, and on the number of devices that each still fits. They are
rebuilt when the idle capacity or the mix has changed enough. Devices of a model that workloads are bound to, and that
may run out, have a price; so have the last places of a typical workload (places.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commonage.scheduler.model.grid import Grid, Row, Rows, max_colocated
from commonage.scheduler.model.shapes import NEVER, Bools, Floats, Ints, Shape
from commonage.scheduler.policies.mix import MixEstimator, WorkloadMix, mix_distance
from commonage.scheduler.policies.places import RARE, Places, may_run_out, rare_shapes
from commonage.scheduler.policies.scored import first_fitting
from commonage.scheduler.policies.waste_tables import END, FINE, PARTS, WIDTH, Demand, step_for, table

PART = 1000 // PARTS  # thousandths in one part of a device
OPEN = 30.0
"""The cost of using a node on which nothing runs, or of breaking a whole device, in thousandths of a device: near ties
go to nodes and devices in use.
"""
SCARCE = 0.3
"""The price of a scarce device or place, as a part of it. At 1, workloads that would waste devices of other kinds
avoid scarce ones too, which costs 0.5 points under overload.
"""
HORIZON = 2.0
"""The expected demand until the end, in idle capacities, exponential: a kind of device is scarce if the demand that is
bound to it may exceed it by then.
"""
PRICE_CHANGED = 0.2
"""New prices of places are used when one has changed by this part, and by the price of a new node."""
REACH, NEARLY_ALL = 2.0, 0.98
"""The tables extend to the CPUs that this part of the workloads need to fill a device with equal ones."""
TIDY = 1e-6
"""For workloads without a GPU, among nodes with equal waste: the price of each free thousandth of a CPU left there."""
IDLE_CHANGED = 0.2
"""The tables are rebuilt when the idle capacity of all devices has changed by this part, and by a hundredth of all,"""
MIX_CHANGED = 0.1  # or when this part of the typical workloads has changed
UNJUDGED = 1e9  # thousandths of a CPU per MiB where nothing is known of workloads' memory: memory then never matters
CHECK_EVERY = 32  # the need to rebuild is checked after this number of node changes


class ExpectedWaste:
    def __init__(self, grid: Grid, mix: WorkloadMix, seed: int) -> None:
        self._grid = grid
        self._arrivals = MixEstimator(mix)
        self._mix = mix
        self._epoch = self._checked_at = self._folds = -1
        self._idle, self._cpus_per_mib = 0.0, UNJUDGED
        self._taken_by: dict[int, Ints] = {}

    def arrived(self, shape: Shape) -> None:
        self._arrivals.add(shape.request)

    def costs(self, shape: Shape, among: Bools | None = None) -> Floats:
        """[N]: the expected additional waste in thousandths of a device, plus the prices of new nodes and of places."""
        self._refresh_tables()
        costs: Floats = self._rows.of(shape, among)[:, 0]
        return costs + self._place_prices.of(shape, among) if len(self._dear) else costs

    def devices(self, shape: Shape, node: int) -> Sequence[int]:
        if shape.is_part:
            self._refresh_tables()
            return [int(self._rows.at(shape, np.array([node]))[0, 1])]
        return first_fitting(self._grid, shape, node)

    # --- tables ---------------------------------------------------------------------------------------------------

    def _refresh_tables(self) -> None:
        grid = self._grid
        fresh = self._epoch != grid.epoch
        if not fresh and self._folds == self._arrivals.folds and grid.changes - self._checked_at < CHECK_EVERY:
            return
        everywhere = np.arange(len(grid.nodes))
        idle = self._idle_of(everywhere)
        total = float(idle.sum())
        is_idle_changed = abs(total - self._idle) > max(IDLE_CHANGED * self._idle, 10.0 * idle.size)
        is_mix_changed = self._folds != self._arrivals.folds and self._mix_changed()
        self._checked_at, self._folds = grid.changes, self._arrivals.folds
        if fresh or is_idle_changed or is_mix_changed:
            self._epoch, self._idle, self._mix = grid.epoch, total, self._arrivals.mix()
            self._folds = self._arrivals.folds
            self._make_tables(everywhere)
            self._state, self._supply = Row(grid, self._state_of), Row(grid, self._places_of)
            self._rows = Rows(grid, self._compute)
            self._use_prices(self._prices_now(total))
        else:
            prices = self._prices_now(total)
            if (abs(prices - self._prices) > np.maximum(PRICE_CHANGED * self._prices, OPEN)).any():
                self._use_prices(prices)

    def _prices_now(self, idle: float) -> Floats:
        """[K]: the price of a place of each typical or rare workload."""
        supply = self._supply.of().sum(axis=0)
        return SCARCE * self._places.prices(supply, idle)

    def _use_prices(self, prices: Floats) -> None:
        self._prices = prices
        self._dear = np.flatnonzero(prices)
        self._dear_places = self._places.only(self._dear)
        self._place_prices = Rows(self._grid, self._price_of_places)

    def _mix_changed(self) -> bool:
        """True if the typical workloads, or the amounts of memory they take, have changed enough."""
        with_state = min(self._arrivals.cpus_per_mib(), UNJUDGED)
        return (
            abs(with_state - self._cpus_per_mib) > MIX_CHANGED * with_state
            or mix_distance(self._mix, self._arrivals.mix()) > MIX_CHANGED
        )

    def _make_tables(self, everywhere: Ints) -> None:
        grid = self._grid
        mix = self._mix
        self._cpus_per_mib = min(self._arrivals.cpus_per_mib(), UNJUDGED)
        pairs = zip(mix.requests, mix.weights, strict=True)
        asked = [(grid.shape(request), weight) for request, weight in pairs if request.gpu is not None]
        rates = np.array([weight for _, weight in asked])
        fits = np.array([self._devices_for(shape, everywhere) + 1.0 for shape, _ in asked])
        rates = rates / (rates.sum() or 1.0) * fits.max(initial=1.0) / fits
        devices = np.array([shape.devices for shape, _ in asked], np.int64)
        cpus = np.array([shape.cpus_milli for shape, _ in asked]) / np.maximum(devices, 1)
        most = grid.kind.shape[1]
        taken = self._shares([shape for shape, _ in asked])
        self._scarcity = self._scarcity_of(everywhere, asked, taken)
        self._places = self._make_places(asked, taken)
        parts = np.where(taken >= 1, PARTS, np.clip((taken * PARTS + 1e-6).astype(np.int64), 1, PARTS - 1))
        fill = cpus * (PARTS // parts.min(axis=0, initial=PARTS))
        step = step_for(REACH * _quantile(fill, rates, NEARLY_ALL))
        made: dict[bytes, int] = {}
        tables = [np.zeros((PARTS + 1 + most, WIDTH))]
        self._offset = np.zeros(len(grid.kinds) + 1, np.int64)
        for kind, usable in enumerate(taken <= 1):
            key = np.where(usable, parts[kind], 0).tobytes()
            if key not in made:
                made[key] = len(tables)
                demand = Demand(parts[kind, usable], devices[usable], cpus[usable], rates[usable])
                tables.append(table(demand, step, END, most))
            self._offset[kind] = made[key] * tables[0].size
        self._table = np.concatenate(tables).ravel()
        self._per_cpu = FINE / step

    def _shares(self, shapes: Sequence[Shape]) -> Floats:
        """[kinds, len(shapes)]: the part of a device that each takes; above 1 if it never fits."""
        kinds = enumerate(self._grid.kinds)
        shares = [[_share(shape, kind, device.memory_mib) for shape in shapes] for kind, (device, _) in kinds]
        return np.array(shares).reshape(len(self._grid.kinds), len(shapes))

    def _make_places(self, asked: Sequence[tuple[Shape, float]], taken: Floats) -> Places:
        """The places of the typical workloads, and of rare ones."""
        grid = self._grid
        rare = rare_shapes(grid, np.minimum(grid.cpus_total, grid.memory_total * self._cpus_per_mib))
        demand = RARE * sum(weight * shape.devices for shape, weight in asked) / max(len(rare), 1)
        rates = [weight for _, weight in asked] + [demand / shape.devices for shape in rare]
        shapes = [shape for shape, _ in asked] + rare
        return Places.of(shapes, np.hstack((taken, self._shares(rare))), np.array(rates))

    def _scarcity_of(self, nodes: Ints, asked: Sequence[tuple[Shape, float]], taken: Floats) -> Floats:
        """[kinds + 1]: the probability that the demand bound to the model of a kind exceeds what is idle of it.

        `taken` [kinds, K]: the part of a device that each typical workload takes, above 1 if it never fits. A bound
        workload demands the same part of each kind that it fits, minus the part that it would demand if it fitted all
        kinds.
        """
        kind = self._grid.kind[nodes]
        idle = np.bincount(kind.ravel() + 1, self._idle_of(nodes).ravel(), minlength=len(taken) + 1)[1:]
        usable = taken <= 1
        size = np.where(usable, taken, 1.0).min(axis=0, initial=1.0) * usable.any(axis=0)
        demand = size * np.array([weight * shape.devices for shape, weight in asked])
        bound = np.array([bool(shape.request.gpu and shape.request.gpu.model) for shape, _ in asked], np.bool_)
        open_to = usable.T @ idle
        excess = np.where(bound & (open_to > 0), idle.sum() / np.maximum(open_to, 1.0) - 1, 0.0)
        ratio = usable @ (demand / (demand.sum() or 1.0) * excess)
        return np.append(may_run_out(np.ones(len(ratio)), np.maximum(HORIZON * ratio, 1e-3)), 0.0)

    def _devices_for(self, shape: Shape, nodes: Ints) -> int:
        """The number of devices on which it fits now, each considered alone, without regard to memory."""
        grid = self._grid
        fitting = np.count_nonzero(grid.devices_fit(shape, nodes), axis=1)
        fits = (fitting >= shape.devices) & (grid.cpus[nodes] >= shape.cpus_milli)
        return int(fitting[fits].sum())

    # --- nodes ----------------------------------------------------------------------------------------------------

    def _idle_of(self, nodes: Ints) -> Ints:
        """[n, C]: idle thousandths of each device: the smaller of idle VRAM and idle compute."""
        grid = self._grid
        vram = grid.free_mib[nodes] * 1000 // np.maximum(grid.total_mib[nodes], 1)
        idle: Ints = np.where(grid.kind[nodes] >= 0, np.minimum(grid.free_milli[nodes], vram), 0)
        return idle

    def _cpus_for_devices(self, shape: Shape | None, nodes: Ints) -> Floats:
        """[n]: the CPUs left with the shape placed, or the CPUs that usually come with the memory left, if less."""
        cpus, memory = self._grid.cpus[nodes], self._grid.memory[nodes]
        if shape is not None:
            cpus, memory = cpus - shape.cpus_milli, memory - shape.memory_mib
        left: Floats = np.minimum(cpus, memory * self._cpus_per_mib)
        return left

    def _waste(self, offset: Ints, row: Ints, idle: Ints, cpus: Floats) -> Floats:
        """[n, C]: the waste of devices in these table rows, with `cpus` [n, 1] for each idle thousandth."""
        column = np.minimum(cpus * idle + 0.5, WIDTH - 1).astype(np.int64)
        return self._table.take(offset + row * WIDTH + column)

    def _state_of(self, nodes: Ints) -> Floats:
        """[n, 2 C + 4]: idle capacity and row of each device; then total idle capacity, scarcity, waste, and the price
        of opening.
        """
        grid = self._grid
        idle = self._idle_of(nodes)
        whole = idle == 1000
        row = idle // PART
        row += whole * np.count_nonzero(whole, axis=1)[:, None]
        total = idle.sum(axis=1)
        kind = grid.kind[nodes]
        per_idle = self._cpus_for_devices(None, nodes) * self._per_cpu / np.maximum(total, 1)
        waste = self._waste(self._offset[kind], row, idle, per_idle[:, None]).sum(axis=1)
        unused = (grid.cpus[nodes] == grid.cpus_total[nodes]) & (grid.memory[nodes] == grid.memory_total[nodes])
        scarcity = self._scarcity[kind].max(axis=1, initial=0.0)
        return np.column_stack((idle, row, total, scarcity, waste, unused * OPEN))

    def _places_of(self, nodes: Ints) -> Ints:
        """[n, K]: the places of typical and rare workloads."""
        return self._places.count(self._grid.kind[nodes], self._idle_of(nodes), self._cpus_for_devices(None, nodes))

    # --- costs ----------------------------------------------------------------------------------------------------

    def _compute(self, shape: Shape, nodes: Ints) -> Floats:
        """[n, 2]: the cost, and for a part of a device the best device."""
        grid = self._grid
        result = np.zeros((len(nodes), 2))
        result[:, 0] = np.inf
        fits = grid.schedulable(shape, nodes) & (grid.cpus[nodes] >= shape.cpus_milli)
        fits &= grid.memory[nodes] >= shape.memory_mib
        if shape.is_restricted:
            fits &= grid.admits(shape, nodes)
        fitting = None
        if shape.devices:
            fitting = grid.devices_fit(shape, nodes)
            fits &= max_colocated(fitting, grid.numa[nodes], shape) >= shape.devices
            fitting = fitting[fits]
        where = nodes[fits]
        if not len(where):
            return result
        state = self._state.at(where)
        if fitting is None:
            costs = self._after_whole(shape, where, state, np.zeros((len(where), grid.kind.shape[1]), np.bool_))
            costs += TIDY * grid.cpus[where]
        elif shape.is_part:
            after = self._after_part(shape, where, state, fitting)
            best = after.argmin(axis=1)
            costs = after[np.arange(len(where)), best]
            result[fits, 1] = best
        else:
            costs = self._after_whole(shape, where, state, _first(fitting, shape.devices))
        costs -= state[:, -2]
        scarcity = state[:, -3]
        if shape.devices and scarcity.any():
            size = self._taken(shape)[grid.kind[where].max(axis=1)] if shape.is_part else 1000 * shape.devices
            # On a scarce kind, waste also counts double: it is lost to those who can go nowhere else.
            costs += scarcity * (costs + SCARCE * size)
        result[fits, 0] = costs + state[:, -1]
        return result

    def _price_of_places(self, shape: Shape, nodes: Ints) -> Floats:
        """[n]: the price of the places that are gone once the shape is placed; 0 where it does not fit."""
        grid = self._grid
        price = np.zeros(len(nodes))
        costs = self._rows.at(shape, nodes)
        fits = np.flatnonzero(np.isfinite(costs[:, 0]))
        places = self._supply.at(nodes[fits])[:, self._dear]
        some = np.flatnonzero(places.any(axis=1))
        fits, where = fits[some], nodes[fits[some]]
        if len(where):
            idle = self._state.at(where)[:, : grid.kind.shape[1]].astype(np.int64)
            if shape.is_part:
                each, best = np.arange(len(where)), costs[fits, 1].astype(np.int64)
                idle[each, best] = np.maximum(idle[each, best] - self._taken(shape)[grid.kind[where, best]], 0)
            elif shape.devices:
                idle[_first(grid.devices_fit(shape, where), shape.devices)] = 0
            left = self._dear_places.count(grid.kind[where], idle, self._cpus_for_devices(shape, where))
            price[fits] = (places[some] - left) @ self._prices[self._dear]
        return price

    def _after_whole(self, shape: Shape, nodes: Ints, state: Floats, taken: Bools) -> Floats:
        """[n]: the waste of each node after all of `taken` [n, C] are allocated as whole devices."""
        most = taken.shape[1]
        idle = np.where(taken, 0, state[:, :most]).astype(np.int64)
        row = np.where(taken, 0, state[:, most : 2 * most]).astype(np.int64)
        row -= (row > PARTS) * np.count_nonzero(taken, axis=1)[:, None]
        per_idle = self._cpus_for_devices(shape, nodes) * self._per_cpu / np.maximum(idle.sum(axis=1), 1)
        waste = self._waste(self._offset[self._grid.kind[nodes]], row, idle, per_idle[:, None])
        total: Floats = waste.sum(axis=1)
        return total

    def _after_part(self, shape: Shape, nodes: Ints, state: Floats, fitting: Bools) -> Floats:
        """[n, C]: the waste of nodes once a part of each device in turn is taken; inf for devices without room."""
        most = fitting.shape[1]
        kind = self._grid.kind[nodes]
        offset = self._offset[kind]
        idle, row = state[:, :most].astype(np.int64), state[:, most : 2 * most].astype(np.int64)
        left = np.maximum(idle - self._taken(shape)[kind], 0)
        # A node's devices are nearly always of one kind, so the idle capacity afterwards is the same for each.
        idle_then = state[:, -4] - (idle - left).max(axis=1, initial=0, where=fitting)
        per_idle = (self._cpus_for_devices(shape, nodes) * self._per_cpu / np.maximum(idle_then, 1))[:, None]
        whole = row > PARTS
        others = self._waste(offset, row, idle, per_idle)
        rest = others.sum(axis=1)[:, None] - others
        if whole.any():
            others_then = self._waste(offset, row - whole, idle, per_idle)  # if one of the whole devices is broken
            rest = np.where(whole, others_then.sum(axis=1)[:, None] - others_then + OPEN, rest)
        return np.where(fitting, self._waste(offset, left // PART, left, per_idle) + rest, np.inf)

    def _taken(self, shape: Shape) -> Ints:
        """[kinds + 1]: thousandths of a device of each kind that a part takes, of VRAM or compute, the larger."""
        known = self._taken_by.get(shape.number)
        if known is None or len(known) != len(shape.need_mib):
            sizes = np.array([device.memory_mib for device, _ in self._grid.kinds] + [1], np.int64)
            vram = -(-np.minimum(shape.need_mib, sizes) * 1000 // np.maximum(sizes, 1))
            known = np.maximum(np.minimum(shape.need_milli, 1000), vram)
            self._taken_by[shape.number] = known
        return known


def _first(fitting: Bools, count: int) -> Bools:
    """[n, C]: the first `count` of the fitting devices of each node."""
    first: Bools = fitting & (fitting.cumsum(axis=1) <= count)
    return first


def _share(shape: Shape, kind: int, memory_mib: int) -> float:
    """The part of such a device that a shape takes, of VRAM or compute, the larger; above 1 if it never fits."""
    if shape.need_mib[kind] >= NEVER:
        return 2.0
    return max(float(shape.need_milli[kind]) / 1000, float(shape.need_mib[kind]) / max(memory_mib, 1))


def _quantile(values: Floats, weights: Floats, part: float) -> float:
    """The value below which this part of the weight lies; 0 for no values."""
    if not len(values):
        return 0.0
    order = np.argsort(values)
    reached = weights[order].cumsum()
    return float(values[order][np.searchsorted(reached, part * reached[-1])])
