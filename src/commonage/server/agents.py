"""The listener for the agents of other machines, where the engine has such. Called by the bootstrap."""

from __future__ import annotations

from pathlib import Path

from commonage.link.agents import LinkedAgents
from commonage.server.authority import authority_of
from commonage.server.settings import Settings

_WITH_AGENTS = frozenset({"swarm"})


def agents_of(settings: Settings, data_dir: Path) -> LinkedAgents | None:
    """Those of the site, not listened for yet; None for an engine whose only machine is this. Raises AuthorityError.

    Blocks a moment when the authority is made.
    """
    if str(settings.engine) not in _WITH_AGENTS:
        return None
    memory = data_dir.absolute() / "agents.json"
    return LinkedAgents(authority_of(data_dir), memory=memory, always_reach=settings.containers_reach)


async def listen_for_agents(settings: Settings, agents: LinkedAgents) -> None:
    """From now on. Raises ListenError."""
    await agents.open(settings.agents_bind, settings.agents_port)
