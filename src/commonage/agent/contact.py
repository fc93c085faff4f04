"""Whether this machine is in contact with its site, or cut off from it, so that what runs here may begin elsewhere.

A cable is drawn, and the control plane cannot tell it from a machine that is switched off: it begins elsewhere what ran
here. So an agent that is cut off pauses it, until the control plane says what goes on and what is to end. It is in
contact while the control plane answers, or more than half of the machines that it was told of (three at least, itself
among them): then the control plane, should it live, knows that it is in the minority and begins nothing anew. A
connection that is refused is an answer, for a program that is away is no cable.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commonage.agent.config import AgentConfig, split_address
from commonage.domain.codec import Unreadable, from_json, to_json
from commonage.link.messages import Witnesses
from commonage.ports.agents import CUT_OFF_AFTER_S, FEWEST_WITNESSES, HOLDS_ON_S

_log = logging.getLogger(__name__)
SWARM_PORT = 7946
"""Where the daemon of each machine of a Swarm listens for the others."""
_QUIET_S, _QUIET_BY_MOST_S = 3.0, 1.0
_ANSWERS_WITHIN_S = 1.0
_FEWEST_LOOKS = 3


@dataclass(slots=True)
class Vote:
    """Counts who answers: pure. `node` is this machine, `witnesses` the names of those that count.

    Times are of a clock that only rises: `last` is when the control plane answered, `most` when most of the others did.
    A machine that was too busy to look has not found that nobody answers.
    """

    node: str
    witnesses: tuple[str, ...]
    last: float
    most: float = float("-inf")
    looks: int = 0

    def learn(self, witnesses: tuple[str, ...]) -> None:
        """From now on these count."""
        self.witnesses = witnesses

    def hear(self, now: float) -> None:
        """The control plane is there."""
        self.last, self.looks = max(self.last, now), 0

    def count(self, control: bool, answering: Collection[str], began: float) -> None:
        """A look that began then: whether the control plane answered, and which of the others."""
        here = {*answering, self.node} & set(self.witnesses)
        if control:
            self.hear(began)
        elif len(self.witnesses) >= FEWEST_WITNESSES and 2 * len(here) > len(self.witnesses):
            self.most, self.looks = began, 0
        else:
            self.looks += 1

    def is_cut_off(self, now: float) -> bool:
        """True once neither the control plane nor most of those who count have answered for long."""
        silent = now - self.last >= CUT_OFF_AFTER_S and now - self.most >= HOLDS_ON_S
        return self.looks >= _FEWEST_LOOKS and silent


class Contact:
    """This machine's, with those that it was told of kept in `folder`."""

    def __init__(self, config: AgentConfig, folder: Path) -> None:
        self._control = [split_address(one) for one in config.control]
        self._file = folder / "witnesses.json"
        self._known = _kept(self._file)
        self._vote = Vote(config.node, self.witnesses, time.monotonic())

    @property
    def witnesses(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(name for name, _ in self._known.each)

    @property
    def is_cut_off(self) -> bool:
        """True while it is: what runs here is to be paused."""
        return self._vote.is_cut_off(time.monotonic())

    def learn(self, told: Witnesses) -> None:
        """The control plane says who counts."""
        if told != self._known:
            self._known = told
            self._vote.learn(self.witnesses)
            with suppress(OSError):  # a full disk: it is said again with the next link
                self._file.write_text(json.dumps(to_json(told)), encoding="utf-8")

    def hear(self, at: float) -> None:
        """The control plane heard what we said then (of the clock that only rises): it counts from there, as we do."""
        self._vote.hear(at)

    async def look(self) -> None:
        """See who answers, if nothing was heard for a while. Takes a second at most."""
        began = time.monotonic()
        if began - self._vote.last < _QUIET_S or began - self._vote.most < _QUIET_BY_MOST_S:
            return
        others = [(name, address) for name, address in self._known.each if name != self._vote.node]
        *found, control = await asyncio.gather(
            *(answers(address, SWARM_PORT) for _, address in others), self._control_answers()
        )
        there = [name for (name, _), yes in zip(others, found, strict=True) if yes]
        self._vote.count(control, there, began)
        if self._vote.looks == 1:
            _log.warning("the control plane is silent; of %d machines %d answer", len(others), len(there))

    async def _control_answers(self) -> bool:
        return any(await asyncio.gather(*(answers(host, port) for host, port in self._control)))


async def answers(host: str, port: int, *, refused: bool = True) -> bool:
    """Whether somebody there takes a connection. `refused`: what is given for one that is refused."""
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN_S):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionError:
        return refused
    except OSError:  # TimeoutError is one
        return False
    writer.transport.abort()
    return True


def _kept(file: Path) -> Witnesses:
    try:
        return from_json(Witnesses, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, Unreadable):
        return Witnesses(())
