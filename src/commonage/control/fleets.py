"""Fleets: machines of a cloud are added while work waits for them, and given back when they idle.

The cloud says what there is, by the machines' names, and the machines say who drained them, so nothing is kept here
that a restart would lose. Clouds need time: one that was asked for counts before it is listed, one that was given back
until it is not. A machine is drained before it goes, and goes only once the planner gives it nothing any more. Settings
say the policies; the API shows them.
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
from commonage.domain.fleet import NodeState
from commonage.domain.fleets import Coming, FleetPolicy, FleetView, Machine
from commonage.domain.principals import Principal, Scope
from commonage.domain.quantities import format_duration
from commonage.domain.reasons import Reason, notes
from commonage.domain.turns import Turns
from commonage.domain.workloads import State
from commonage.placement.lacks import over_quota
from commonage.placement.scaling import Decision, Member, Waiting, decide
from commonage.ports.clock import Clock
from commonage.ports.clouds import Cloud
from commonage.ports.joining import Joining

log = logging.getLogger(__name__)
TICK_S = 15.0
CLOUD_TURN_S = 600.0  # clouds answer slowly, and are asked one after the other
PAUSE_AFTER_TROUBLE_S = 120.0
LOST_FOR_S = 60.0  # so long one may be lost and come back,
LOST_AND_BUSY_FOR_S = 600.0  # and so long one on which something may still run: it may be us who are cut off
GIVE_BACK_AGAIN_S = 300.0  # the cloud said that it took it, and lists it still
SHORTEST_TOKEN_S, LONGEST_TOKEN_S = 600, 7 * 86400


@dataclass(slots=True)
class _Rented:
    """A machine of ours, from when it is asked for until the cloud has it no more. Times are unix seconds.

    `since` is when it was asked for, or found; `asked`: by us, in this life. `listed`: the cloud has told of it.
    `joined`: the site knows it, or did. `idle_since` and `lost_since` are None while it is neither.
    """

    machine: Machine
    since: float
    asked: bool = False
    listed: bool = False
    joined: bool = False
    idle_since: float | None = None
    lost_since: float | None = None
    gave_back_at: float | None = None

    @property
    def is_coming(self) -> bool:
        """True if it may yet join."""
        return self.gave_back_at is None and not self.joined and not self.machine.failed


@dataclass(slots=True)
class _Standing:
    """What is known of one fleet; `rented` by name. `took_s`: how long the last one that joined took to do so."""

    policy: FleetPolicy
    cloud: Cloud
    rented: dict[str, _Rented] = field(default_factory=dict)
    took_s: float | None = None
    decision: Decision = field(default_factory=Decision)
    trouble: str = ""
    rests_until: float = 0.0

    @property
    def who(self) -> Principal:
        """In whose name its machines are drained and removed."""
        return Principal(f"the fleet {self.policy.name}", frozenset(Scope))

    @property
    def kept(self) -> list[_Rented]:
        """Those that were not given back."""
        return [rented for _, rented in sorted(self.rented.items()) if rented.gave_back_at is None]


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
        self.turns = Turns("fleets", clock.now, CLOUD_TURN_S)

    async def run(self) -> None:
        """Look at each every few seconds, until cancelled."""
        while True:
            for one in self._fleets:
                await self._look(one)
            with self.turns.rest():
                await self._clock.sleep(TICK_S)

    def views(self, who: Principal) -> Sequence[FleetView]:
        """Each fleet, with what its policy does next and what that costs. For admins."""
        who.need(Scope.ADMIN)
        return [self._view(one) for one in self._fleets]

    def _view(self, one: _Standing) -> FleetView:
        now, price = self._clock.now(), one.policy.kind.price_per_h
        count = len(one.kept)
        goes = [rented.machine.name for rented in one.kept if self._leaves(one, rented.machine.name)]
        removing = tuple(dict.fromkeys((*goes, *one.decision.remove)))
        after = count + one.decision.add - len(removing)
        states = tuple((name, self._state(one, rented, now)) for name, rented in sorted(one.rented.items()))
        return FleetView(
            one.policy, one.cloud.provider, states, one.decision.add, removing, one.decision.why,
            count * price, after * price, one.trouble,
        )  # fmt: skip

    def _state(self, one: _Standing, rented: _Rented, now: float) -> str:
        name = rented.machine.name
        node = self._board.nodes.get(name)
        if rented.gave_back_at is not None:
            return "given back"
        if node is None:
            return "failed" if rented.machine.failed else f"on its way for {format_duration(now - rented.since)}"
        if self._leaves(one, name):
            return "leaving"
        if rented.idle_since is not None:
            return f"idle for {format_duration(now - rented.idle_since)}"
        return str(node.state)

    def _leaves(self, one: _Standing, name: str) -> bool:
        """True if it was drained to go: the machine itself says by whom, over restarts and until it is resumed."""
        node = self._board.nodes.get(name)
        return node is not None and node.drained_by == one.who.name

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
            await self._give_up(one, now)
            await self._let_go(one)
            await self._bury(one)
            one.decision = decide(one.policy, self._members(one), self._waiting(), now)
            await self._carry_out(one, now)
            one.trouble = ""
        except Unavailable as error:
            log.warning("fleet %s: %s", one.policy.name, error.message)
            one.trouble, one.rests_until = error.message, now + PAUSE_AFTER_TROUBLE_S
        except (CommonageError, OSError) as error:  # the latter when a file of ours cannot be read, say
            log.warning("fleet %s: %s", one.policy.name, error)
            one.trouble = str(error)
        self._board.expect(
            Coming(each.policy, rented.machine.name, rented.since, each.took_s)
            for each in self._fleets for rented in each.kept if rented.is_coming
        )  # fmt: skip

    async def _see(self, one: _Standing, now: float) -> None:
        """What the cloud has of ours, and since when each of them idles or is lost.

        One that was just created is not forgotten because the cloud does not list it yet.
        """
        price = await one.cloud.price_per_h()
        if price is not None and not one.policy.kind.price_per_h:
            one.policy = replace(one.policy, kind=replace(one.policy.kind, price_per_h=price))
        listed = {machine.name: machine for machine in await one.cloud.machines() if one.policy.owns(machine.name)}
        for name, machine in listed.items():
            rented = one.rented.setdefault(name, _Rented(machine, machine.created_at or now))
            rented.machine, rented.listed = machine, True
        for name in one.rented.keys() - listed.keys():
            gave_back_at = one.rented[name].gave_back_at
            if one.rented[name].listed or (gave_back_at is not None and now - gave_back_at >= one.policy.join_s):
                del one.rented[name]
        busy = self._busy()
        for name, rented in one.rented.items():
            self._note(one, rented, name in busy, now)

    def _note(self, one: _Standing, rented: _Rented, is_busy: bool, now: float) -> None:
        """What the site knows of it now."""
        name = rented.machine.name
        node = self._board.nodes.get(name)
        if node is not None and not rented.joined:
            rented.joined = True
            one.took_s = now - rented.since if rented.asked else one.took_s
        is_there = node is not None and node.state is not NodeState.LOST
        is_idle = is_there and not is_busy and not self._leaves(one, name)
        rented.idle_since = (rented.idle_since or now) if is_idle else None
        rented.lost_since = (rented.lost_since or now) if rented.joined and not is_there else None

    def _busy(self) -> set[str]:
        """The machines on which something runs, or starts."""
        return {held.lease.node for held in self._board.held()}

    def _members(self, one: _Standing) -> list[Member]:
        found = []
        for name, rented in sorted(one.rented.items()):
            leaves = rented.gave_back_at is not None or self._leaves(one, name)
            found.append(Member(name, rented.is_coming, leaves, rented.idle_since))
        return found

    def _waiting(self) -> list[Waiting]:
        """What more machines would help, in the order of the queue."""
        snapshot, found = self._board.snapshot, []
        for workload in self._board.in_state(State.QUEUED):
            ask = ask_of(workload)
            if over_quota(snapshot, ask, snapshot.grid.shape(ask.request)) is None:
                found.append(Waiting(ask.request, workload.since))
        return found

    # --- one less -------------------------------------------------------------------------------------------------

    async def _give_up(self, one: _Standing, now: float) -> None:
        """Those that failed, never joined, or are lost for a while. The fleet rests after one that never came."""
        for rented in list(one.rented.values()):
            if rented.gave_back_at is not None:
                if now - rented.gave_back_at >= GIVE_BACK_AGAIN_S:
                    rented.gave_back_at = now
                    await one.cloud.destroy(rented.machine)
            elif rented.lost_since is not None:
                patience_s = LOST_AND_BUSY_FOR_S if rented.machine.name in self._busy() else LOST_FOR_S
                if now - rented.lost_since >= patience_s:
                    node = self._board.nodes.get(rented.machine.name)
                    why = notes.PoolNodeForgotten() if node is None else notes.PoolNodeLost(detail=node.reason)
                    await self._give_back(one, rented, why)
            elif not rented.joined and (rented.machine.failed or now - rented.since >= one.policy.join_s):
                failed = rented.machine.failed
                await self._give_back(
                    one,
                    rented,
                    notes.PoolNodeFailed() if failed else notes.PoolNodeDidNotJoin(join_s=one.policy.join_s),
                )
                what = "failed at the cloud" if failed else f"did not join within {format_duration(one.policy.join_s)}"
                raise Unavailable(
                    f"{rented.machine.name} {what} and was given back; look at the cloud's console log of the next one"
                )

    async def _let_go(self, one: _Standing) -> None:
        """Those that were drained to go, and are empty."""
        for rented in one.kept:
            name = rented.machine.name
            if rented.lost_since is None and self._leaves(one, name) and name not in self._busy():
                await self._give_back(one, rented, notes.PoolNodeEmpty(by=one.who.name))

    async def _bury(self, one: _Standing) -> None:
        """Forget the machines that the cloud has no more."""
        kept = {rented.machine.name for rented in one.kept}
        for node in list(self._board.nodes.values()):
            is_over = node.state is NodeState.LOST or self._leaves(one, node.name)
            if is_over and one.policy.owns(node.name) and node.name not in kept:
                await self._forget(one, node.name)

    async def _give_back(self, one: _Standing, rented: _Rented, why: Reason) -> None:
        await one.cloud.destroy(rented.machine)
        rented.gave_back_at = self._clock.now()
        await self._tell(one, notes.PoolNodeRemoved(node=rented.machine.name, cause=why), -1)
        await self._forget(one, rented.machine.name)

    async def _forget(self, one: _Standing, name: str) -> None:
        """Its certificate and its place in the Swarm are taken back, and the site knows it no more.

        What still counts as running there may begin elsewhere then: so not before the cloud has the machine no more.
        """
        if name in one.rented and name in self._busy():
            return
        await self._departures.remove(one.who, name, force=True, gone=True)

    # --- one more -------------------------------------------------------------------------------------------------

    async def _carry_out(self, one: _Standing, now: float) -> None:
        for name in one.decision.remove:
            await self._departures.drain(one.who, name)
            one.rented[name].idle_since = None  # it idles anew if it is resumed
        while one.decision.add:
            name = f"{one.policy.name}-{self._chance(16**6):06x}"
            machine = await one.cloud.create(name, await self._user_data(one.policy, name))
            one.rented[name] = _Rented(machine, now, asked=True)
            one.decision = replace(one.decision, add=one.decision.add - 1)
            await self._tell(one, notes.PoolNodeAdded(node=name, cause=one.decision.why), 1)

    async def _user_data(self, policy: FleetPolicy, name: str) -> str:
        """With what it joins at its first start, under this name."""
        if self._joining is None:
            raise Unavailable('machines of a cloud join a Swarm; set `engine = "swarm"`, or take the fleets out')
        token = await self._joining.token(max(SHORTEST_TOKEN_S, min(LONGEST_TOKEN_S, policy.join_s)))
        labels = {**dict(policy.kind.labels), "fleet": policy.name}
        said = [part for key, value in sorted(labels.items()) for part in ("--label", f"{key}={value}")]
        return await self._joining.template(token.token, [*said, *policy.join_options], name)

    async def _tell(self, one: _Standing, what: notes.PoolNodeAdded | notes.PoolNodeRemoved, change: int) -> None:
        """An event, with what the fleet cost an hour before and costs after."""
        price, count = one.policy.kind.price_per_h, len(one.kept)
        what = replace(what, price_per_h=count * price, price_before_per_h=(count - change) * price)
        log.info("fleet %s: %s", one.policy.name, what)
        await self._ledger.write(events=[Event(EventKind.NODE, self._clock.now(), what)])
