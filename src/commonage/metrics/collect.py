"""Fills the series from control's live state, in the event loop. Called by `prometheus` for each scrape.

Makes no requests: control's loops have collected the values of engines and GPUs. A GPU has Commonage's series in base
units, and those of NVIDIA's DCGM Exporter under its names and units (source: its default-counters.csv). Its counters
are gauges here, because a counter's name must end in `_total`, and dashboards expect the original names.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

from commonage import __version__
from commonage.control.control import Control
from commonage.control.queries.node_views import DeviceView, NodeView
from commonage.domain.idle import ActivityState
from commonage.domain.images import EnvironmentState
from commonage.domain.nodes import NodeKey, NodeState
from commonage.domain.workloads import TERMINAL, Kind, State, StopCause, workload_of
from commonage.metrics.series import MIB, Families
from commonage.ports.devices import DeviceSample

NODES_AT_ONCE = 50
LIVE_STATES = tuple(state for state in State if not state.is_terminal)


async def collect(control: Control, ended: dict[State, int] | None) -> Families:
    """All series except the request meter's. `ended`: the number of ended workloads by state; None if unknown."""
    families = Families()
    families.put("commonage_build_info", 1, __version__)
    _workloads(control, families)
    for state in TERMINAL:
        families.put("commonage_workloads_ended_total", None if ended is None else ended.get(state, 0), state)
    await _nodes(control, families)
    _shares(control, families)
    _control_plane(control, families)
    return families


def _workloads(control: Control, families: Families) -> None:
    counts: Counter[tuple[State, Kind]] = Counter()
    users = set()
    oldest = now = control.clock.now()
    for workload in control.live_state:
        counts[workload.state, workload.spec.kind] += 1
        users.add(workload.spec.owner)
        if workload.state is State.QUEUED:
            oldest = min(oldest, workload.since)
    for state in LIVE_STATES:
        for kind in Kind:
            families.put("commonage_workloads", counts[state, kind], state, kind)
    families.put("commonage_queue_length", control.queries.queue_length())
    families.put("commonage_queue_oldest_seconds", now - oldest)
    families.put("commonage_active_users", len(users))
    stands = Counter(view.status.state for view in control.environments.views())
    for environment_state in EnvironmentState:
        families.put("commonage_environments", stands[environment_state], environment_state)


async def _nodes(control: Control, families: Families) -> None:
    states: dict[NodeState, int] = defaultdict(int)
    for number, view in enumerate(control.node_views.all()):
        if number % NODES_AT_ONCE == NODES_AT_ONCE - 1:
            await asyncio.sleep(0)  # a thousand nodes take a while, and other tasks wait for the event loop
        states[view.node.state] += 1
        if view.node.state is NodeState.LOST:
            continue  # its measurements are old, and its capacity is not usable
        _node(view, families)
        for device in view.devices:
            put_device(view.node.key, device, families)
    for state in NodeState:
        families.put("commonage_nodes", states[state], state)


def _node(view: NodeView, families: Families) -> None:
    key, report = view.node.key, view.node.report
    allocated_cores = (report.cpus_milli - view.free_cpus_milli) / 1000
    families.put("commonage_node_cpu_cores", report.cpus_milli / 1000, *key)
    families.put("commonage_node_allocated_cpu_cores", allocated_cores, *key)
    families.put("commonage_node_memory_bytes", report.memory_mib * MIB, *key)
    families.put("commonage_node_allocated_memory_bytes", (report.memory_mib - view.free_memory_mib) * MIB, *key)
    families.put("commonage_node_free_disk_bytes", _bytes(report.disk_free_mib), *key)
    families.put("commonage_node_workloads", view.workloads, *key)
    if (used := report.usage) is not None:
        families.put("commonage_node_used_cpu_cores", used.cpu_cores, *key)
        families.put("commonage_node_used_memory_bytes", _bytes(used.memory_mib), *key)
        families.put("commonage_node_disk_bytes", _bytes(used.disk_total_mib), *key)
        families.put("commonage_node_used_disk_bytes", _bytes(used.disk_used_mib), *key)
        families.put("commonage_node_disk_read_bytes_per_second", used.disk_read_bytes_per_s, *key)
        families.put("commonage_node_disk_written_bytes_per_second", used.disk_written_bytes_per_s, *key)
        families.put("commonage_node_network_received_bytes_per_second", used.network_received_bytes_per_s, *key)
        families.put("commonage_node_network_sent_bytes_per_second", used.network_sent_bytes_per_s, *key)
        families.put("commonage_node_temperature_celsius", used.temperature_c, *key)
        families.put("commonage_node_load", used.load, *key)


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib * MIB


def _shares(control: Control, families: Families) -> None:
    """The workloads' use of their GPUs, by tenant and kind, and how often they exceeded their share."""
    used: Counter[tuple[str, Kind]] = Counter()
    for attempt_id, mib in control.sampling.vram.items():
        workload = control.live_state.get(workload_of(attempt_id))
        if workload is not None:
            used[workload.spec.tenant, workload.spec.kind] += mib
    for (tenant, kind), mib in used.items() or {(control.settings.default_tenant, Kind.JOB): 0}.items():
        families.put("commonage_workloads_used_gpu_memory_bytes", mib * MIB, tenant, kind)
    watchdog = control.watchdog
    families.put("commonage_over_share_workloads", len({one.attempt_id for one in watchdog.over}))
    for action in ("warned", "stopped"):
        families.put("commonage_watchdog_workloads_total", watchdog.counts[action], action)
    states = Counter(control.idle.state_of(one) for one in control.live_state.in_state(State.RUNNING))
    for state in ActivityState:
        families.put("commonage_sessions", states[state], state.value)
    for action in ("warned", StopCause.IDLE.value, StopCause.GPU_RELEASE.value):
        families.put("commonage_idle_sessions_total", control.idle.counts[action], action)


def _control_plane(control: Control, families: Families) -> None:
    for loop in control.health():
        if loop.age_s is not None:
            families.put("commonage_loop_age_seconds", loop.age_s, loop.name)
        families.put("commonage_loop_up", int(not loop.stuck), loop.name)
        families.put("commonage_loop_errors_total", loop.breaks, loop.name)
    writer = control.writer
    families.put("commonage_schedule_pass_seconds", control.schedule.pass_s)
    families.put("commonage_store_up", 0 if writer.stuck else 1)
    families.put("commonage_writer_commits_total", writer.commits)
    families.put("commonage_writer_commit_seconds_total", writer.commit_s)
    families.put("commonage_writer_changes_total", writer.changes)
    families.put("commonage_writer_waiting_changes", writer.waiting)


_NOTHING = DeviceSample("", None, None)


def put_device(node: NodeKey, view: DeviceView, families: Families) -> None:
    """All series of a GPU of this node; unknown values are left out."""
    _put_allocated(node, view, families)
    _put_measured(node, view, families)
    _put_dcgm(node, view, families)


def _labels(node: NodeKey, view: DeviceView) -> tuple[str, ...]:
    device = view.device
    return *node, device.label, device.uuid, device.model, _truth(device.simulated)


def _put_allocated(node: NodeKey, view: DeviceView, families: Families) -> None:
    device, labels = view.device, _labels(node, view)
    families.put("commonage_device_memory_bytes", device.memory_mib * MIB, *labels)
    families.put("commonage_device_allocated_memory_bytes", (device.memory_mib - view.free_mib) * MIB, *labels)
    families.put("commonage_device_allocated_compute_ratio", (1000 - view.free_compute_milli) / 1000, *labels)
    families.put("commonage_device_faults", len(device.faults), *labels)
    unattributed_mib = sum(process.memory_mib or 0 for process in view.unattributed)
    families.put("commonage_device_unattributed_memory_bytes", unattributed_mib * MIB, *labels)


def _put_measured(node: NodeKey, view: DeviceView, families: Families) -> None:
    labels, sample = _labels(node, view), view.sample or _NOTHING
    used = None if view.used_mib is None else view.used_mib * MIB
    families.put("commonage_device_used_memory_bytes", used, *labels)
    families.put("commonage_device_utilisation_ratio", view.utilisation, *labels)
    families.put("commonage_device_power_watts", sample.power_w, *labels)
    families.put("commonage_device_power_limit_watts", sample.power_limit_w, *labels)
    families.put("commonage_device_energy_joules_total", sample.energy_j, *labels)
    families.put("commonage_device_temperature_celsius", sample.temperature_c, *labels)
    for domain, mhz in (("sm", sample.sm_clock_mhz), ("memory", sample.memory_clock_mhz)):
        families.put("commonage_device_clock_hertz", None if mhz is None else mhz * 1_000_000, *labels, domain)
    for reason in sample.throttle:
        families.put("commonage_device_throttled_info", 1, *labels, reason)
    for corrected, count in (("true", sample.ecc_corrected), ("false", sample.ecc_uncorrected)):
        families.put("commonage_device_memory_errors_total", count, *labels, corrected)


def _put_dcgm(node: NodeKey, view: DeviceView, families: Families) -> None:
    device, used, sample = view.device, view.used_mib, view.sample or _NOTHING
    label = device.label
    labels = (
        label,
        device.uuid,
        f"nvidia{label.partition(':')[0]}",
        device.model,
        node.label,
        _truth(device.simulated),
    )
    values = {
        "FB_USED": used,
        "FB_FREE": None if used is None else max(0, device.memory_mib - used),
        "GPU_UTIL": None if view.utilisation is None else view.utilisation * 100,
        "POWER_USAGE": sample.power_w,
        "ENFORCED_POWER_LIMIT": sample.power_limit_w,
        "TOTAL_ENERGY_CONSUMPTION": None if sample.energy_j is None else sample.energy_j * 1000,
        "GPU_TEMP": sample.temperature_c,
        "SM_CLOCK": sample.sm_clock_mhz,
        "MEM_CLOCK": sample.memory_clock_mhz,
        "XID_ERRORS": sample.xid,
        "ECC_SBE_VOL_TOTAL": sample.ecc_corrected,
        "ECC_DBE_VOL_TOTAL": sample.ecc_uncorrected,
        "CORRECTABLE_REMAPPED_ROWS": sample.remapped_corrected,
        "UNCORRECTABLE_REMAPPED_ROWS": sample.remapped_uncorrected,
    }
    for name, value in values.items():
        families.put(f"DCGM_FI_DEV_{name}", value, *labels)


def _truth(value: bool) -> str:
    return "true" if value else "false"
