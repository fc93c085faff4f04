"""The agent of a Kubernetes node: its loops, its reports, and its answers to requests of the control plane.

It joins by the token of its Pod. If the control plane confirms no report for two minutes, it joins again, because the
authority may have been replaced.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from commonage.agent.agent import handler_of
from commonage.agent.config import AgentConfig
from commonage.agent.connection import ControlPlaneConnection
from commonage.agent.devices import AgentDevices, DeviceSnapshot
from commonage.agent.kubernetes.join import PodIdentity
from commonage.agent.kubernetes.pods import PodGroups
from commonage.agent.node import memory_mib
from commonage.agent.steps.host import StepFailed
from commonage.domain.nodes import NodeReport
from commonage.domain.statuses import ProcessOwner
from commonage.engines.rundir.node_usage import NodeUsageReader
from commonage.join.client import JoinRefused
from commonage.link import messages
from commonage.link.connection import Connection
from commonage.link.exchange import RequestHandler
from commonage.link.messages import ReportReceived, RequestType, Welcome

_log = logging.getLogger(__name__)
_JOIN_AGAIN_S, _CHECK_S = 5.0, 5.0
_REJOIN_AFTER_S = 120.0
LINKED = "linked"
"""File that exists in the state folder while the control plane confirms reports. The readiness probe looks for it."""


def _all_cpus() -> set[int]:
    """All CPUs of the node, including those that the kubelet reserves for certain Pods."""
    return set(range(os.sysconf("SC_NPROCESSORS_CONF")))


class PodAgent:
    """`root` is where the node's `/proc` and `/sys` are mounted; `disks` are folders on the node's disks.

    Raises InvalidInput for a configuration that is not valid.
    """

    def __init__(self, config: AgentConfig, identity: PodIdentity, root: Path, disks: Sequence[Path]) -> None:
        self._config, self._identity, self._disks, self._root = config, identity, disks, root
        self._linked = Path(config.state) / LINKED
        self._pods = PodGroups(root)
        self._usage = NodeUsageReader(root, _all_cpus, network="proc/1/net/dev")
        self._devices = AgentDevices(config)
        self._snapshot = DeviceSnapshot()
        self._number = 0
        self._confirmed_at = time.monotonic()

    async def run(self) -> None:
        """Run until cancelled. An unexpected error in one loop ends the agent; the kubelet restarts the container."""
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._watch_devices(), name="devices")
                loops.create_task(self._keep_link(), name="link")
        finally:
            self._linked.unlink(missing_ok=True)
            await self._devices.close()

    async def _watch_devices(self) -> None:
        while True:
            self._snapshot = await self._devices.snapshot(self._pods.owners)
            await asyncio.sleep(messages.REPORT_EVERY_S)

    # --- the link -----------------------------------------------------------------------------------------------------

    async def _keep_link(self) -> None:
        while True:
            await self._join()
            self._confirmed_at = time.monotonic()
            connection = ControlPlaneConnection(
                self._config,
                self._request_handlers(),
                {"report-received": (ReportReceived, self._on_report_received)},
                self._report_to,
            )
            link = asyncio.create_task(connection.run())
            try:
                while not link.done() and time.monotonic() - self._confirmed_at < _REJOIN_AFTER_S:
                    await asyncio.wait({link}, timeout=_CHECK_S)
                    if time.monotonic() - self._confirmed_at > messages.SILENCE_S:
                        self._linked.unlink(missing_ok=True)
            finally:
                link.cancel()
                with suppress(asyncio.CancelledError):
                    await link

    async def _join(self) -> None:
        previous = ""
        while True:
            try:
                await asyncio.to_thread(self._identity.join)
                return
            except (JoinRefused, StepFailed, OSError) as error:
                if str(error) != previous:
                    _log.warning("cannot join, will try again: %s", error)
                previous = str(error)
                await asyncio.sleep(_JOIN_AGAIN_S)

    async def _report_to(self, connection: Connection, _: Welcome) -> None:
        while not connection.is_closed:
            connection.send("report", await self._report())
            await asyncio.sleep(messages.REPORT_EVERY_S)

    async def _report(self) -> messages.Report:
        snapshot = self._snapshot
        self._number += 1
        node = await asyncio.to_thread(self._node_report)
        faults = (snapshot.fault,) if snapshot.fault is not None else ()
        return messages.Report(
            self._number,
            replace(node, devices=snapshot.devices, faults=faults),
            samples=snapshot.samples,
            owners=snapshot.owners,
        )

    def _node_report(self) -> NodeReport:
        memory = memory_mib(self._root / "proc/meminfo")
        return NodeReport(self._config.node, 0, memory, usage=self._usage.measure(*self._disks))

    def _on_report_received(self, _: ReportReceived) -> None:
        self._confirmed_at = time.monotonic()
        self._linked.touch()

    # --- requests -----------------------------------------------------------------------------------------------------

    def _request_handlers(self) -> Mapping[RequestType[Any, Any], RequestHandler]:
        return {
            messages.MEASURE: handler_of(lambda _: self._measure()),
            messages.OWNERS: handler_of(lambda request: self._owners_of(request.pids)),
            messages.NOTE_ALLOCATIONS: handler_of(lambda request: self._devices.note_allocations(request.allocations)),
            messages.RESUME: handler_of(lambda request: self._devices.resume(request.uuid)),
        }

    async def _measure(self) -> messages.Measured:
        return messages.Measured(tuple(await asyncio.to_thread(self._pods.measure)))

    async def _owners_of(self, pids: Collection[int]) -> messages.Owners:
        owners: Sequence[ProcessOwner] = await asyncio.to_thread(self._pods.owners, pids)
        return messages.Owners(tuple(owners))
