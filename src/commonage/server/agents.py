"""The listener for the agents of other nodes, on engines that have agents. Called by the bootstrap."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from commonage.link import saved_reports
from commonage.link.agent_connections import AgentConnections
from commonage.ports.agents import AgentReport, Drains
from commonage.server.authority import authority_of
from commonage.server.settings.settings import Settings

_WITH_AGENTS = frozenset({"swarm"})


def agents_of(settings: Settings, data_dir: Path, gateway_port: int) -> AgentConnections | None:
    """The agents of the site, before their listener opens; None for an engine whose only node is this machine.

    `gateway_port` is the workload gateway's on the loopback. Raises AuthorityError. Blocks briefly when the
    authority is created.
    """
    if str(settings.engine) not in _WITH_AGENTS:
        return None
    memory = _memory(data_dir)
    authority = authority_of(data_dir)
    return AgentConnections(authority, memory=memory, always_reach=settings.containers_reach, gateway_port=gateway_port)


def _memory(data_dir: Path) -> Path:
    return data_dir.absolute() / "agents.json"


def last_reports(data_dir: Path) -> Mapping[str, AgentReport]:
    """The last stored reports of the agents, by node name. Blocks briefly."""
    return {one.node: one for one in saved_reports.read(_memory(data_dir))}


async def listen_for_agents(settings: Settings, agents: AgentConnections, drains: Drains) -> None:
    """Start to listen for agents. Raises ListenError."""
    await agents.open(settings.agents_bind, settings.agents_port, drains)
