"""The layout of nodes and GPUs: shares as segments of a bar, in proportion to their VRAM. For overview and nodes.

Only arithmetic and words; the templates draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from commonage.control.access import Access
from commonage.control.queries.node_views import DeviceView, NodeView
from commonage.domain.explanations import Holder
from commonage.domain.node_usage import NodeUsage
from commonage.domain.nodes import NodeState
from commonage.domain.permissions import Permission
from commonage.domain.requests import format_cpus, format_memory
from commonage.portal.templating import percent
from commonage.ports.devices import DeviceSample
from commonage.units import format_speed

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
    view: DeviceView
    segments: tuple[Segment, ...]
    summary: str
    facts: tuple[Fact, ...] = ()

    @property
    def memory_mib(self) -> int:
        return self.view.device.memory_mib

    @property
    def free_from(self) -> str | None:
        """Start of the free part in percent; None if it has no space for words."""
        free = 100 * self.view.free_mib / self.memory_mib if self.memory_mib else 0
        return percent(self.memory_mib - self.view.free_mib, self.memory_mib) if free >= _FREE_NARROW else None


@dataclass(frozen=True, slots=True)
class NodeBar:
    """A resource of a node: allocated and used of the whole. `used` is None if it is not measured."""

    label: str
    allocated: int
    whole: int
    used: int | None
    allocated_text: str
    whole_text: str
    used_text: str

    @property
    def title(self) -> str:
        used = f", {self.used_text} used" if self.used_text else ""
        return f"{self.label}: {self.allocated_text} of {self.whole_text} allocated{used}"


@dataclass(frozen=True, slots=True)
class NodeRow:
    view: NodeView
    device_rows: tuple[DeviceRow, ...]

    @property
    def _usage(self) -> NodeUsage:
        """A lost node has none: its last measurement is old."""
        node = self.view.node
        return (None if node.state is NodeState.LOST else node.report.usage) or NodeUsage()

    @property
    def bars(self) -> tuple[NodeBar, ...]:
        report, usage = self.view.node.report, self._usage
        cpus_used = None if usage.cpu_cores is None else round(usage.cpu_cores, 1)
        return (
            _bar(
                "CPU",
                (report.cpus_milli - self.view.free_cpus_milli, report.cpus_milli),
                None if cpus_used is None else round(cpus_used * 1000),
                format_cpus,
            ),
            _bar(
                "Memory",
                (report.memory_mib - self.view.free_memory_mib, report.memory_mib),
                usage.memory_mib,
                _rounded_memory,
            ),
        )

    @property
    def usage_facts(self) -> tuple[Fact, ...]:
        """Measured use without an allocation, as label and text."""
        usage = self._usage
        disk = f"{_rounded_memory(usage.disk_used_mib or 0)} of {_rounded_memory(usage.disk_total_mib or 0)} used"
        facts = {
            "disk": "" if usage.disk_total_mib is None else disk,
            "read": _speed(usage.disk_read_bytes_per_s),
            "written": _speed(usage.disk_written_bytes_per_s),
            "network in": _speed(usage.network_received_bytes_per_s),
            "network out": _speed(usage.network_sent_bytes_per_s),
            "processor": _number(usage.temperature_c, " °C"),
            "load": "" if usage.load is None else f"{usage.load:.1f}",
        }
        return tuple((label, text) for label, text in facts.items() if text)


@dataclass(frozen=True, slots=True)
class Total:
    """One resource over all nodes, as numbers and as text."""

    label: str
    allocated: int
    whole: int
    allocated_text: str
    whole_text: str


def node_rows(views: Sequence[NodeView], access: Access) -> list[NodeRow]:
    """Nodes with GPUs first. Users see each GPU's allocations and owners, not the names of others' workloads."""
    rows = [
        NodeRow(view, tuple(_device_row(device, access, _labels(view)) for device in view.devices)) for view in views
    ]
    return sorted(rows, key=lambda row: not row.device_rows)


def totals(views: Sequence[NodeView]) -> list[Total]:
    """VRAM, CPU and memory over all nodes; VRAM only if there are GPUs."""
    reports = [(view, view.node.report) for view in views]
    vram = [(gpu.device.memory_mib, gpu.free_mib) for view in views for gpu in view.devices]
    cpus = [(report.cpus_milli, view.free_cpus_milli) for view, report in reports]
    memory = [(report.memory_mib, view.free_memory_mib) for view, report in reports]
    found = [_total("CPU", cpus, format_cpus), _total("Memory", memory, format_memory)]
    return [_total("GPU memory", vram, format_memory), *found] if vram else found


def _total(label: str, amounts: Sequence[tuple[int, int]], text: Callable[[int], str]) -> Total:
    """`amounts`: the capacity of each node or GPU, and its free part."""
    whole = sum(capacity for capacity, _ in amounts)
    allocated = whole - sum(free for _, free in amounts)
    return Total(label, allocated, whole, "0" if allocated <= 0 else text(allocated), text(whole))


def _bar(label: str, amounts: tuple[int, int], used: int | None, text: Callable[[int], str]) -> NodeBar:
    """`amounts`: the allocated part, and the whole."""
    allocated, whole = amounts

    def words(value: int) -> str:
        return text(value) if value > 0 else "0"

    return NodeBar(label, allocated, whole, used, words(allocated), words(whole), "" if used is None else words(used))


def _rounded_memory(mib: int) -> str:
    return f"{mib} MiB" if mib < 1024 else f"{round(mib / 1024, 1):g} GiB"


def _speed(bytes_per_s: float | None) -> str:
    return "" if bytes_per_s is None else format_speed(bytes_per_s)


def _labels(view: NodeView) -> dict[str, str]:
    return {one.device.uuid: one.device.label for one in view.devices}


def _device_row(view: DeviceView, access: Access, labels: Mapping[str, str]) -> DeviceRow:
    segments = []
    at = 0
    for holder in view.holders:
        segments.append(_segment(holder, at, view.device.memory_mib, access))
        at += holder.holds.gpu_memory_mib
    allocated, whole = view.device.memory_mib - view.free_mib, view.device.memory_mib
    summary = f"{format_memory(allocated)} of {format_memory(whole)} allocated" if allocated else "all free"
    return DeviceRow(view, tuple(segments), summary, _facts(view, labels))


def _segment(holder: Holder, at: int, whole: int, access: Access) -> Segment:
    anonymous = holder.is_anonymous
    seen = not anonymous and access.may_on(Permission.SEE_WORKLOADS, holder.owner, holder.tenant)
    name = holder.name if seen and holder.name else holder.kind or "workloads"
    colour = "own" if holder.owner == access.principal.name else f"other{crc32(holder.owner.encode()) % _COLOURS}"
    width = 100 * holder.holds.gpu_memory_mib / whole if whole else 0
    return Segment(
        x=percent(at, whole),
        width=percent(holder.holds.gpu_memory_mib, whole),
        owner=holder.owner or "another tenant",
        title=name,
        colour=colour,
        workload_id=holder.workload_id if seen else None,
        holder=holder,
        has_room=width >= _NARROW,
    )


def _facts(view: DeviceView, labels: Mapping[str, str]) -> tuple[Fact, ...]:
    """The known facts of a GPU as label and text. `labels`: the display names of the node's GPUs, by UUID."""
    device = view.device
    facts = {
        "MIG": device.mig_profile and f"{device.mig_profile} of {format_memory(device.parent_memory_mib)}",
        "Slots": f"{device.slots} equal shares" if device.slots else "",
        "Driver": "" if device.simulated else device.driver,
        "CUDA": device.cuda,
        "Compute capability": device.compute_capability,
        "PCI": device.pci,
        "NUMA node": _number(device.numa),
        "NVLink": ", ".join(f"{links} to GPU {labels.get(uuid, uuid)}" for uuid, links in device.peers),
        **(_measurements(view.sample) if view.sample is not None else {}),
    }
    return tuple((label, text) for label, text in facts.items() if text)


def _measurements(sample: DeviceSample) -> dict[str, str]:
    limit = "" if sample.power_limit_w is None else f" of {sample.power_limit_w:.0f}"
    has_ecc = sample.ecc_corrected is not None or sample.ecc_uncorrected is not None
    remapped = (sample.remapped_corrected or 0) + (sample.remapped_uncorrected or 0)
    return {
        "Power": _number(sample.power_w, f"{limit} W"),
        "Temperature": _number(sample.temperature_c, " °C"),
        "SM clock": _number(sample.sm_clock_mhz, " MHz"),
        "Memory clock": _number(sample.memory_clock_mhz, " MHz"),
        "Throttled by": ", ".join(sample.throttle),
        "ECC errors": f"{sample.ecc_corrected or 0} corrected, {sample.ecc_uncorrected or 0} uncorrected"
        if has_ecc
        else "",
        "Remapped rows": _number(remapped or None),
        "Last Xid": _number(sample.xid),
    }


def _number(value: float | None, unit: str = "") -> str:
    return "" if value is None else f"{value:.0f}{unit}"
