"""What a node must have before a request fits there, one small class for each thing, each with its own refusal.

Called by explanations (lacks.py) and whoever shows what could be had: the pass asks the grid, which has no words. Both
say the same; a property test holds them to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from commonage.domain.fleet import Device, NodeState
from commonage.domain.quantities import format_cpus, format_memory
from commonage.placement.grid import Grid, lacking, most_together
from commonage.placement.shapes import NEVER, Bools, Ints, Shape, model_matches


class Filter(Protocol):
    """One thing that a request needs of a node. Each is asked of those alone that have what the ones before it want."""

    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        """[n]: which of these nodes have it."""
        ...

    def refusal(self, grid: Grid, shape: Shape, number: int) -> str | None:
        """Why the shape does not fit on node `number` as far as this goes, in numbers; None if it does."""
        ...

    def several(self, grid: Grid, shape: Shape, nodes: Ints) -> str:
        """The same of these nodes together, as what follows `on 3 of 8 machines`."""
        ...


class TakesWork:
    """The node is ready."""

    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        """[n]: which of these nodes do."""
        return grid.taking(shape, nodes)

    def refusal(self, grid: Grid, shape: Shape, number: int) -> str | None:
        """Its state. Admins find the reason, which may be a daemon's text, among the nodes."""
        node = grid.nodes[number]
        if node.state is NodeState.READY:
            return None if shape.request.on_full_disk or not node.report.tight else f"{node.name}: {node.report.tight}"
        by = f" (drained by {node.drained_by})" if node.drained_by else ""
        return f"{node.name} is {node.state}{by}"

    def several(self, grid: Grid, shape: Shape, nodes: Ints) -> str:
        """How many are in which state."""
        there = [grid.nodes[number] for number in nodes.tolist()]
        states = Counter("short of disk" if one.state is NodeState.READY else str(one.state) for one in there)
        counted = ", ".join(f"{count} {'is' if count == 1 else 'are'} {state}" for state, count in states.items())
        return f"nothing starts: {counted}"


class Labels:
    """The node carries all labels that were asked for."""

    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        """[n]: which of these nodes do."""
        return grid.labelled(shape, nodes)

    def refusal(self, grid: Grid, shape: Shape, number: int) -> str | None:
        """The labels that it lacks."""
        node = grid.nodes[number]
        missing = [f"{key}={value}" for key, value in lacking(node, shape.request.labels)]
        return f"{node.name} is not labelled {', '.join(missing)}" if missing else None

    def several(self, grid: Grid, shape: Shape, nodes: Ints) -> str:
        """The labels that were asked for."""
        wanted = ", ".join(f"{key}={value}" for key, value in shape.request.labels)
        return f"not all labels that it asks for are there ({wanted})"


class Model:
    """The node has a card of the model asked for that takes work."""

    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        """[n]: which of these nodes do."""
        cards = usable(grid, shape, nodes)
        return np.ones(len(nodes), np.bool_) if shape.request.gpu is None else np.asarray(cards.any(axis=1), np.bool_)

    def refusal(self, grid: Grid, shape: Shape, number: int) -> str | None:
        """That it has none."""
        gpu = shape.request.gpu
        if gpu is None or any(True for _ in matching(grid, shape, number)):
            return None
        return f"{grid.nodes[number].name} has no {gpu.model or 'GPU'} that takes work"

    def several(self, grid: Grid, shape: Shape, nodes: Ints) -> str:
        """The model."""
        return f"there is no {_model(shape, 'GPU')} that takes work"


class WholeCards:
    """As many cards as were asked for are wholly free."""

    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        """[n]: which of these nodes do."""
        gpu = shape.request.gpu
        if gpu is None or not gpu.whole:
            return np.ones(len(nodes), np.bool_)
        return np.asarray(np.count_nonzero(grid.cards_fit(shape, nodes), axis=1) >= gpu.whole, np.bool_)

    def refusal(self, grid: Grid, shape: Shape, number: int) -> str | None:
        """How many are, of how many."""
        gpu = shape.request.gpu
        if gpu is None or not gpu.whole:
            return None
        cards = [card for card, _ in matching(grid, shape, number)]
        fit = grid.cards_fit(shape, np.array([number]))[0]
        free = [card for card in cards if fit[card]]
        name, what = grid.nodes[number].name, gpu.model or "card"
        if cards and all(device.parent_uuid is not None for _, device in matching(grid, shape, number)):
            return f"the {what}s on {name} are split into MIG instances, which are given as parts of a GPU"
        if len(free) < gpu.whole:
            return f"{len(free)} of {len(cards)} {what}s on {name} are wholly free"
        return None

    def several(self, grid: Grid, shape: Shape, nodes: Ints) -> str:
        """So many are not."""
        what = _model(shape, "card")
        return f"no {what} is wholly free" if shape.cards == 1 else f"fewer than {shape.cards} {what}s are wholly free"


class OneNuma:
    """The wholly free cards that were asked for are on one NUMA node, if that was asked."""

    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        """[n]: which of these nodes have as many."""
        if not shape.request.one_numa or shape.cards < 2:
            return np.ones(len(nodes), np.bool_)
        together = most_together(grid.cards_fit(shape, nodes), grid.numa[nodes], shape)
        return np.asarray(together >= shape.cards, np.bool_)

    def refusal(self, grid: Grid, shape: Shape, number: int) -> str | None:
        """How many are together, of how many that are free."""
        nodes = np.array([number])
        if self.passes(grid, shape, nodes)[0]:
            return None
        fit = grid.cards_fit(shape, nodes)
        together = int(most_together(fit, grid.numa[nodes], shape)[0])
        free, name = np.count_nonzero(fit), grid.nodes[number].name
        return f"{free} {_model(shape, 'card')}s on {name} are wholly free, but at most {together} on one NUMA node"

    def several(self, grid: Grid, shape: Shape, nodes: Ints) -> str:
        """So many are not."""
        return f"enough cards are wholly free, but fewer than {shape.cards} on one NUMA node"


class PartOfACard:
    """One card has as much VRAM and compute free as was asked for."""

    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        """[n]: which of these nodes do."""
        if not shape.is_part:
            return np.ones(len(nodes), np.bool_)
        return np.asarray(grid.cards_fit(shape, nodes).any(axis=1), np.bool_)

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

    def several(self, grid: Grid, shape: Shape, nodes: Ints) -> str:
        """As much is not free."""
        gpu = shape.request.gpu
        part = format_memory(gpu.vram_mib) if gpu and gpu.vram_mib else "so much"
        return f"no {_model(shape, 'card')} has {part} free"


class Cpus:
    """Enough cores are free."""

    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        """[n]: which of these nodes do."""
        return np.asarray(grid.cpus[nodes] >= shape.cpus_milli, np.bool_)

    def refusal(self, grid: Grid, shape: Shape, number: int) -> str | None:
        """How many are, of how many."""
        free, total = max(0, int(grid.cpus[number])), int(grid.cpus_total[number])
        if shape.cpus_milli <= grid.cpus[number]:
            return None
        verb = "is" if free == 1000 else "are"
        return f"{format_cpus(free)} of {format_cpus(total)} CPUs {verb} free on {grid.nodes[number].name}"

    def several(self, grid: Grid, shape: Shape, nodes: Ints) -> str:
        """So many are not free."""
        few = "no CPU is" if shape.cpus_milli <= 1000 else f"fewer than {format_cpus(shape.cpus_milli)} CPUs are"
        return f"{few} free"


class Memory:
    """Enough memory is free."""

    def passes(self, grid: Grid, shape: Shape, nodes: Ints) -> Bools:
        """[n]: which of these nodes do."""
        return np.asarray(grid.memory[nodes] >= shape.memory_mib, np.bool_)

    def refusal(self, grid: Grid, shape: Shape, number: int) -> str | None:
        """How much is, of how much."""
        if shape.memory_mib <= grid.memory[number]:
            return None
        free, total = max(0, int(grid.memory[number])), int(grid.memory_total[number])
        return f"{format_memory(free)} of {format_memory(total)} of memory are free on {grid.nodes[number].name}"

    def several(self, grid: Grid, shape: Shape, nodes: Ints) -> str:
        """So much is not free."""
        return f"less than {format_memory(shape.memory_mib)} of memory is free"


FILTERS: tuple[Filter, ...] = (
    TakesWork(),
    Labels(),
    Model(),
    WholeCards(),
    OneNuma(),
    PartOfACard(),
    Cpus(),
    Memory(),
)


def refusal(grid: Grid, shape: Shape, number: int) -> str | None:
    """Why the shape does not fit on node `number` now, by the first filter that refuses; None if it fits."""
    return next((why for one in FILTERS if (why := one.refusal(grid, shape, number)) is not None), None)


def _model(shape: Shape, otherwise: str) -> str:
    gpu = shape.request.gpu
    return otherwise if gpu is None or gpu.model is None else gpu.model.replace("|", " or ")


def usable(grid: Grid, shape: Shape, nodes: Ints) -> Bools:
    """[n, C]: the cards of these nodes that take work and are of the model asked for."""
    gpu = shape.request.gpu
    of_model = [gpu is not None and model_matches(gpu, device.model) for _, device in grid.kinds]
    found: Bools = np.array([*of_model, False])[grid.kind[nodes]]
    return found


def matching(grid: Grid, shape: Shape, number: int) -> Iterator[tuple[int, Device]]:
    """The cards of a node, with their numbers, that take work and are of the model asked for."""
    gpu = shape.request.gpu
    if gpu is not None:
        for card, device in enumerate(grid.nodes[number].report.devices):
            if not device.faults and model_matches(gpu, device.model):
                yield card, device
