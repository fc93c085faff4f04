"""Node pools: adds nodes in a cloud while work waits for them, and removes them when they are idle.

The cloud lists the nodes by name, and the nodes record who drained them. A cloud with an autoscaler adds and removes
its nodes by itself: it gets requests, and is not told to remove a node. So nothing is stored here that a restart
would lose. Clouds are slow: a requested node counts before the cloud lists it, a deleted one counts until the cloud
no longer lists it. A node is drained before it is deleted, and deleted only when the scheduler places nothing on it any
more. The policies are platform resources; the API shows them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from commonage.control.access import access_of
from commonage.control.nodes.drains import Drains
from commonage.control.settings import ControlSettings
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.domain.errors import CommonageError, Unavailable
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import Machine, NodeKey, NodePoolPolicy, NodePoolView, NodeState, PendingNode
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons import Reason, notes
from commonage.domain.requests import format_duration
from commonage.domain.resources import NodePool
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
LACKS_GPUS_FOR_S = 3600.0  # no node is added for this long after one without GPUs was there; then one more is tried
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
        return self.gave_back_at is None and not self.joined and not self.machine.failed


@dataclass(slots=True)
class _PoolState:
    """State of one node pool; `rented` by name. `took_s`: how long the last node took to join.

    `without_gpus`: the newest node, if it brought none although the pool declares some; `lacked_at`: when it was seen.
    It may be removed meanwhile, as an autoscaler removes an idle node: the next one would bring none, either.
    """

    policy: NodePoolPolicy
    cloud: Cloud
    declared: NodePool | None  # None: it was deleted, and ends with its last node
    rented: dict[str, _Rented] = field(default_factory=dict)
    took_s: float | None = None
    decision: ScalingDecision = field(default_factory=ScalingDecision)
    without_gpus: str = ""
    lacked_at: float = 0.0
    last_error: str = ""
    rests_until: float = 0.0

    @property
    def principal(self) -> Principal:
        """The principal under which its nodes are drained and removed."""
        return Principal(f"the node pool {self.policy.name}", frozenset(Scope))

    @property
    def is_left(self) -> bool:
        """Whether something is left to remove. Nodes of an autoscaler are not ours to remove."""
        autoscaled = self.cloud.is_autoscaled
        return any(not autoscaled or rented.machine.requested for rented in self.rented.values())

    @property
    def kept(self) -> list[_Rented]:
        return [rented for _, rented in sorted(self.rented.items()) if rented.gave_back_at is None]


@dataclass(frozen=True, slots=True)
class Renting:
    """The clouds, and what new machines start with. `chance(n)` is a random integer below n, for names.

    `cloud` returns the cloud of a pool, and raises InvalidInput for an unknown provider.
    """

    cloud: Callable[[NodePool], Cloud]
    joining: Joining | None
    chance: Callable[[int], int]


class NodePools:
    def __init__(
        self,
        renting: Renting,
        live_state: LiveState,
        writer: Writer,
        drains: Drains,
        clock: Clock,
        settings: ControlSettings,
    ) -> None:
        self._settings = settings
        self._node_pools: list[_PoolState] = []
        self._cloud, self._joining, self._chance = renting.cloud, renting.joining, renting.chance
        self._live_state, self._writer, self._drains, self._clock = live_state, writer, drains, clock
        self.iterations = Iterations("node_pools", clock.now, CLOUD_ITERATION_S)

    async def run(self) -> None:
        while True:
            await self.tick()
            with self.iterations.rest():
                await self._clock.sleep(TICK_S)

    def declare(self, node_pools: Sequence[NodePool]) -> None:
        """Replace the node pools by these. Nodes of a pool that is no longer declared are removed when they are
        idle.
        """
        before = {pool.policy.name: pool for pool in self._node_pools}
        self._node_pools = [self._declared(one, before.pop(one.policy.name, None)) for one in node_pools]
        for pool in before.values():
            pool.policy, pool.declared = replace(pool.policy, least=0, most=0, idle_s=0), None
        self._node_pools += [pool for pool in before.values() if pool.rented]
        self._live_state.set_node_pools([one.policy for one in node_pools])

    def _declared(self, wanted: NodePool, before: _PoolState | None) -> _PoolState:
        if before is None:
            return _PoolState(wanted.policy, self._cloud(wanted), wanted)
        if before.declared != wanted:
            before.policy, before.cloud, before.declared = wanted.policy, self._cloud(wanted), wanted
            before.without_gpus = ""
        return before

    def views(self, principal: Principal) -> Sequence[NodePoolView]:
        access_of(principal, self._settings).need(Permission.SEE_PLATFORM)
        return [self._view(pool) for pool in self._node_pools]

    def _view(self, pool: _PoolState) -> NodePoolView:
        now, price = self._clock.now(), pool.policy.kind.price_per_h
        count = len(pool.kept)
        goes = [rented.machine.name for rented in pool.kept if self._leaves(pool, rented.machine.name)]
        removing = tuple(dict.fromkeys((*goes, *pool.decision.remove)))
        after = count + pool.decision.add - len(removing)
        states = tuple((name, self._state(pool, rented, now)) for name, rented in sorted(pool.rented.items()))
        return NodePoolView(
            pool.policy, pool.cloud.provider, states, pool.decision.add, removing, pool.decision.why,
            count * price, after * price, pool.last_error,
        )  # fmt: skip

    def _state(self, pool: _PoolState, rented: _Rented, now: float) -> str:
        name = rented.machine.name
        node = self._live_state.nodes.get(NodeKey(pool.policy.site, name))
        if rented.gave_back_at is not None:
            return "given back"
        if node is None:
            return "failed" if rented.machine.failed else f"on its way for {format_duration(now - rented.since)}"
        if self._leaves(pool, name):
            return "leaving"
        if rented.idle_since is not None:
            return f"idle for {format_duration(now - rented.idle_since)}"
        return str(node.state)

    def _leaves(self, pool: _PoolState, name: str) -> bool:
        """True if it was drained for removal, as the node records over restarts, until it is resumed."""
        node = self._live_state.nodes.get(NodeKey(pool.policy.site, name))
        return node is not None and node.drained_by == pool.principal.name

    async def tick(self) -> None:
        for pool in list(self._node_pools):
            await self._check_pool(pool)
        self._node_pools = [pool for pool in self._node_pools if pool.declared is not None or pool.is_left]

    async def _check_pool(self, pool: _PoolState) -> None:
        now = self._clock.now()
        if now < pool.rests_until:
            return
        try:
            await self._observe(pool, now)
            await self._give_up(pool, now)
            await self._delete_drained(pool)
            await self._remove_deleted(pool)
            self._note_gpus(pool, now)
            members, waiting = self._members(pool, now), self._waiting()
            pool.decision = decide_scaling(pool.policy, members, waiting, now, pool.without_gpus)
            await self._carry_out(pool, now)
            pool.last_error = ""
        except Unavailable as error:
            log.warning("node pool %s: %s", pool.policy.name, error.message)
            pool.last_error, pool.rests_until = error.message, now + PAUSE_AFTER_ERROR_S
        except (CommonageError, OSError) as error:  # the latter when a local file cannot be read, for example
            log.warning("node pool %s: %s", pool.policy.name, error)
            pool.last_error = str(error)
        self._live_state.set_pending_nodes(
            PendingNode(each.policy, rented.machine.name, rented.since, each.took_s)
            for each in self._node_pools for rented in each.kept if rented.is_coming
        )  # fmt: skip

    async def _observe(self, pool: _PoolState, now: float) -> None:
        """Update the nodes that the cloud lists, and since when each is idle or lost.

        A node that was just created is kept although the cloud does not list it yet.
        """
        price = await pool.cloud.price_per_h()
        if price is not None and not pool.policy.kind.price_per_h:
            pool.policy = replace(pool.policy, kind=replace(pool.policy.kind, price_per_h=price))
        autoscaled = pool.cloud.is_autoscaled
        found = await pool.cloud.machines()
        listed = {machine.name: machine for machine in found if autoscaled or pool.policy.owns(machine.name)}
        served = sorted(
            (
                one
                for name, one in pool.rented.items()
                if name not in listed and one.machine.requested and one.is_coming
            ),
            key=lambda one: one.since,
        )
        for name, machine in listed.items():
            if name not in pool.rented:
                asked = served.pop(0) if served and not machine.requested else None
                since = machine.created_at or now if asked is None else asked.since
                pool.rented[name] = _Rented(machine, since, asked is not None)
            rented = pool.rented[name]
            rented.machine, rented.listed = machine, True
        for name in pool.rented.keys() - listed.keys():
            gave_back_at = pool.rented[name].gave_back_at
            is_late = gave_back_at is not None and now - gave_back_at >= pool.policy.join_s
            if autoscaled or pool.rented[name].listed or is_late:
                del pool.rented[name]
        busy = self._busy(pool)
        for name, rented in pool.rented.items():
            self._note(pool, rented, name in busy, now)

    def _note(self, pool: _PoolState, rented: _Rented, is_busy: bool, now: float) -> None:
        name = rented.machine.name
        node = self._live_state.nodes.get(NodeKey(pool.policy.site, name))
        if node is not None and not rented.joined and not rented.machine.starting:
            rented.joined = True
            pool.took_s = now - rented.since if rented.asked else pool.took_s
        is_there = node is not None and node.state is not NodeState.LOST
        is_idle = is_there and not is_busy and not self._leaves(pool, name)
        rented.idle_since = (rented.idle_since or now) if is_idle else None
        rented.lost_since = (rented.lost_since or now) if rented.joined and not is_there else None

    def _busy(self, pool: _PoolState) -> set[str]:
        """The names of the nodes of the pool's site that have an allocation."""
        allocations = (allocated.allocation for allocated in self._live_state.allocated())
        return {allocation.node for allocation in allocations if allocation.site == pool.policy.site}

    def _lacks_gpus(self, pool: _PoolState, rented: _Rented) -> bool:
        """Whether the site knows the node, and no GPU of it. A driver takes a while."""
        node = self._live_state.nodes.get(NodeKey(pool.policy.site, rented.machine.name))
        return pool.policy.kind.gpus > 0 and node is not None and not node.report.devices

    def _note_gpus(self, pool: _PoolState, now: float) -> None:
        known = [
            rented
            for name, rented in sorted(pool.rented.items())
            if NodeKey(pool.policy.site, name) in self._live_state.nodes
        ]
        newest = max(known, key=lambda rented: rented.since, default=None)
        if newest is not None and not self._lacks_gpus(pool, newest):
            pool.without_gpus = ""
        elif newest is not None and now - newest.since >= pool.policy.join_s:
            if pool.without_gpus != newest.machine.name:
                log.warning("node pool %s: %s has no GPU, so no node is added", pool.policy.name, newest.machine.name)
            pool.without_gpus, pool.lacked_at = newest.machine.name, now
        elif now - pool.lacked_at >= LACKS_GPUS_FOR_S:
            pool.without_gpus = ""

    def _members(self, pool: _PoolState, now: float) -> list[PoolNode]:
        found = []
        for name, rented in sorted(pool.rented.items()):
            leaves = rented.gave_back_at is not None or self._leaves(pool, name)
            idle_since = rented.idle_since
            if pool.cloud.is_autoscaled:  # it removes idle nodes; a request is of no use once nothing waits
                idle_since = 0.0 if rented.machine.requested else None
            gpus_come = self._lacks_gpus(pool, rented) and now - rented.since < pool.policy.join_s
            found.append(PoolNode(name, rented.is_coming or gpus_come, leaves, idle_since))
        return found

    def _waiting(self) -> list[PendingRequest]:
        """Queued requests that more nodes would help, in the order of the queue."""
        snapshot, found = self._live_state.snapshot, []
        for workload in self._live_state.in_state(State.QUEUED):
            ask = self._live_state.queued(workload.id)
            if ask is not None and over_quota(snapshot, ask, snapshot.grid.shape(ask.request)) is None:
                found.append(PendingRequest(ask.request, workload.since))
        return found

    async def _give_up(self, pool: _PoolState, now: float) -> None:
        """Remove nodes that failed, never joined, or stay lost. If one never joined, the node pool pauses."""
        for rented in list(pool.rented.values()):
            if rented.gave_back_at is not None:
                if now - rented.gave_back_at >= GIVE_BACK_AGAIN_S:
                    rented.gave_back_at = now
                    await pool.cloud.destroy(rented.machine)
            elif pool.cloud.is_autoscaled and not rented.machine.requested:
                continue
            elif rented.lost_since is not None:
                reconnect_timeout_s = LOST_AND_BUSY_FOR_S if rented.machine.name in self._busy(pool) else LOST_FOR_S
                if now - rented.lost_since >= reconnect_timeout_s:
                    node = self._live_state.nodes.get(NodeKey(pool.policy.site, rented.machine.name))
                    why = notes.PoolNodeForgotten() if node is None else notes.PoolNodeLost(causes=node.reasons)
                    await self._give_back(pool, rented, why)
            elif not rented.joined and (rented.machine.failed or now - rented.since >= pool.policy.join_s):
                failed = rented.machine.failed
                await self._give_back(
                    pool,
                    rented,
                    notes.PoolNodeFailed() if failed else notes.PoolNodeDidNotJoin(join_s=pool.policy.join_s),
                )
                within = format_duration(pool.policy.join_s)
                if rented.machine.requested:
                    raise Unavailable(
                        f"the autoscaler made no node for {rented.machine.name} within {within}, so it was deleted; "
                        "look at the autoscaler's log, and compare the resources and labels of the pool with its nodes"
                    )
                what = "failed at the cloud" if failed else f"did not join within {within}"
                raise Unavailable(
                    f"{rented.machine.name} {what} and was given back; look at the cloud's console log of the next one"
                )

    async def _delete_drained(self, pool: _PoolState) -> None:
        for rented in pool.kept:
            name = rented.machine.name
            if rented.lost_since is None and self._leaves(pool, name) and name not in self._busy(pool):
                await self._give_back(pool, rented, notes.PoolNodeEmpty(by=pool.principal.name))

    async def _remove_deleted(self, pool: _PoolState) -> None:
        """Remove the nodes that the cloud no longer has."""
        kept = {rented.machine.name for rented in pool.kept}
        for node in list(self._live_state.nodes.values()):
            is_over = node.state is NodeState.LOST or self._leaves(pool, node.name)
            is_named = pool.policy.has_labels(node) if pool.cloud.is_autoscaled else pool.policy.owns(node.name)
            mine = node.site == pool.policy.site and is_named
            if is_over and mine and node.name not in kept:
                await self._forget(pool, node.name)

    async def _give_back(self, pool: _PoolState, rented: _Rented, why: Reason) -> None:
        await pool.cloud.destroy(rented.machine)
        rented.gave_back_at = self._clock.now()
        await self._tell(pool, notes.PoolNodeRemoved(node=rented.machine.name, cause=why), -1)
        await self._forget(pool, rented.machine.name)

    async def _forget(self, pool: _PoolState, name: str) -> None:
        """Revoke the node's certificate and its place in the Swarm, and remove it from the site.

        Workloads still counted as running there may then start elsewhere, so this waits until the cloud no longer has
        the node.
        """
        if name in pool.rented and name in self._busy(pool):
            return
        await self._drains.remove(pool.principal, NodeKey(pool.policy.site, name), force=True, gone=True)

    async def _carry_out(self, pool: _PoolState, now: float) -> None:
        for name in pool.decision.remove:
            if pool.rented[name].machine.requested:
                await self._give_back(pool, pool.rented[name], pool.decision.why)
                continue
            await self._drains.drain(pool.principal, NodeKey(pool.policy.site, name))
            pool.rented[name].idle_since = None  # its idle time restarts if it is resumed
        while pool.decision.add:
            name = f"{pool.policy.name}-{self._chance(16**6):06x}"
            user_data = "" if pool.cloud.is_autoscaled else await self._user_data(pool.policy, name)
            machine = await pool.cloud.create(name, user_data)
            pool.rented[name] = _Rented(machine, now, asked=True)
            pool.decision = replace(pool.decision, add=pool.decision.add - 1)
            await self._tell(pool, notes.PoolNodeAdded(node=name, cause=pool.decision.why), 1)

    async def _user_data(self, policy: NodePoolPolicy, name: str) -> str:
        if self._joining is None:
            raise Unavailable('nodes of a cloud join a Swarm; set `engine = "swarm"`, or take the node pools out')
        token = await self._joining.token(max(SHORTEST_TOKEN_S, min(LONGEST_TOKEN_S, policy.join_s)))
        labels = {**dict(policy.kind.labels), "node-pool": policy.name}
        options = [part for key, value in sorted(labels.items()) for part in ("--label", f"{key}={value}")]
        return await self._joining.template(token.token, [*options, *policy.join_options], name)

    async def _tell(self, pool: _PoolState, what: notes.PoolNodeAdded | notes.PoolNodeRemoved, change: int) -> None:
        price, count = pool.policy.kind.price_per_h, len(pool.kept)
        what = replace(what, price_per_h=count * price, price_before_per_h=(count - change) * price)
        log.info("node pool %s: %s", pool.policy.name, what)
        await self._writer.write(events=[Event(EventKind.NODE, self._clock.now(), what)])
