"""Node pools: adds nodes in a cloud while work waits for them, and removes them when they are idle.

The cloud lists the nodes by name, and the nodes record who drained them. So nothing is stored here that a restart
would lose. Clouds are slow: a requested node counts before the cloud lists it, a deleted one counts until the cloud
no longer lists it. A node is drained before it is deleted, and deleted only when the planner places nothing on it any
more. The policies come from the settings; the API shows them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from commonage.control.nodes.drains import Drains
from commonage.control.state.live_state import LiveState, queued_request_of
from commonage.control.state.writer import Writer
from commonage.domain.errors import CommonageError, Unavailable
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import Machine, NodePoolPolicy, NodePoolView, NodeState, PendingNode
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons import Reason, notes
from commonage.domain.requests import format_duration
from commonage.domain.workloads import Event, EventKind, State
from commonage.ports.clock import Clock
from commonage.ports.clouds import Cloud
from commonage.ports.joining import Joining
from commonage.scheduler.autoscaling import PendingRequest, PoolNode, ScalingDecision, decide_scaling
from commonage.scheduler.explain.shortfalls import over_quota

log = logging.getLogger(__name__)
TICK_S = 15.0
CLOUD_ITERATION_S = 600.0  # clouds answer slowly, and are asked one after the other
PAUSE_AFTER_ERROR_S = 120.0
LOST_FOR_S = 60.0  # time for a lost node to come back,
LOST_AND_BUSY_FOR_S = 600.0  # and for a lost node with workloads: the control plane itself may be cut off
GIVE_BACK_AGAIN_S = 300.0  # retry interval while the cloud still lists a node whose deletion it accepted
SHORTEST_TOKEN_S, LONGEST_TOKEN_S = 600, 7 * 86400


@dataclass(slots=True)
class _Rented:
    """A node of this installation, from its request until the cloud no longer has it. Times are unix seconds.

    `since` is when it was requested, or found. `asked`: requested by this process. `listed`: the cloud has listed it.
    `joined`: the site knows it, or did. `idle_since` and `lost_since` are None while it is not idle or not lost.
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
        """True if it may still join."""
        return self.gave_back_at is None and not self.joined and not self.machine.failed


@dataclass(slots=True)
class _PoolState:
    """State of one node pool; `rented` by name. `took_s`: how long the last node took to join."""

    policy: NodePoolPolicy
    cloud: Cloud
    rented: dict[str, _Rented] = field(default_factory=dict)
    took_s: float | None = None
    decision: ScalingDecision = field(default_factory=ScalingDecision)
    last_error: str = ""
    rests_until: float = 0.0

    @property
    def who(self) -> Principal:
        """The principal under which its nodes are drained and removed."""
        return Principal(f"the node pool {self.policy.name}", frozenset(Scope))

    @property
    def kept(self) -> list[_Rented]:
        """The nodes that were not given back."""
        return [rented for _, rented in sorted(self.rented.items()) if rented.gave_back_at is None]


@dataclass(frozen=True, slots=True)
class Renting:
    """Clouds and policies, and what new machines start with. `chance(n)` is a random integer below n, for names."""

    clouds: Sequence[tuple[NodePoolPolicy, Cloud]]
    joining: Joining | None
    chance: Callable[[int], int]


class NodePools:
    """All node pools, as their clouds report them."""

    def __init__(self, renting: Renting, live_state: LiveState, writer: Writer, drains: Drains, clock: Clock) -> None:
        self._node_pools = [_PoolState(policy, cloud) for policy, cloud in renting.clouds]
        self._joining, self._chance = renting.joining, renting.chance
        self._live_state, self._writer, self._drains, self._clock = live_state, writer, drains, clock
        self.iterations = Iterations("node_pools", clock.now, CLOUD_ITERATION_S)

    async def run(self) -> None:
        """Check each node pool every few seconds, until cancelled."""
        while True:
            for one in self._node_pools:
                await self._check_pool(one)
            with self.iterations.rest():
                await self._clock.sleep(TICK_S)

    def views(self, who: Principal) -> Sequence[NodePoolView]:
        """Each node pool, with the next step of its policy and its cost. For admins."""
        who.need(Scope.ADMIN)
        return [self._view(one) for one in self._node_pools]

    def _view(self, one: _PoolState) -> NodePoolView:
        now, price = self._clock.now(), one.policy.kind.price_per_h
        count = len(one.kept)
        goes = [rented.machine.name for rented in one.kept if self._leaves(one, rented.machine.name)]
        removing = tuple(dict.fromkeys((*goes, *one.decision.remove)))
        after = count + one.decision.add - len(removing)
        states = tuple((name, self._state(one, rented, now)) for name, rented in sorted(one.rented.items()))
        return NodePoolView(
            one.policy, one.cloud.provider, states, one.decision.add, removing, one.decision.why,
            count * price, after * price, one.last_error,
        )  # fmt: skip

    def _state(self, one: _PoolState, rented: _Rented, now: float) -> str:
        name = rented.machine.name
        node = self._live_state.nodes.get(name)
        if rented.gave_back_at is not None:
            return "given back"
        if node is None:
            return "failed" if rented.machine.failed else f"on its way for {format_duration(now - rented.since)}"
        if self._leaves(one, name):
            return "leaving"
        if rented.idle_since is not None:
            return f"idle for {format_duration(now - rented.idle_since)}"
        return str(node.state)

    def _leaves(self, one: _PoolState, name: str) -> bool:
        """True if it was drained for removal, as the node records over restarts, until it is resumed."""
        node = self._live_state.nodes.get(name)
        return node is not None and node.drained_by == one.who.name

    # --- observe --------------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Check each node pool once."""
        for one in self._node_pools:
            await self._check_pool(one)

    async def _check_pool(self, one: _PoolState) -> None:
        now = self._clock.now()
        if now < one.rests_until:
            return
        try:
            await self._see(one, now)
            await self._give_up(one, now)
            await self._let_go(one)
            await self._bury(one)
            one.decision = decide_scaling(one.policy, self._members(one), self._waiting(), now)
            await self._carry_out(one, now)
            one.last_error = ""
        except Unavailable as error:
            log.warning("node pool %s: %s", one.policy.name, error.message)
            one.last_error, one.rests_until = error.message, now + PAUSE_AFTER_ERROR_S
        except (CommonageError, OSError) as error:  # the latter when a local file cannot be read, for example
            log.warning("node pool %s: %s", one.policy.name, error)
            one.last_error = str(error)
        self._live_state.set_pending_nodes(
            PendingNode(each.policy, rented.machine.name, rented.since, each.took_s)
            for each in self._node_pools for rented in each.kept if rented.is_coming
        )  # fmt: skip

    async def _see(self, one: _PoolState, now: float) -> None:
        """Update the nodes that the cloud lists, and since when each is idle or lost.

        A node that was just created is kept although the cloud does not list it yet.
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

    def _note(self, one: _PoolState, rented: _Rented, is_busy: bool, now: float) -> None:
        """Update a node with its state at the site."""
        name = rented.machine.name
        node = self._live_state.nodes.get(name)
        if node is not None and not rented.joined:
            rented.joined = True
            one.took_s = now - rented.since if rented.asked else one.took_s
        is_there = node is not None and node.state is not NodeState.LOST
        is_idle = is_there and not is_busy and not self._leaves(one, name)
        rented.idle_since = (rented.idle_since or now) if is_idle else None
        rented.lost_since = (rented.lost_since or now) if rented.joined and not is_there else None

    def _busy(self) -> set[str]:
        """The nodes on which something runs, or starts."""
        return {allocated.allocation.node for allocated in self._live_state.allocated()}

    def _members(self, one: _PoolState) -> list[PoolNode]:
        found = []
        for name, rented in sorted(one.rented.items()):
            leaves = rented.gave_back_at is not None or self._leaves(one, name)
            found.append(PoolNode(name, rented.is_coming, leaves, rented.idle_since))
        return found

    def _waiting(self) -> list[PendingRequest]:
        """Queued requests that more nodes would help, in the order of the queue."""
        snapshot, found = self._live_state.snapshot, []
        for workload in self._live_state.in_state(State.QUEUED):
            ask = queued_request_of(workload)
            if over_quota(snapshot, ask, snapshot.grid.shape(ask.request)) is None:
                found.append(PendingRequest(ask.request, workload.since))
        return found

    # --- remove ---------------------------------------------------------------------------------------------------

    async def _give_up(self, one: _PoolState, now: float) -> None:
        """Remove nodes that failed, never joined, or stay lost. If one never joined, the node pool pauses."""
        for rented in list(one.rented.values()):
            if rented.gave_back_at is not None:
                if now - rented.gave_back_at >= GIVE_BACK_AGAIN_S:
                    rented.gave_back_at = now
                    await one.cloud.destroy(rented.machine)
            elif rented.lost_since is not None:
                reconnect_timeout_s = LOST_AND_BUSY_FOR_S if rented.machine.name in self._busy() else LOST_FOR_S
                if now - rented.lost_since >= reconnect_timeout_s:
                    node = self._live_state.nodes.get(rented.machine.name)
                    why = notes.PoolNodeForgotten() if node is None else notes.PoolNodeLost(causes=node.reasons)
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

    async def _let_go(self, one: _PoolState) -> None:
        """Delete the nodes that were drained for removal and are empty."""
        for rented in one.kept:
            name = rented.machine.name
            if rented.lost_since is None and self._leaves(one, name) and name not in self._busy():
                await self._give_back(one, rented, notes.PoolNodeEmpty(by=one.who.name))

    async def _bury(self, one: _PoolState) -> None:
        """Remove the nodes that the cloud no longer has."""
        kept = {rented.machine.name for rented in one.kept}
        for node in list(self._live_state.nodes.values()):
            is_over = node.state is NodeState.LOST or self._leaves(one, node.name)
            if is_over and one.policy.owns(node.name) and node.name not in kept:
                await self._forget(one, node.name)

    async def _give_back(self, one: _PoolState, rented: _Rented, why: Reason) -> None:
        await one.cloud.destroy(rented.machine)
        rented.gave_back_at = self._clock.now()
        await self._tell(one, notes.PoolNodeRemoved(node=rented.machine.name, cause=why), -1)
        await self._forget(one, rented.machine.name)

    async def _forget(self, one: _PoolState, name: str) -> None:
        """Revoke the node's certificate and its place in the Swarm, and remove it from the site.

        Workloads still counted as running there may then start elsewhere, so this waits until the cloud no longer has
        the node.
        """
        if name in one.rented and name in self._busy():
            return
        await self._drains.remove(one.who, name, force=True, gone=True)

    # --- add ------------------------------------------------------------------------------------------------------

    async def _carry_out(self, one: _PoolState, now: float) -> None:
        for name in one.decision.remove:
            await self._drains.drain(one.who, name)
            one.rented[name].idle_since = None  # its idle time restarts if it is resumed
        while one.decision.add:
            name = f"{one.policy.name}-{self._chance(16**6):06x}"
            machine = await one.cloud.create(name, await self._user_data(one.policy, name))
            one.rented[name] = _Rented(machine, now, asked=True)
            one.decision = replace(one.decision, add=one.decision.add - 1)
            await self._tell(one, notes.PoolNodeAdded(node=name, cause=one.decision.why), 1)

    async def _user_data(self, policy: NodePoolPolicy, name: str) -> str:
        """The user data with which a node of this name joins at its first start."""
        if self._joining is None:
            raise Unavailable('nodes of a cloud join a Swarm; set `engine = "swarm"`, or take the node pools out')
        token = await self._joining.token(max(SHORTEST_TOKEN_S, min(LONGEST_TOKEN_S, policy.join_s)))
        labels = {**dict(policy.kind.labels), "node-pool": policy.name}
        said = [part for key, value in sorted(labels.items()) for part in ("--label", f"{key}={value}")]
        return await self._joining.template(token.token, [*said, *policy.join_options], name)

    async def _tell(self, one: _PoolState, what: notes.PoolNodeAdded | notes.PoolNodeRemoved, change: int) -> None:
        """Write an event with the hourly cost of the node pool before and after the change."""
        price, count = one.policy.kind.price_per_h, len(one.kept)
        what = replace(what, price_per_h=count * price, price_before_per_h=(count - change) * price)
        log.info("node pool %s: %s", one.policy.name, what)
        await self._writer.write(events=[Event(EventKind.NODE, self._clock.now(), what)])
