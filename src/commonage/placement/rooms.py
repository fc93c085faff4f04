"""What is free on each machine, and whether a request fits there.

A `Room` is the planner's scratch copy of a node: take() and give() keep it within what the node has. `refusal()` is the
filter that says no in numbers; what it lets through, `shares_for()` can place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from commonage.domain.fleet import Device, Lease, Node, NodeState, Share
from commonage.domain.parts import Part, part_of
from commonage.domain.quantities import format_cpus, format_memory
from commonage.domain.requests import GpuRequest, Request


@dataclass(slots=True)
class Card:
    """A device and what is free of it: VRAM in MiB, compute in thousandths."""

    device: Device
    free_mib: int
    free_milli: int

    @property
    def untouched(self) -> bool:
        """True if nobody holds any of it."""
        return self.free_mib == self.device.memory_mib and self.free_milli == 1000

    @property
    def is_whole_card(self) -> bool:
        """True if nobody holds any of it, and it is no MIG instance: those are parts of a card."""
        return self.untouched and self.device.parent_uuid is None

    def fits(self, gpu: GpuRequest) -> bool:
        """True if a part request fits beside what is held."""
        if self.device.faults:
            return False
        part = part_of(self.device, gpu)
        return part is not None and self.free_mib >= part.memory_mib > 0 and self.free_milli >= part.compute_milli

    def left_by(self, gpu: GpuRequest) -> int:
        """MiB that stay free where a part that fits went."""
        part = part_of(self.device, gpu)
        return self.free_mib - (part.memory_mib if part is not None else 0)


@dataclass(slots=True)
class Room:
    """A node and what is free on it. cpus in thousandths, memory in MiB."""

    node: Node
    free_cpus_milli: int
    free_memory_mib: int
    cards: list[Card] = field(default_factory=list)

    @classmethod
    def empty(cls, node: Node) -> Room:
        """The node with nothing held."""
        report = node.report
        cards = [Card(device, device.memory_mib, 1000) for device in report.devices]
        return cls(node, report.cpus_milli, report.memory_mib, cards)

    def take(self, lease: Lease, sign: int = 1) -> None:
        """Hold a lease (sign 1) or let it go (sign -1)."""
        self.free_cpus_milli -= sign * lease.cpus_milli
        self.free_memory_mib -= sign * lease.memory_mib
        for share in lease.shares:
            for card in self.cards:
                if card.device.uuid == share.device_uuid:
                    card.free_mib -= sign * share.memory_mib
                    card.free_milli -= sign * share.compute_milli

    def matching(self, gpu: GpuRequest) -> list[Card]:
        """The cards of the model asked for that take work."""
        return [card for card in self.cards if not card.device.faults and model_matches(gpu.model, card.device.model)]

    def fits(self, request: Request) -> bool:
        """True if `refusal` has nothing to say; many times faster, for the planner."""
        if self.node.state is not NodeState.READY:
            return False
        if request.cpus_milli > self.free_cpus_milli or request.memory_mib > self.free_memory_mib:
            return False
        gpu = request.gpu
        if gpu is None:
            return True
        if gpu.whole:
            return sum(card.is_whole_card for card in self.matching(gpu)) >= gpu.whole
        return any(card.fits(gpu) and model_matches(gpu.model, card.device.model) for card in self.cards)

    def copy(self) -> Room:
        """The same room, to try things in."""
        cards = [Card(card.device, card.free_mib, card.free_milli) for card in self.cards]
        return Room(self.node, self.free_cpus_milli, self.free_memory_mib, cards)

    def refusal(self, request: Request) -> str | None:
        """Why the request does not fit here now, in numbers; None if it does."""
        if self.node.state is not NodeState.READY:
            return f"{self.node.name} is {self.node.state}" + (f" ({self.node.reason})" if self.node.reason else "")
        if request.gpu is not None:
            refused = _gpu_refusal(self, request.gpu)
            if refused is not None:
                return refused
        if request.cpus_milli > self.free_cpus_milli:
            free, total = max(0, self.free_cpus_milli), self.node.report.cpus_milli
            verb = "is" if free == 1000 else "are"
            return f"{format_cpus(free)} of {format_cpus(total)} CPUs {verb} free on {self.node.name}"
        if request.memory_mib > self.free_memory_mib:
            free, total = max(0, self.free_memory_mib), self.node.report.memory_mib
            return f"{format_memory(free)} of {format_memory(total)} of memory are free on {self.node.name}"
        return None

    def shares_for(self, gpu: GpuRequest | None) -> tuple[Share, ...]:
        """The shares that a request which is not refused gets: the fullest card that still takes it."""
        if gpu is None:
            return ()
        cards = self.matching(gpu)
        if gpu.whole:
            untouched = [card for card in cards if card.is_whole_card]
            untouched.sort(key=lambda card: (card.device.memory_mib, card.device.index))
            chosen = untouched[: gpu.whole]
        else:
            fitting = [card for card in cards if card.fits(gpu)]
            chosen = [
                min(
                    fitting,
                    key=lambda card: (card.left_by(gpu), card.device.index),
                )
            ]
        return tuple(_share(card.device, gpu) for card in chosen)

    def lease_for(self, attempt_id: str, request: Request, now: float) -> Lease:
        """What an attempt would hold here from `now` on, of a request that fits."""
        shares = self.shares_for(request.gpu)
        return Lease(attempt_id, self.node.name, request.cpus_milli, request.memory_mib, shares, now)

    def left_after(self, request: Request) -> tuple[int, int, int]:
        """How much would stay free where the request went: smaller is the better fit. Cards first, they are dear."""
        if request.gpu is None:
            # Work without a GPU keeps away from cards that are free.
            idle_vram = sum(card.free_mib for card in self.cards)
            return (
                idle_vram,
                self.free_cpus_milli - request.cpus_milli,
                self.free_memory_mib - request.memory_mib,
            )
        cards = self.matching(request.gpu)
        if request.gpu.whole:
            left = sum(card.device.memory_mib for card in cards if card.is_whole_card)
        else:
            left = min(card.left_by(request.gpu) for card in cards if card.fits(request.gpu))
        return (left, self.free_cpus_milli - request.cpus_milli, self.free_memory_mib - request.memory_mib)


def model_matches(asked: str | None, model: str) -> bool:
    """True if `asked` (any case, any part of the name, `A100`, `A100|H100`) names the model, or nothing was asked."""
    return asked is None or any(name.casefold() in model.casefold() for name in asked.split("|"))


def _share(device: Device, gpu: GpuRequest) -> Share:
    part = part_of(device, gpu) or Part(device.memory_mib, 1000, whole=True)
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


def _gpu_refusal(room: Room, gpu: GpuRequest) -> str | None:
    name = room.node.name
    cards = room.matching(gpu)
    if not cards:
        return f"{name} has no {gpu.model or 'GPU'} that takes work"
    if gpu.whole:
        untouched = sum(card.is_whole_card for card in cards)
        if untouched >= gpu.whole:
            return None
        return f"{untouched} of {len(cards)} {gpu.model or 'card'}s on {name} are wholly free"
    if any(card.fits(gpu) for card in cards):
        return None
    best = max(cards, key=lambda card: min(card.free_mib, card.free_milli * card.device.memory_mib // 1000))
    part, total = part_of(best.device, gpu), best.device.memory_mib
    asked = part.memory_mib if part is not None else gpu.memory_on(total)
    if asked > best.free_mib:
        free = format_memory(max(0, best.free_mib))
        return f"{free} of {format_memory(total)} are free on card {best.device.index} of {name}"
    return f"{best.free_milli / 10:g}% of the compute of card {best.device.index} of {name} is free"


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most of each thing that is free on any one machine or card: what asks for more cannot fit anywhere."""

    cpus_milli: int
    memory_mib: int
    untouched: int
    vram_mib: int
    compute_milli: int

    @classmethod
    def over(cls, rooms: Iterable[Room]) -> Ceiling:
        """The ceiling over these rooms. It stays true, if not tight, while they shrink."""
        ready = [room for room in rooms if room.node.state is NodeState.READY]
        cards = [card for room in ready for card in room.cards]
        return cls(
            cpus_milli=max((room.free_cpus_milli for room in ready), default=0),
            memory_mib=max((room.free_memory_mib for room in ready), default=0),
            untouched=max((sum(card.is_whole_card for card in room.cards) for room in ready), default=0),
            vram_mib=max((card.free_mib for card in cards), default=0),
            compute_milli=max((card.free_milli for card in cards), default=0),
        )

    def covers(self, request: Request) -> bool:
        """False only if no room has place for the request."""
        gpu = request.gpu
        return (
            request.cpus_milli <= self.cpus_milli
            and request.memory_mib <= self.memory_mib
            and (
                gpu is None
                or (
                    gpu.whole <= self.untouched
                    and gpu.vram_mib <= self.vram_mib
                    and gpu.fraction_milli <= self.compute_milli
                )
            )
        )


def rooms_of(nodes: Iterable[Node], leases: Iterable[Lease]) -> dict[str, Room]:
    """Every node by name, with what is left of it beside the leases."""
    rooms = {node.name: Room.empty(node) for node in nodes}
    for lease in leases:
        room = rooms.get(lease.node)
        if room is not None:
            room.take(lease)
    return rooms
