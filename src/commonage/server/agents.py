"""The listener for the agents of other machines, where the engine has such. Called by the bootstrap."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from commonage.link import remembered
from commonage.link.agents import LinkedAgents
from commonage.ports.agents import Departures, Heard
from commonage.server.authority import authority_of
from commonage.server.settings import Settings

_WITH_AGENTS = frozenset({"swarm"})


def agents_of(settings: Settings, data_dir: Path, gateway_port: int) -> LinkedAgents | None:
    """Those of the site, not listened for yet; None for an engine whose only machine is this. Raises AuthorityError.

    `gateway_port` is the workload gateway's on the loopback. Blocks a moment when the authority is made.
    """
    if str(settings.engine) not in _WITH_AGENTS:
        return None
    memory = _memory(data_dir)
    authority = authority_of(data_dir)
    return LinkedAgents(authority, memory=memory, always_reach=settings.containers_reach, gateway_port=gateway_port)


def _memory(data_dir: Path) -> Path:
    return data_dir.absolute() / "agents.json"


def told_last(data_dir: Path) -> Mapping[str, Heard]:
    """What agents told of their machines, as it was kept last, by the machines' names. Blocks a moment."""
    return {one.node: one for one in remembered.read(_memory(data_dir))}


async def listen_for_agents(settings: Settings, agents: LinkedAgents, departures: Departures) -> None:
    """From now on. Raises ListenError."""
    await agents.open(settings.agents_bind, settings.agents_port, departures)
