"""Where a run can start on the appliance without the control plane: next to all attempts that were dispatched to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from commonage.domain.nodes import Allocation, Node, NodeReport, NodeState
from commonage.domain.statuses import Phase
from commonage.domain.workloads import Kind, workload_of
from commonage.scheduler.model.shapes import AllocatedRequest, QueuedRequest
from commonage.scheduler.plan import plan
from commonage.scheduler.snapshot import Snapshot
from commonage.site_agent.attempts import Attempts
from commonage.site_agent.statuses import StatusTracker


class Room:
    """`nodes` returns those of the last report."""

    def __init__(self, attempts: Attempts, statuses: StatusTracker, nodes: Callable[[], Sequence[NodeReport]]) -> None:
        self._attempts, self._statuses, self._nodes = attempts, statuses, nodes

    def place(self, wanted: QueuedRequest, site: str, now: float) -> Allocation | None:
        """Where it can start now; None if it does not fit, or an attempt runs whose allocation is not known."""
        live = self._attempts.live()
        if any(one.phase is not Phase.ENDED and one.attempt_id not in live for one in self._statuses.all()):
            return None
        nodes = [
            Node(one.name, site, "", NodeState.READY, one, now)
            for one in self._nodes()
            if not one.faults and not one.gone
        ]
        snapshot, keys = Snapshot(nodes), {node.key for node in nodes}
        for taken in live.values():
            if taken.node_key in keys:
                snapshot.allocate(AllocatedRequest(taken, workload_of(taken.attempt_id), "", "", Kind.JOB))
        snapshot.enqueue(wanted)
        started = plan(snapshot, now).started.get(wanted.workload_id)
        return None if started is None else started.allocation

    def taken_by(self, wanted: Allocation) -> str | None:
        """The attempt of a run fired here, because of which this allocation does not fit; None if it does."""
        others = [one for one in self._attempts.live().values() if one.attempt_id != wanted.attempt_id]
        here = [one for one in others if one.node == wanted.node]
        own = [one.attempt_id for one in here if (of := self._attempts.of_cron_job(one.attempt_id)) and of.own]
        report = next((one for one in self._nodes() if one.name == wanted.node), None)
        return own[-1] if own and report is not None and not _fits(report, wanted, here) else None


def _fits(report: NodeReport, wanted: Allocation, others: Sequence[Allocation]) -> bool:
    every = [wanted, *others]
    if sum(one.cpus_milli for one in every) > report.cpus_milli:
        return False
    if sum(one.memory_mib for one in every) > report.memory_mib:
        return False
    devices = {device.uuid: device for device in report.devices}
    for share in wanted.shares:
        on_device = [one for each in every for one in each.shares if one.device_uuid == share.device_uuid]
        device = devices.get(share.device_uuid)
        if device is None or sum(one.memory_mib for one in on_device) > device.memory_mib:
            return False
        if sum(one.compute_milli for one in on_device) > 1000:
            return False
    return True
