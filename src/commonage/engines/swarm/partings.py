"""When what ran on a machine that the Swarm gave up surely runs no more, so that it may begin elsewhere. For `fleet`.

The machine may have lost its power, or its cable only. Its agent pauses by itself what runs there once it reaches
neither us nor more than half of the machines that it was told of (`introduced`): that long is waited. Whether it may
still reach that many is counted from this side: should we be the ones who are cut off, with few, nothing begins. Where
no agent is that could pause it, nothing begins either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TypeGuard

from commonage.domain.errors import EngineFailure
from commonage.engines.swarm.nodes import Machine, Wait
from commonage.ports.agents import CUT_OFF_AFTER_S, FEWEST_WITNESSES, HOLDS_ON_S, Agents, Heard

_MARGIN_S, _MARGIN_BY_MOST_S = 4.0, 2.0
_SILENT_S = 5.0
_LATE_S = 10.0
_LONG_S, _AGENT_AWAY_S = 15.0, 30.0
_MOST_WITNESSES, _MOST_KEPT = 9, 50


ENDING = Wait("what runs there is ended there first")
STANDING_STILL = Wait("what runs there is given the time to stand still first")
_REMOVE = (
    "what ran there begins elsewhere once it is back, or was switched off and `commonage node rm --force {}` says so"
)


def _too_few(name: str) -> Wait:
    why = "most machines are silent, or still see it, so it may be the control plane that is cut off"
    return Wait(f"{why}: {_REMOVE.format(name)}", for_long=True)


def _nobody(name: str) -> Wait:
    why = "it may only be cut off, and has no agent that would have what runs there stand still"
    return Wait(f"{why}: {_REMOVE.format(name)}", for_long=True)


def introduced(
    machines: Mapping[str, Machine], heard: Mapping[str, Heard], waits: Mapping[str, Wait]
) -> tuple[tuple[str, str], ...]:
    """The machines, as (name, address), by which agents tell whether they are cut off: those that can be asked who is
    seen from there, and those of which it is not known yet whether anything runs there.
    """
    there = [
        one for name, one in sorted(machines.items())
        if name in heard and (heard[name].connected if not one.is_down else name in waits)
    ]  # fmt: skip
    return tuple((one.name, one.address) for one in there if one.address)[:_MOST_WITNESSES]


class Partings:
    """Of the machines that are down those where something may still run. What is found is asked of others once."""

    def __init__(self, agents: Agents | None) -> None:
        self._agents = agents
        # Of those that are silent: when they may have seen most of the others last.
        self._held_on: dict[str, float] = {}
        self._holds_on: set[str] = set()
        self._over: set[str] = set()
        self._alone: dict[str, bool] = {}  # of those that are down: whether their agent was away long before
        self._told: list[tuple[float, tuple[str, ...]]] = []  # until when agents were told of which machines

    def told(self, names: tuple[str, ...]) -> None:
        """By these machines agents tell from now on, or still, whether they are cut off."""
        if self._told and self._told[-1][1] == names:
            self._told.pop()
        self._told = [*self._told[-_MOST_KEPT:], (monotonic(), names)]

    async def waits(self, machines: Mapping[str, Machine], heard: Mapping[str, Heard]) -> dict[str, Wait]:
        """By their names, with why. Takes a second at most, now and then."""
        now = monotonic()
        silent = [name for name in machines if name in heard and now - heard[name].came > _SILENT_S]
        self._held_on = {name: at for name, at in self._held_on.items() if name in silent}
        self._over &= set(silent)
        self._holds_on &= set(silent)
        if self._agents is not None:
            asked = [name for name in silent if name not in self._over]
            await asyncio.gather(*(self._ask(name, machines, heard, self._agents, now) for name in asked))
        # One that is connected is asked for each attempt.
        down = [name for name, one in machines.items() if one.is_down and not _is_connected(heard.get(name))]
        self._alone = {name: self._alone.get(name, _is_long_away(heard.get(name), now)) for name in down}
        waits = {name: self._wait(name, heard.get(name), now) for name in down}
        self._over |= {name for name, wait in waits.items() if wait is None}
        return {name: wait for name, wait in waits.items() if wait is not None}

    async def _ask(
        self, name: str, machines: Mapping[str, Machine], heard: Mapping[str, Heard], agents: Agents, now: float
    ) -> None:
        """What it saw before it is first asked for, nobody knows: it may have held on until then."""
        known = heard[name]
        sets = {known.witnesses, *(names for until, names in self._told if until > known.came - _LATE_S)}
        enough = [names for names in sorted(sets) if len(names) >= FEWEST_WITNESSES]
        self._holds_on.discard(name)
        if enough and await may_hold_on(machines[name], enough, machines, heard, agents):
            self._holds_on.add(name)
            self._held_on[name] = now
        elif enough:
            self._held_on.setdefault(name, now)

    def _wait(self, name: str, known: Heard | None, now: float) -> Wait | None:
        if known is None or self._agents is None or self._alone[name]:
            return _nobody(name)
        if name in self._over:
            return None
        if now < known.came + CUT_OFF_AFTER_S + _MARGIN_S:
            return STANDING_STILL
        if name in self._holds_on:
            return _too_few(name) if now > known.came + _LONG_S else STANDING_STILL
        over = self._held_on.get(name, 0.0) + HOLDS_ON_S + _MARGIN_BY_MOST_S
        return STANDING_STILL if now < over else None


async def may_hold_on(
    machine: Machine,
    sets: Sequence[tuple[str, ...]],
    machines: Mapping[str, Machine],
    heard: Mapping[str, Heard],
    agents: Agents,
) -> bool:
    """Whether it may see more than half of those that it was told of, by any of these `sets` that it may have: the
    silent ones, and those that see it. One that was removed is no more.
    """
    others = sorted({name for names in sets for name in names if name in machines and name != machine.name})
    answers = await asyncio.gather(*(_may_see(agents, heard.get(name), machine.address) for name in others))
    seeing = {machine.name, *(name for name, sees in zip(others, answers, strict=True) if sees)}
    return any(2 * len(seeing & set(names)) > len(names) for names in sets)


async def _may_see(agents: Agents, witness: Heard | None, address: str) -> bool:
    if not _is_connected(witness):
        return True
    try:
        return await agents.reaches(witness.node_id, address)
    except EngineFailure:  # its link was cut a moment ago
        return True


def _is_connected(heard: Heard | None) -> TypeGuard[Heard]:
    return heard is not None and heard.connected


def _is_long_away(heard: Heard | None, now: float) -> bool:
    return heard is None or now - heard.came > _AGENT_AWAY_S
