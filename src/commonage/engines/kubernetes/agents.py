"""Identifies and reads the node agents of a cluster, which are Pods of a DaemonSet, one on each node.

An agent reports UIDs of Pods, and this module replaces them by ids of attempts. Used by the engine and by the sampling
loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from commonage.domain.errors import EngineFailure, Forbidden
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import Allocation, Device, NodeReport
from commonage.domain.statuses import Measurement, ProcessOwner
from commonage.engines.kubernetes.client import CONFIG_MAPS, Client
from commonage.engines.kubernetes.manifest import Manifest
from commonage.ports.agents import AgentReport, NodeAgents

AUDIENCE = "commonage-agents"
"""Audience of the agents' tokens: no other server accepts them."""
AUTHORITY_KEY = "ca.crt"
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
FRESH_S = 15.0
_NODE, _UID = "authentication.kubernetes.io/node-name", "authentication.kubernetes.io/node-uid"
_PUBLISH_EVERY_S, _PUBLISH_AGAIN_S = 600.0, 5.0
_log = logging.getLogger(__name__)

Attempts = Callable[[], Mapping[str, str]]
"""The running attempts, by the UID of their Pod."""


class PodAgents:
    """Implements `ports.agents.RemoteDevices` for the attempts of the cluster.

    `place` is NAMESPACE/NAME of the ServiceAccount of the agents, and of the ConfigMap from which they read
    `authority`, the certificate (PEM) that verifies the control plane.
    """

    def __init__(self, client: Client, agents: NodeAgents, place: str, authority: str, attempts: Attempts) -> None:
        self._client, self._agents, self._authority, self._attempts = client, agents, authority, attempts
        self._namespace, _, self._name = place.partition("/")

    # --- admission ----------------------------------------------------------------------------------------------------

    async def identify(self, token: str) -> tuple[str, str]:
        """Name and UID of the node of the agent with this token. Raises Forbidden, EngineFailure."""
        review: Manifest = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        status: Manifest = (await self._client.create(TOKEN_REVIEWS, review)).get("status") or {}
        user: Manifest = status.get("user") or {}
        if not status.get("authenticated") or AUDIENCE not in (status.get("audiences") or ()):
            raise Forbidden(f"the cluster does not accept the token: {status.get('error') or 'no Pod there has it'}")
        wanted = f"system:serviceaccount:{self._namespace}:{self._name}"
        if user.get("username") != wanted:
            raise Forbidden(
                f"the token is of {user.get('username')}, and agents are {wanted}: check the setting kubernetes_agents"
            )
        extra: Mapping[str, Sequence[str]] = user.get("extra") or {}
        names, uids = extra.get(_NODE) or (), extra.get(_UID) or ()
        if len(names) != 1 or len(uids) != 1:
            raise Forbidden("the token does not name the node of its Pod: this needs Kubernetes 1.32 or later")
        return names[0], uids[0]

    async def keep_authority(self, iterations: Iterations) -> None:
        """Write the authority's certificate into the chart's ConfigMap, and repeat that every ten minutes."""
        path, failed = CONFIG_MAPS.path(self._namespace, self._name), ""
        while True:
            pause = _PUBLISH_EVERY_S
            try:
                await self._client.merge(path, {"data": {AUTHORITY_KEY: self._authority}})
                failed = ""
            except EngineFailure as error:
                pause = _PUBLISH_AGAIN_S
                if str(error) != failed:
                    _log.warning("node agents cannot join: %s", error)
                failed = str(error)
            with iterations.rest():
                await asyncio.sleep(pause)

    # --- figures ------------------------------------------------------------------------------------------------------

    def enrich(self, report: NodeReport, node: Manifest) -> NodeReport:
        """The report with the agent's measurements of the node, and with the health of its GPUs."""
        agent = self._report_of(node)
        if agent is None:
            return report
        seen = {one.uuid: one for one in agent.report.devices}
        devices = tuple(_with_health(one, seen.get(one.uuid)) for one in report.devices)
        return replace(report, devices=devices, usage=agent.report.usage)

    def measures(self, node: Manifest) -> bool:
        """Whether `measure` can be called for this node."""
        return self._report_of(node) is not None

    async def measure(self, node: Manifest, attempts: Mapping[str, str]) -> Sequence[Measurement]:
        """The usage of these attempts, by the UID of their Pod on this node. Raises EngineFailure."""
        measured = await self._agents.measure(_uid_of(node))
        return [replace(one, attempt_id=attempts[one.attempt_id]) for one in measured if one.attempt_id in attempts]

    def _report_of(self, node: Manifest) -> AgentReport | None:
        uid = _uid_of(node)
        found = next((one for one in self._agents.agent_reports() if one.node_id == uid), None)
        fresh = found is not None and found.connected and time.monotonic() - found.monotonic_at <= FRESH_S
        return found if fresh else None

    # --- the port -----------------------------------------------------------------------------------------------------

    def agent_reports(self) -> Sequence[AgentReport]:
        attempts = self._attempts()
        return [
            replace(one, owners=tuple(_owner(owner, attempts) for owner in one.owners))
            for one in self._agents.agent_reports()
        ]

    async def note_allocations(self, allocations: Sequence[Allocation]) -> None:
        await self._agents.note_allocations(allocations)

    def take_warnings(self) -> Sequence[tuple[str, str, str]]:
        return self._agents.take_warnings()

    async def resume(self, uuid: str) -> None:
        await self._agents.resume(uuid)


def _uid_of(node: Manifest) -> str:
    return str(node["metadata"]["uid"])


def _owner(owner: ProcessOwner, attempts: Mapping[str, str]) -> ProcessOwner:
    return replace(owner, attempt_id=attempts.get(owner.attempt_id or ""))


def _with_health(device: Device, seen: Device | None) -> Device:
    if seen is None:
        return device
    return replace(device, faults=(*device.faults, *seen.faults), notices=(*device.notices, *seen.notices))
