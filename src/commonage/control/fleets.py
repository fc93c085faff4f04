"""Fleets: machines of a cloud are added while work waits for them, and given back when they idle.

The cloud says what there is, by the machines' names, so nothing about it is kept here that a restart would lose. A
machine is drained before it goes, and goes only once the planner gives it nothing any more. Settings say the policies;
the API shows them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from commonage.control.board import Board, ask_of
from commonage.control.departures import Departures
from commonage.control.ledger import Ledger
from commonage.domain.errors import CommonageError, Unavailable
from commonage.domain.events import Event, EventKind
from commonage.domain.fleet import Node, NodeState
from commonage.domain.fleets import FleetPolicy, FleetView, Machine
from commonage.domain.principals import Principal, Scope
from commonage.domain.quantities import format_duration
from commonage.domain.workloads import State
from commonage.placement.lacks import over_quota
from commonage.placement.scaling import Decision, Member, Waiting, decide
from commonage.ports.clock import Clock
from commonage.ports.clouds import Cloud
from commonage.ports.joining import Joining

log = logging.getLogger(__name__)
TICK_S = 15.0
PAUSE_AFTER_TROUBLE_S = 120.0
SHORTEST_TOKEN_S, LONGEST_TOKEN_S = 600, 7 * 86400


@dataclass(slots=True)
class _Standing:
    """What is known of one fleet. `idle` is since when each of its machines runs nothing, `first_seen` since when it is
    there; `leaving` are those that were drained to go."""

    policy: FleetPolicy
    cloud: Cloud
    machines: tuple[Machine, ...] = ()
    first_seen: dict[str, float] = field(default_factory=dict)
    idle: dict[str, float] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    decision: Decision = field(default_factory=Decision)
    trouble: str = ""
    rests_until: float = 0.0

    @property
    def who(self) -> Principal:
        """In whose name its machines are drained and removed."""
        return Principal(f"the fleet {self.policy.name}", frozenset(Scope))


@dataclass(frozen=True, slots=True)
class Renting:
    """What is rented where, and what new machines begin with. `chance(n)` is a random integer below n, for names."""

    clouds: Sequence[tuple[FleetPolicy, Cloud]]
    joining: Joining | None
    chance: Callable[[int], int]


class Fleets:
    """All fleets, as their clouds have them."""

    def __init__(self, renting: Renting, board: Board, ledger: Ledger, departures: Departures, clock: Clock) -> None:
        self._fleets = [_Standing(policy, cloud) for policy, cloud in renting.clouds]
        self._joining, self._chance = renting.joining, renting.chance
        self._board, self._ledger, self._departures, self._clock = board, ledger, departures, clock
        board.fleets = tuple(policy for policy, _ in renting.clouds)

    async def run(self) -> None:
        """Look at each every few seconds, until cancelled."""
        while self._fleets:
            for one in self._fleets:
                await self._look(one)
            await self._clock.sleep(TICK_S)

    def views(self, who: Principal) -> Sequence[FleetView]:
        """Each fleet, with what its policy does next and what that costs. For admins."""
        who.need(Scope.ADMIN)
        return [self._view(one) for one in self._fleets]

    def _view(self, one: _Standing) -> FleetView:
        now = self._clock.now()
        count, price = len(one.machines), one.policy.kind.price_h
        after = count + one.decision.add - len(one.decision.remove)
        states = tuple((machine.name, self._state(one, machine, now)) for machine in one.machines)
        return FleetView(
            one.policy, one.cloud.provider, states, one.decision.add, one.decision.remove, one.decision.why,
            count * price, after * price, one.trouble,
        )  # fmt: skip

    def _state(self, one: _Standing, machine: Machine, now: float) -> str:
        node = self._board.nodes.get(machine.name)
        if node is None:
            return f"on its way for {format_duration(now - one.first_seen.get(machine.name, now))}"
        if machine.name in one.leaving:
            return "leaving"
        if machine.name in one.idle:
            return f"idle for {format_duration(now - one.idle[machine.name])}"
        return str(node.state)

    # --- one look -------------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """One look at each."""
        for one in self._fleets:
            await self._look(one)

    async def _look(self, one: _Standing) -> None:
        now = self._clock.now()
        if now < one.rests_until:
            return
        try:
            await self._see(one, now)
            await self._bury(one, now)
            await self._let_go(one)
            one.decision = decide(one.policy, self._members(one), self._waiting(), now)
            await self._carry_out(one, now)
            one.trouble = ""
        except Unavailable as error:
            log.warning("fleet %s: %s", one.policy.name, error.message)
            one.trouble, one.rests_until = error.message, now + PAUSE_AFTER_TROUBLE_S
        except CommonageError as error:
            log.warning("fleet %s: %s", one.policy.name, error.message)
            one.trouble = error.message

    async def _see(self, one: _Standing, now: float) -> None:
        """What the cloud has of ours, and since when each of them idles."""
        price = await one.cloud.price_h()
        if price is not None and not one.policy.kind.price_h:
            one.policy = replace(one.policy, kind=replace(one.policy.kind, price_h=price))
        found = sorted(await one.cloud.machines(), key=lambda machine: machine.name)
        one.machines = tuple(machine for machine in found if one.policy.owns(machine.name))
        names = {machine.name for machine in one.machines}
        for machine in one.machines:
            one.first_seen.setdefault(machine.name, machine.created_at or now)
        busy = {held.lease.node for held in self._board.held()}
        for name in names:
            if name in busy or not self._has_joined(name):
                one.idle.pop(name, None)
            else:
                one.idle.setdefault(name, now)
        one.leaving &= names
        for gone in (one.first_seen.keys() | one.idle.keys()) - names:
            one.first_seen.pop(gone, None)
            one.idle.pop(gone, None)

    def _has_joined(self, name: str) -> bool:
        node = self._board.nodes.get(name)
        return node is not None and node.state is not NodeState.LOST

    def _members(self, one: _Standing) -> list[Member]:
        staying = [machine.name for machine in one.machines if machine.name not in one.leaving]
        return [Member(name, self._has_joined(name), one.idle.get(name)) for name in staying]

    def _waiting(self) -> list[Waiting]:
        """What more machines would help, in the order of the queue."""
        snapshot, found = self._board.snapshot, []
        for workload in self._board.in_state(State.QUEUED):
            ask = ask_of(workload)
            if over_quota(snapshot, ask, snapshot.grid.shape(ask.request)) is None:
                found.append(Waiting(ask.request, workload.since))
        return found

    async def _bury(self, one: _Standing, now: float) -> None:
        """Give back those that never joined or were lost; forget those that the cloud has no more."""
        names = {machine.name for machine in one.machines}
        for lost in [node for node in self._board.nodes.values() if node.state is NodeState.LOST]:
            if one.policy.owns(lost.name) and lost.name not in names:
                await self._departures.remove(one.who, lost.name, force=True)
        for machine in one.machines:
            node = self._board.nodes.get(machine.name)
            since = now - one.first_seen[machine.name]
            if node is None and since >= one.policy.join_s:
                await self._destroy(one, machine, f"it did not join within {format_duration(one.policy.join_s)}")
                raise Unavailable(
                    f"{machine.name} did not join within {format_duration(one.policy.join_s)} and was given back; "
                    "look at the cloud's console log of the next one"
                )
            if node is not None and node.state is NodeState.LOST:
                await self._destroy(one, machine, f"it was lost: {node.reason}")
                await self._departures.remove(one.who, machine.name, force=True)

    async def _let_go(self, one: _Standing) -> None:
        """Those that were drained to go, and are empty."""
        for machine in one.machines:
            node = self._board.nodes.get(machine.name)
            if machine.name in one.leaving and machine.name in one.idle and node is not None and node.drain:
                await self._destroy(one, machine, f"it was {one.decision.why or 'not needed'}")
                await self._forget(one, node)

    async def _forget(self, one: _Standing, node: Node) -> None:
        one.leaving.discard(node.name)
        await self._departures.remove(one.who, node.name)

    async def _carry_out(self, one: _Standing, now: float) -> None:
        for name in one.decision.remove:
            await self._departures.drain(one.who, name)
            one.leaving.add(name)
        for _ in range(one.decision.add):
            name = f"{one.policy.name}-{self._chance(16**6):06x}"
            machine = await one.cloud.create(name, await self._user_data(one.policy, name))
            one.machines = (*one.machines, machine)
            one.first_seen[machine.name] = now
            await self._tell(one, f"{machine.name} was added, as {one.decision.why}", 1)

    async def _user_data(self, policy: FleetPolicy, name: str) -> str:
        """With what it joins at its first start, under this name."""
        if self._joining is None:
            raise Unavailable('machines of a cloud join a Swarm; set `engine = "swarm"`, or take the fleets out')
        token = await self._joining.token(max(SHORTEST_TOKEN_S, min(LONGEST_TOKEN_S, policy.join_s)))
        options = ["--label", f"fleet={policy.name}", *policy.join_options]
        return await self._joining.template(token.token, options, name)

    async def _destroy(self, one: _Standing, machine: Machine, why: str) -> None:
        await one.cloud.destroy(machine)
        if self._joining is not None:
            await self._joining.expel(machine.name)
        one.machines = tuple(other for other in one.machines if other.id != machine.id)
        await self._tell(one, f"{machine.name} was given back: {why}", -1)

    async def _tell(self, one: _Standing, words: str, change: int) -> None:
        """An event, with what the fleet cost an hour before and costs after."""
        price, count = one.policy.kind.price_h, len(one.machines)
        if price:
            words += f"; the fleet costs {count * price:.2f} an hour, before it was {(count - change) * price:.2f}"
        log.info("fleet %s: %s", one.policy.name, words)
        await self._ledger.write(events=[Event(EventKind.NODE, self._clock.now(), words)])
