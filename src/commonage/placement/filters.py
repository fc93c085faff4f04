"""What a node must have before a request fits there, one small class for each thing, each with its own refusal.

Called by explanations and whoever shows what could be had: the pass asks the grid, which compares all nodes at once and
has no words. Both say the same; a property test holds them to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from commonage.domain.fleet import Device, NodeState
from commonage.domain.quantities import format_cpus, format_memory
from commonage.placement.grid import Grid, lacking
from commonage.placement.shapes import NEVER, Shape, model_matches


class Filter(Protocol):
    """One thing that a request needs of a node."""

    def refusal(self, grid: Grid, shape: Shape, number: int) -> str | None:
        """Why the shape does not fit on node `number` as far as this goes, in numbers; None if it does."""
        ...


class TakesWork:
    """The node is ready."""

    def refusal(self, grid: Grid, shape: Shape, number: int) -> str | None:
        """Its state, and the reason for it."""
        node = grid.nodes[number]
        if node.state is NodeState.READY:
            return None
        return f"{node.name} is {node.state}" + (f" ({node.reason})" if node.reason else "")


class Labels:
    """The node carries all labels that were asked for."""

    def refusal(self, grid: Grid, shape: Shape, number: int) -> str | None:
        """The labels that it lacks."""
        node = grid.nodes[number]
        missing = [f"{key}={value}" for key, value in lacking(node, shape.request.labels)]
        return f"{node.name} is not labelled {', '.join(missing)}" if missing else None


class Model:
    """The node has a card of the model asked for that takes work."""

    def refusal(self, grid: Grid, shape: Shape, number: int) -> str | None:
        """That it has none."""
        gpu = shape.request.gpu
        if gpu is None or any(True for _ in matching(grid, shape, number)):
            return None
        return f"{grid.nodes[number].name} has no {gpu.model or 'GPU'} that takes work"


class WholeCards:
    """As many cards as were asked for are wholly free, on one NUMA node if that was asked."""

    def refusal(self, grid: Grid, shape: Shape, number: int) -> str | None:
        """How many are, of how many."""
        gpu = shape.request.gpu
        if gpu is None or not gpu.whole:
            return None
        cards = [card for card, _ in matching(grid, shape, number)]
        fit = grid.cards_fit(shape, np.array([number]))[0]
        free = [card for card in cards if fit[card]]
        name, what = grid.nodes[number].name, gpu.model or "card"
        if len(free) < gpu.whole:
            return f"{len(free)} of {len(cards)} {what}s on {name} are wholly free"
        if shape.request.one_numa and gpu.whole > 1:
            together = int(np.unique(grid.numa[number, free], return_counts=True)[1].max())
            if together < gpu.whole:
                return f"{len(free)} {what}s on {name} are wholly free, but at most {together} on one NUMA node"
        return None


class PartOfACard:
    """One card has as much VRAM and compute free as was asked for."""

    def refusal(self, grid: Grid, shape: Shape, number: int) -> str | None:
        """What the card that comes nearest has."""
        gpu = shape.request.gpu
        if gpu is None or gpu.whole or grid.cards_fit(shape, np.array([number]))[0].any():
            return None
        free_mib, free_milli = grid.free_mib[number], grid.free_milli[number]

        def most(found: tuple[int, Device]) -> int:
            card, device = found
            return min(int(free_mib[card]), int(free_milli[card]) * device.memory_mib // 1000)

        card, device = max(matching(grid, shape, number), key=most)
        need = int(shape.need_mib[grid.kind[number, card]])
        asked, total = gpu.memory_on(device.memory_mib) if need >= NEVER else need, device.memory_mib
        where = f"card {device.index} of {grid.nodes[number].name}"
        if asked > free_mib[card]:
            free = format_memory(max(0, int(free_mib[card])))
            return f"{free} of {format_memory(total)} are free on {where}"
        return f"{int(free_milli[card]) / 10:g}% of the compute of {where} is free"


class Cpus:
    """Enough cores are free."""

    def refusal(self, grid: Grid, shape: Shape, number: int) -> str | None:
        """How many are, of how many."""
        free, total = max(0, int(grid.cpus[number])), int(grid.cpus_total[number])
        if shape.cpus_milli <= grid.cpus[number]:
            return None
        verb = "is" if free == 1000 else "are"
        return f"{format_cpus(free)} of {format_cpus(total)} CPUs {verb} free on {grid.nodes[number].name}"


class Memory:
    """Enough memory is free."""

    def refusal(self, grid: Grid, shape: Shape, number: int) -> str | None:
        """How much is, of how much."""
        if shape.memory_mib <= grid.memory[number]:
            return None
        free, total = max(0, int(grid.memory[number])), int(grid.memory_total[number])
        return f"{format_memory(free)} of {format_memory(total)} of memory are free on {grid.nodes[number].name}"


FILTERS: tuple[Filter, ...] = (TakesWork(), Labels(), Model(), WholeCards(), PartOfACard(), Cpus(), Memory())


def refusal(grid: Grid, shape: Shape, number: int) -> str | None:
    """Why the shape does not fit on node `number` now, by the first filter that refuses; None if it fits."""
    return next((why for one in FILTERS if (why := one.refusal(grid, shape, number)) is not None), None)


def matching(grid: Grid, shape: Shape, number: int) -> Iterator[tuple[int, Device]]:
    """The cards of a node, with their numbers, that take work and are of the model asked for."""
    gpu = shape.request.gpu
    if gpu is not None:
        for card, device in enumerate(grid.nodes[number].report.devices):
            if not device.faults and model_matches(gpu, device.model):
                yield card, device
