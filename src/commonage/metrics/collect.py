"""Fills the series from control's live state, in the event loop. Called by `prometheus` for each scrape.

Makes no requests: control's loops have collected the values of engines and GPUs.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

from commonage import __version__
from commonage.control.control import Control
from commonage.control.queries.node_views import NodeView
from commonage.domain.images import EnvironmentState
from commonage.domain.nodes import NodeState
from commonage.domain.workloads import TERMINAL, Kind, State, workload_of
from commonage.metrics.device_series import put_device
from commonage.metrics.series import MIB, Families

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
            put_device(view.node.name, device, families)
    for state in NodeState:
        families.put("commonage_nodes", states[state], state)


def _node(view: NodeView, families: Families) -> None:
    name, report = view.node.name, view.node.report
    allocated_cores = (report.cpus_milli - view.free_cpus_milli) / 1000
    disk = None if report.disk_free_mib is None else report.disk_free_mib * MIB
    families.put("commonage_node_cpu_cores", report.cpus_milli / 1000, name)
    families.put("commonage_node_allocated_cpu_cores", allocated_cores, name)
    families.put("commonage_node_memory_bytes", report.memory_mib * MIB, name)
    families.put("commonage_node_allocated_memory_bytes", (report.memory_mib - view.free_memory_mib) * MIB, name)
    families.put("commonage_node_free_disk_bytes", disk, name)
    families.put("commonage_node_workloads", view.workloads, name)


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
