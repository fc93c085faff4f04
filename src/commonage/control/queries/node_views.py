"""Nodes and GPUs with free and used resources, as API, portal and metrics show them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commonage.control.access import Access
from commonage.control.state.live_state import LiveState
from commonage.control.usage.attribution import UnattributedProcess
from commonage.control.usage.watchdog import Watchdog
from commonage.domain.explanations import Holder
from commonage.domain.nodes import Device, DeviceKey, Node, NodeKey
from commonage.domain.reasons import Reason
from commonage.domain.reasons.waiting import Resources
from commonage.domain.statuses import Capabilities
from commonage.ports.devices import DeviceSample
from commonage.ports.engine import Engine


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A GPU: its free share, its last measurement, and the holders of the rest."""

    device: Device
    free_mib: int
    free_compute_milli: int
    used_mib: int | None
    utilisation: float | None
    holders: tuple[Holder, ...]
    sample: DeviceSample | None = None
    unattributed: tuple[UnattributedProcess, ...] = ()  # processes of no attempt that hold VRAM of it


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node and its free resources. `workloads` is the number of allocations on it."""

    node: Node
    free_cpus_milli: int
    free_memory_mib: int
    devices: tuple[DeviceView, ...]
    workloads: int
    notes: tuple[Reason, ...] = ()


class NodeViews:
    """Reads nodes from the live state, and adds measurements. `engines` are by site."""

    def __init__(self, engines: Mapping[str, Engine], watchdog: Watchdog, live_state: LiveState) -> None:
        self._engines, self._watchdog, self._live_state = engines, watchdog, live_state
        self._measured: Mapping[DeviceKey, DeviceSample] = {}

    def note_measured(self, samples: Mapping[DeviceKey, DeviceSample]) -> None:
        self._measured = dict(samples)

    def capabilities(self, access: Access | None = None) -> Sequence[Capabilities]:
        """Those of all sites, or of those that a reader may use."""
        return [one.capabilities() for site, one in self._engines.items() if access is None or access.sees_site(site)]

    def all(self) -> Sequence[NodeView]:
        allocated = self._live_state.allocated()
        holders: dict[DeviceKey, list[Holder]] = defaultdict(list)
        counts: dict[NodeKey, int] = defaultdict(int)
        for one in allocated:
            counts[one.allocation.node_key] += 1
            for share in one.allocation.shares:
                holds = Resources(gpu_memory_mib=share.memory_mib)
                holder = Holder(
                    one.workload_id,
                    one.name,
                    one.owner,
                    one.kind,
                    one.allocation.node_key.label,
                    holds,
                    one.ends_at,
                    one.tenant,
                )
                holders[one.allocation.device_key(share)].append(holder)
        return [self._view(node, holders, counts[key]) for key, node in sorted(self._live_state.nodes.items())]

    def _view(self, node: Node, holders: Mapping[DeviceKey, Sequence[Holder]], workloads: int) -> NodeView:
        grid = self._live_state.snapshot.grid
        number = grid.number[node.key]
        devices = []
        for index, device in enumerate(node.report.devices):
            key = node.device_key(device)
            sample = self._measured.get(key)
            devices.append(
                DeviceView(
                    device=device,
                    free_mib=int(grid.free_mib[number, index]),
                    free_compute_milli=int(grid.free_milli[number, index]),
                    used_mib=sample.memory_used_mib if sample else None,
                    utilisation=sample.utilisation if sample else None,
                    holders=tuple(holders.get(key, ())),
                    sample=sample,
                    unattributed=tuple(self._watchdog.unattributed_processes.get(key, ())),
                )
            )
        engine = self._engines.get(node.site)
        notes = engine.capabilities().notes if engine else ()
        return NodeView(node, int(grid.cpus[number]), int(grid.memory[number]), tuple(devices), workloads, notes)
