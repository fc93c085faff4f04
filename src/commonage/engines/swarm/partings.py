"""When what ran on a machine that the Swarm gave up is surely over, so that it may begin elsewhere. Used by `fleet`.

The machine may have lost its power, or its cable only. Its agent, if it had one, ends by itself what runs there once it
reaches neither us nor more than half of the machines that it was told of (`introduced`): that long is waited. Whether
it may still reach that many is counted from this side: should we be the ones who are cut off, with few, nothing begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from commonage.domain.errors import EngineFailure
from commonage.engines.swarm.nodes import Machine, Wait
from commonage.ports.agents import CUT_OFF_AFTER_S, FEWEST_WITNESSES, Agents, Heard

_MARGIN_S = 4.0
_ASK_BEFORE_S, _ASK_AGAIN_S = 2.0, 5.0
_MOST_WITNESSES = 9


ENDING = Wait("what runs there is ended there first")
_TOO_FEW = Wait(
    "most machines are silent, or still see it, so it may be the control plane that is cut off: what ran there begins "
    "elsewhere once it is back, or when it was switched off and removed (`commonage node rm --force`)",
    for_long=True,
)


def introduced(machines: Mapping[str, Machine], waits: Mapping[str, Wait]) -> tuple[tuple[str, str], ...]:
    """The machines, as (name, address), by which agents tell whether they are cut off: those not given up."""
    there = [one for name, one in sorted(machines.items()) if not one.is_down or name in waits]
    return tuple((one.name, one.address) for one in there if one.address)[:_MOST_WITNESSES]


class Partings:
    """Of the machines that are down those where something may still run. What is found is asked of others once."""

    def __init__(self, agents: Agents | None) -> None:
        self._agents = agents
        self._found: dict[str, tuple[float, Wait | None]] = {}

    async def waits(self, machines: Mapping[str, Machine], heard: Mapping[str, Heard]) -> dict[str, Wait]:
        """By their names, with why. Takes a second at most, now and then."""
        agents = self._agents
        # One that is connected is asked for each attempt, and one without an agent can end nothing.
        silent = [
            (one, known)
            for name, one in machines.items()
            if one.is_down and (known := heard.get(name)) is not None and not known.connected
        ]
        self._found = {one.name: self._found[one.name] for one, _ in silent if one.name in self._found}
        if agents is None:
            return {}
        waits = await asyncio.gather(*(self._wait(one, known, machines, heard, agents) for one, known in silent))
        return {one.name: wait for (one, _), wait in zip(silent, waits, strict=True) if wait is not None}

    async def _wait(
        self,
        machine: Machine,
        known: Heard,
        machines: Mapping[str, Machine],
        heard: Mapping[str, Heard],
        agents: Agents,
    ) -> Wait | None:
        now, over = time.time(), known.at + CUT_OFF_AFTER_S + _MARGIN_S
        if now < over - _ASK_BEFORE_S:
            return ENDING
        asked_at, found = self._found.get(machine.name, (0.0, _TOO_FEW))
        if found is not None and now - asked_at > _ASK_AGAIN_S:
            found = _TOO_FEW if await _may_hold_on(machine, known, machines, heard, agents) else None
            self._found[machine.name] = now, found
        return ENDING if now < over else found


async def _may_hold_on(
    machine: Machine, known: Heard, machines: Mapping[str, Machine], heard: Mapping[str, Heard], agents: Agents
) -> bool:
    """Whether it may see more than half of those that it was told of: the silent ones, and those that see it."""
    if len(known.witnesses) < FEWEST_WITNESSES:
        return False
    others = [name for name in known.witnesses if name != machine.name]
    beyond = [name for name in others if _is_beyond(machines.get(name), heard.get(name))]
    near = [name for name in others if name in heard and heard[name].connected]
    seeing = await asyncio.gather(*(_sees(agents, name, machine.address) for name in near))
    may_see = (machine.name in known.witnesses) + len(beyond) + sum(seeing)
    return 2 * may_see > len(known.witnesses)


def _is_beyond(machine: Machine | None, heard: Heard | None) -> bool:
    """True if it is not to be reached from here, and may be from there. One that was removed is no more."""
    return machine is not None and machine.state != "ready" and not (heard is not None and heard.connected)


async def _sees(agents: Agents, node: str, address: str) -> bool:
    try:
        return await agents.reaches(node, address)
    except EngineFailure:  # its link was cut a moment ago
        return True
