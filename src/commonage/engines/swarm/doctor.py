"""What a Docker Swarm can do for us, in words for an admin. Called by `commonage doctor`; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commonage.engines.dockerd.connection import Json
from commonage.engines.swarm.client import Client
from commonage.engines.swarm.nodes import machines_of

# A machine is given up after three heartbeats that are missing.
_HEARTBEATS = 3
_SLOW_S = 3.0


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found; `advice` is empty where nothing is to be done."""

    said: str
    advice: str


async def examine_swarm(url: str, folder: Path) -> Examined:
    """Ask the manager at `url`. Raises EngineFailure when it does not answer, or is none."""
    client = Client(url)
    try:
        await client.membership()
        return examined(await client.info(), await client.nodes(), await client.heartbeat_s(), folder)
    finally:
        await client.close()


def examined(info: Mapping[str, Any], nodes: Sequence[Json], heartbeat_s: float, folder: Path) -> Examined:
    """The same of what it says of itself."""
    machines = machines_of(nodes)
    there = [one for one in machines.values() if not one.is_down]
    down = sorted(set(machines) - {one.name for one in there})
    said = (
        f"Docker {info.get('ServerVersion')}, a Swarm of {len(machines)} machines, {len(there)} there"
        f"{' (not: ' + ', '.join(down) + ')' if down else ''}; "
        f"one that is gone is noticed after {_HEARTBEATS * heartbeat_s:.0f} s; {folder} must be mounted on all"
    )
    advice = []
    if heartbeat_s > _SLOW_S:
        advice.append("have it noticed sooner: docker swarm update --dispatcher-heartbeat 2s")
    if len([one for one in machines.values() if one.vram_mib is None]) == len(machines):
        advice.append("no machine declares VRAM (node-generic-resources): Swarm itself will not refuse too much of it")
    return Examined(said, "; ".join(advice))


def notes_of(info: Mapping[str, Any], heartbeat_s: float, folder: Path) -> tuple[str, ...]:
    """What an admin should know of this Swarm, in sentences."""
    notes = [
        f"Docker {info.get('ServerVersion', '?')}, a Swarm. All machines must see {folder} under this path.",
        f"A machine that is gone is noticed after {_HEARTBEATS * heartbeat_s:.0f} s"
        + ("; `docker swarm update --dispatcher-heartbeat 2s` makes that six." if heartbeat_s > _SLOW_S else "."),
    ]
    if not info.get("SwapLimit", True):
        notes.append("The kernel does not limit swap: a workload may take as much again there as it has memory.")
    return tuple(notes)
