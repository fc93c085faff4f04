"""Mounts an attempt's folders through its node's agent, so that Docker follows no path that others can change.

Used by the launcher.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from commonage.domain.errors import EngineFailure
from commonage.engines.containers.daemon.connection import Json
from commonage.engines.containers.files import control_folder
from commonage.engines.containers.program.program import Program
from commonage.engines.swarm.nodes.known_nodes import AgentAway, KnownNodes
from commonage.engines.swarm.nodes.swarm_nodes import SwarmNode


async def mounted(
    spec: Json, attempt_id: str, program: Program, known_nodes: KnownNodes, swarm_node: SwarmNode
) -> Json:
    """Return the service description, with the folders mounted and named as they are on the node.

    Raises EngineFailure; AgentAway if there is an agent that does not answer.
    """
    made: dict[str, Any] = deepcopy(dict(spec))
    # The sockets of MPS belong to the agent, in a folder of its node.
    binds = [
        one
        for one in made["TaskTemplate"]["ContainerSpec"]["Mounts"]
        if one["Type"] == "bind" and one["Source"] != program.mps_pipe
    ]
    agents = known_nodes.agent_of(swarm_node.name)
    if agents is None:
        if swarm_node.name in known_nodes.agent_reports:
            raise AgentAway(f"the agent of {swarm_node.name}, which mounts the folders of workloads, does not answer")
        if why := known_nodes.why_unmounted(swarm_node.name):
            raise EngineFailure(f"{swarm_node.name} takes no work: {why}", retryable=True)
        return made
    asked = list(zip(_names(binds, program), (str(one["Source"]) for one in binds), strict=True))
    for one, place in zip(binds, await agents.mount(swarm_node.id, attempt_id, asked), strict=True):
        one["Source"] = place
    return made


def _names(binds: Sequence[Json], program: Program) -> list[str]:
    """The name of each mount on the node."""
    known = {program.home: "workspace", control_folder.INSIDE: "box", control_folder.LOG_INSIDE: "log"}
    return [known.get(str(one["Target"]), f"volume-{number}") for number, one in enumerate(binds)]
