"""The layout of nodes and GPUs: shares as segments of a bar, in proportion to their VRAM. For overview and nodes.

Only arithmetic and words; the templates draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from commonage.control.queries.node_views import DeviceView, NodeView
from commonage.domain.explanations import Holder
from commonage.domain.nodes import Device
from commonage.domain.principals import Principal
from commonage.domain.requests import format_cpus, format_memory
from commonage.portal.templating import percent
from commonage.ports.devices import DeviceSample

_COLOURS = 6
_NARROW = 14.0  # percent of a GPU below which a segment has no space for words

_FREE_NARROW = 26.0

Fact = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Segment:
    """A share of a GPU. `x` and `width` in percent; `workload_id` only if the visitor may open it."""

    x: str
    width: str
    owner: str
    title: str
    colour: str
    workload_id: str | None
    holder: Holder
    has_room: bool


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device with its segments."""

    view: DeviceView
    segments: tuple[Segment, ...]
    summary: str
    facts: tuple[Fact, ...] = ()

    @property
    def memory_mib(self) -> int:
        """All of its VRAM."""
        return self.view.device.memory_mib

    @property
    def free_from(self) -> str | None:
        """Start of the free part in percent; None if it has no space for words."""
        free = 100 * self.view.free_mib / self.memory_mib if self.memory_mib else 0
        return percent(self.memory_mib - self.view.free_mib, self.memory_mib) if free >= _FREE_NARROW else None


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node with its GPUs."""

    view: NodeView
    device_rows: tuple[DeviceRow, ...]

    @property
    def allocated_cpus_milli(self) -> int:
        """Allocated CPU."""
        return self.view.node.report.cpus_milli - self.view.free_cpus_milli

    @property
    def allocated_memory_mib(self) -> int:
        """Allocated memory."""
        return self.view.node.report.memory_mib - self.view.free_memory_mib


@dataclass(frozen=True, slots=True)
class Total:
    """One resource over all nodes, as numbers and as text."""

    label: str
    allocated: int
    whole: int
    allocated_text: str
    whole_text: str


def node_rows(views: Sequence[NodeView], who: Principal) -> list[NodeRow]:
    """Nodes as `who` may see them: every user sees how full a GPU is and the owners of its shares, but not the names
    of other users' workloads.
    """
    found = [NodeRow(view, tuple(_device_row(device, who, _labels(view)) for device in view.devices)) for view in views]
    return sorted(
        found, key=lambda node_row: not node_row.device_rows
    )  # nodes with GPUs first, otherwise in the given order


def totals(views: Sequence[NodeView]) -> list[Total]:
    """VRAM, CPU and memory over all nodes; VRAM only if there are GPUs."""
    devices = [device for view in views for device in view.devices]
    vram = sum(one.device.memory_mib for one in devices)
    free_vram = sum(one.free_mib for one in devices)
    cpus = sum(view.node.report.cpus_milli for view in views)
    free_cpus = sum(view.free_cpus_milli for view in views)
    memory = sum(view.node.report.memory_mib for view in views)
    free_memory = sum(view.free_memory_mib for view in views)
    found = [
        _total("CPU", cpus - free_cpus, cpus, format_cpus),
        _total("Memory", memory - free_memory, memory, format_memory),
    ]
    return [_total("GPU memory", vram - free_vram, vram, format_memory), *found] if devices else found


def _total(label: str, allocated: int, whole: int, text: Callable[[int], str]) -> Total:
    return Total(label, allocated, whole, "0" if allocated <= 0 else text(allocated), text(whole))


def _labels(view: NodeView) -> dict[str, str]:
    return {one.device.uuid: one.device.label for one in view.devices}


def _device_row(view: DeviceView, who: Principal, labels: Mapping[str, str]) -> DeviceRow:
    segments = []
    at = 0
    for holder in view.holders:
        segments.append(_segment(holder, at, view.device.memory_mib, who))
        at += holder.holds.gpu_memory_mib
    allocated, whole = view.device.memory_mib - view.free_mib, view.device.memory_mib
    summary = f"{format_memory(allocated)} of {format_memory(whole)} allocated" if allocated else "all free"
    return DeviceRow(view, tuple(segments), summary, _facts(view, labels))


def _segment(holder: Holder, at: int, whole: int, who: Principal) -> Segment:
    seen = who.may_see(holder.owner)
    name = holder.name if seen and holder.name else holder.kind
    colour = "own" if holder.owner == who.name else f"other{crc32(holder.owner.encode()) % _COLOURS}"
    width = 100 * holder.holds.gpu_memory_mib / whole if whole else 0
    return Segment(
        x=percent(at, whole),
        width=percent(holder.holds.gpu_memory_mib, whole),
        owner=holder.owner,
        title=name,
        colour=colour,
        workload_id=holder.workload_id if seen else None,
        holder=holder,
        has_room=width >= _NARROW,
    )


def _facts(view: DeviceView, labels: Mapping[str, str]) -> tuple[Fact, ...]:
    """The known facts of a GPU as label and text. `labels`: the display names of the node's GPUs, by UUID."""
    measured = _measurements(view.sample) if view.sample is not None else ()
    return (*_hardware(view.device), *_topology(view.device, labels), *measured)


def _hardware(device: Device) -> Iterator[Fact]:
    if device.mig_profile:
        yield "MIG", f"{device.mig_profile} of {format_memory(device.parent_memory_mib)}"
    if device.slots:
        yield "Slots", f"{device.slots} equal shares"
    if device.driver and not device.simulated:
        yield "Driver", device.driver
    if device.cuda:
        yield "CUDA", device.cuda
    if device.compute_capability:
        yield "Compute capability", device.compute_capability


def _topology(device: Device, labels: Mapping[str, str]) -> Iterator[Fact]:
    if device.pci:
        yield "PCI", device.pci
    if device.numa is not None:
        yield "NUMA node", str(device.numa)
    if device.peers:
        yield "NVLink", ", ".join(f"{links} to GPU {labels.get(uuid, uuid)}" for uuid, links in device.peers)


def _measurements(sample: DeviceSample) -> Iterator[Fact]:
    if sample.power_w is not None:
        limit = "" if sample.power_limit_w is None else f" of {sample.power_limit_w:.0f}"
        yield "Power", f"{sample.power_w:.0f}{limit} W"
    if sample.temperature_c is not None:
        yield "Temperature", f"{sample.temperature_c:.0f} °C"
    if sample.sm_clock_mhz is not None:
        yield "SM clock", f"{sample.sm_clock_mhz} MHz"
    if sample.memory_clock_mhz is not None:
        yield "Memory clock", f"{sample.memory_clock_mhz} MHz"
    if sample.throttle:
        yield "Throttled by", ", ".join(sample.throttle)
    if sample.ecc_corrected is not None or sample.ecc_uncorrected is not None:
        yield "ECC errors", f"{sample.ecc_corrected or 0} corrected, {sample.ecc_uncorrected or 0} uncorrected"
    remapped = (sample.remapped_corrected or 0) + (sample.remapped_uncorrected or 0)
    if remapped:
        yield "Remapped rows", str(remapped)
    if sample.xid is not None:
        yield "Last Xid", str(sample.xid)
