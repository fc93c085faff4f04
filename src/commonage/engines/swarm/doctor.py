"""Features and problems of a Docker Swarm, as text for an admin. Called by `commonage doctor`; changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from commonage.domain.reasons import Reason
from commonage.domain.reasons.engines import NodeLossNoticed, PrivilegesMayBeGained, SwapNotLimited, SwarmInUse
from commonage.engines.containers.daemon.connection import Json
from commonage.engines.containers.daemon.info import DaemonSummary, may_gain, swarm_faults
from commonage.engines.swarm.client import Client
from commonage.engines.swarm.nodes.swarm_nodes import SwarmNode, plain_http_on, swarm_nodes_of
from commonage.ports.agents import AgentReport

# A node is down after three missing heartbeats.
_HEARTBEATS = 3
_SLOW_S = 3.0


async def examine_swarm(url: str, folder: Path, agent_reports: Mapping[str, AgentReport]) -> DaemonSummary:
    """Examine the manager at `url`. Raises EngineFailure if it does not answer, or is no manager.

    `agent_reports` holds the last reports of the node agents, by node name. A daemon of moby 20.10 does not report that
    containers may gain privileges: its agent detects that with the first running container.
    """
    client = Client(url)
    try:
        await client.membership()
        return examined(await client.info(), await client.nodes(), await client.heartbeat_s(), folder, agent_reports)
    finally:
        await client.close()


def examined(
    info: Mapping[str, Any],
    nodes: Sequence[Json],
    heartbeat_s: float,
    folder: Path,
    agent_reports: Mapping[str, AgentReport],
) -> DaemonSummary:
    swarm_nodes = swarm_nodes_of(nodes)
    there = [one for one in swarm_nodes.values() if not one.is_down]
    down = sorted(set(swarm_nodes) - {one.name for one in there})
    said = (
        f"Docker {info.get('ServerVersion')}, a Swarm of {len(swarm_nodes)} nodes, {len(there)} there"
        f"{' (not: ' + ', '.join(down) + ')' if down else ''}; "
        f"one that is gone is noticed after {_HEARTBEATS * heartbeat_s:.0f} s; {folder} must be mounted on all"
    )
    here = str(info.get("Name", "the manager"))
    notice = PrivilegesMayBeGained()
    gains = {name for name, report in agent_reports.items() if name in swarm_nodes and notice in report.notices}
    gains |= {here} if may_gain(info) else set()
    conditions: list[tuple[str, Reason]] = [(here, fault) for fault in swarm_faults(info)]
    conditions += [(name, notice) for name in sorted(gains)]
    sooner = "notice lost nodes sooner: docker swarm update --dispatcher-heartbeat 2s"
    advice = [sooner] if heartbeat_s > _SLOW_S else []
    return DaemonSummary(said, "; ".join([*advice, *_of_nodes(swarm_nodes, agent_reports)]), tuple(conditions))


def _of_nodes(swarm_nodes: Mapping[str, SwarmNode], agent_reports: Mapping[str, AgentReport]) -> Iterator[str]:
    without = sorted(swarm_nodes.keys() - agent_reports.keys())
    if without:
        yield (
            f"{', '.join(without)} without an agent, so without work, firewall around containers and their ports, TLS "
            "between containers and the hub, GPUs and measurements: `commonage node join` gives a node its agent"
        )
    in_the_clear = plain_http_on({name: one for name, one in agent_reports.items() if name in swarm_nodes})
    if in_the_clear:
        yield (
            f"{', '.join(in_the_clear)} with an agent of an earlier version, so that containers there reach the hub by "
            "plain HTTP, and everybody on the site's network reaches their ports: run `commonage node join` again"
        )
    undeclared = sorted(
        name for name, one in swarm_nodes.items()
        if one.vram_mib is None and name in agent_reports
        and any(not gpu.simulated for gpu in agent_reports[name].report.devices)
    )  # fmt: skip
    if undeclared:
        yield (
            f"{', '.join(undeclared)} with GPUs, but no VRAM declared to Docker Swarm (node-generic-resources), so "
            "that nothing starts on them: run `commonage node join` again"
        )


def notes_of(info: Mapping[str, Any], heartbeat_s: float, folder: Path) -> tuple[Reason, ...]:
    notes: list[Reason] = [
        SwarmInUse(version=str(info.get("ServerVersion", "?")), folder=str(folder)),
        NodeLossNoticed(after_s=_HEARTBEATS * heartbeat_s, is_slow=heartbeat_s > _SLOW_S),
    ]
    if not info.get("SwapLimit", True):
        notes.append(SwapNotLimited())
    return tuple(notes)
