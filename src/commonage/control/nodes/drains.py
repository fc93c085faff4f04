"""Drains nodes and removes them. Workloads are evicted at once or at a deadline.

Called by the API and the portal for admins, and through its link by a node that leaves; the loop enforces the
deadlines. The lifecycle defines what an eviction means for a workload. `nodes` and the scheduler ensure that nothing
new starts on a drained node.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from commonage.control.access import access_of
from commonage.control.nodes.nodes import Nodes
from commonage.control.settings import ControlSettings
from commonage.control.state.feed import event_of
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.domain.errors import CommonageError, Conflict, InvalidInput
from commonage.domain.iterations import Iterations
from commonage.domain.lifecycle import AttemptLost, StopRequested
from commonage.domain.nodes import LOCAL_SITE, Node, NodeKey, NodeState
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import NodeDrained, NodeLeft, NodeRemoved
from commonage.domain.reasons.nodes import NodeInUse
from commonage.domain.reasons.notes import Fate, NodeMustBeEmpty
from commonage.domain.time_zones import utc
from commonage.domain.workloads import Event, EventKind, Kind, State, StopCause, StopRequest, Workload
from commonage.ports.clock import Clock
from commonage.ports.joining import Joining

log = logging.getLogger(__name__)
TICK_S = 2.0
_MAX_NAMED = 5


class Drains:
    def __init__(
        self,
        live_state: LiveState,
        writer: Writer,
        nodes: Nodes,
        clock: Clock,
        settings: ControlSettings,
        joining: Mapping[str, Joining] = MappingProxyType({}),
    ) -> None:
        self._settings = settings
        self._live_state, self._writer, self._nodes = live_state, writer, nodes
        self._clock, self._joining = clock, joining
        self.iterations = Iterations("drains", clock.now)

    async def drain(
        self, principal: Principal, key: NodeKey, *, requeue: bool = False, by: float | None = None
    ) -> Node:
        """Stop scheduling onto a node, and notify the owners of its workloads. For admins.

        With `requeue`, jobs and services that can be requeued are requeued now, and sessions with restart enabled are
        restarted elsewhere. `by` (unix seconds) is the deadline for all remaining workloads; None: they may run to
        their end. Draining again replaces the deadline. Raises NotFound, Forbidden, InvalidInput.
        """
        access_of(principal, self._settings).need(Permission.DRAIN_NODES)
        now = self._clock.now()
        if by is not None and by <= now:
            raise InvalidInput(
                f"the deadline {_moment(by)} is over; for right now drain without one and with requeue",
                field="by",
                code="invalid-time",
            )
        before = self._live_state.node(key).leave_by
        node = await self._nodes.drain(principal, key, True, by)
        eviction = StopRequest(
            principal.name, now, StopCause.EVICTION, NodeDrained(node=node.key.label, by=node.drained_by)
        )
        evicted: list[Workload] = []
        warnings: list[Event] = []
        for workload in self._on(key):
            if requeue and (workload.spec.requeue or _may_be_interrupted(workload)):
                evicted.append(workload)
            elif by is not None and by != before:
                warning = NodeMustBeEmpty(
                    node=node.key.label, by=node.drained_by, leave_by_at=by, left_s=by - now, fate=_fate(workload)
                )
                warnings.append(event_of(workload, EventKind.WARNING, now, warning))
        if warnings:
            await self._writer.write(events=warnings)
        for workload in evicted:
            await self._writer.apply(workload.id, StopRequested(eviction))
        return node

    async def run(self) -> None:
        while True:
            with self.iterations.rest():
                await self._clock.sleep(TICK_S)
            self.tick()

    def tick(self) -> None:
        if self._writer.stuck:
            return  # the store does not answer: repeating the same change every tick would only pile up
        now = self._clock.now()
        for node in self._live_state.nodes.values():
            if not node.drain or node.leave_by is None or node.leave_by > now:
                continue
            for workload in self._on(node.key):
                if workload.stop is None:
                    log.info("workload %s: its node %s must be empty now", workload.id, node.name)
                    self._writer.note(workload.id, StopRequested(_at_the_deadline(workload, node, now)))

    async def remove(
        self, principal: Principal, key: NodeKey, *, force: bool = False, gone: bool = False
    ) -> Sequence[str]:
        """Remove a node and revoke its access. It must not be ready, and nothing may run on it. For admins.

        With `force`, workloads still counted as running on a lost node are given up: the admin asserts that they no
        longer run. For a node that is `gone` for good, join tokens of others stay valid. Returns what was done, as
        sentences. A node that reports again later has joined again. Raises NotFound, Forbidden, Conflict; Unavailable,
        with nothing done, when the disk is full.
        """
        access_of(principal, self._settings).need(Permission.MANAGE_PLATFORM)
        node = self._live_state.nodes.get(key)
        if node is not None:
            await self._may_be_removed(principal, node, force)
        elif not gone and not await self._is_let_in(key):
            self._live_state.node(key)
        joins = self._joining.get(key.site)
        done = () if joins is None else await joins.remove_node(key.name, gone=gone)
        if node is None:
            return done
        await self._forget(node, NodeRemoved(node=key.label, by=principal.name))
        later = "" if done else "; it is back if it reports again"
        return [f"{key.label} is removed{later}", *done]

    async def left(self, name: str) -> None:
        await self.left_site(LOCAL_SITE, name)

    async def left_site(self, site: str, name: str) -> None:
        """Remove a node that reports that it has left the site and that nothing runs on it any more.

        Workloads still counted as running there ended when it left; they are handled as after a drain deadline.
        """
        key = NodeKey(site, name)
        node = self._live_state.nodes.get(key)
        if node is None:
            return
        self._nodes.suspect(key)  # nothing more is scheduled onto it
        now, why = self._clock.now(), NodeLeft(node=key.label)
        for workload in self._on(key):
            self._writer.note(workload.id, StopRequested(_taken_away(workload, f"the node {name}", now, why)))
        await self._forget(node, why)

    async def finish_leave(self, name: str) -> None:
        try:
            joins = self._joining.get(LOCAL_SITE)
            done = () if joins is None else await joins.remove_node(name, gone=True)
        except (CommonageError, OSError) as error:
            log.warning("%s has left, and may still be let in (`commonage node rm %s`): %s", name, name, error)
        else:
            log.info("%s has left: %s", name, "; ".join(done))

    async def _is_let_in(self, key: NodeKey) -> bool:
        joins = self._joining.get(key.site)
        return joins is not None and await joins.is_admitted(key.name)

    async def _forget(self, node: Node, why: Reason) -> None:
        await self._give_up(node.key, why)
        await self._nodes.forget(node, [Event(EventKind.NODE, self._clock.now(), why)])
        await self._writer.write()  # allocations made at this moment are in the live state after this
        await self._give_up(node.key, why)
        log.info("site %s: %s", node.site, why)

    async def _give_up(self, key: NodeKey, why: Reason) -> None:
        for workload in self._on(key):
            if workload.attempt is not None:
                await self._writer.apply(workload.id, AttemptLost(workload.attempt.id, why))

    async def _may_be_removed(self, principal: Principal, node: Node, force: bool) -> None:
        if node.state is NodeState.READY:
            raise Conflict(NodeInUse(node=node.key.label, state=node.state.value), code="node-in-use")
        workloads = self._on(node.key)
        if not workloads and node.state is NodeState.FAULTY:  # it could become ready in between
            await self._nodes.drain(principal, node.key, True)
            workloads = self._on(node.key)
        is_lost = node.state is NodeState.LOST
        if not workloads or (is_lost and force):
            return
        in_use = NodeInUse(
            node=node.key.label,
            state=node.state.value,
            reasons=node.reasons,
            workloads=len(workloads),
            names=_names(workloads),
        )
        raise Conflict(in_use, code="node-in-use")

    def _on(self, key: NodeKey) -> list[Workload]:
        holding = self._live_state.in_state(State.STARTING, State.RUNNING)
        return [
            workload
            for workload in holding
            if workload.attempt is not None and workload.attempt.allocation.node_key == key
        ]


def _may_be_interrupted(workload: Workload) -> bool:
    """Preemption requeues these workloads at any time, so a drain may requeue them, too."""
    return workload.spec.preemptible and workload.spec.kind is not Kind.SESSION


def _at_the_deadline(workload: Workload, node: Node, now: float) -> StopRequest:
    why = NodeDrained(node=node.key.label, by=node.drained_by, leave_by_at=node.leave_by or now)
    return _taken_away(workload, "the drain", now, why)


def _taken_away(workload: Workload, by: str, now: float, reason: Reason) -> StopRequest:
    stays_ended = workload.spec.kind is not Kind.SESSION and not (
        workload.spec.requeue or _may_be_interrupted(workload)
    )
    return StopRequest(by, now, StopCause.ADMIN if stays_ended else StopCause.EVICTION, reason)


def _fate(workload: Workload) -> Fate:
    if workload.spec.kind is Kind.SESSION:
        return Fate.SESSION_RESTARTS if workload.spec.requeue else Fate.SESSION_ENDS
    return Fate.REQUEUED if workload.spec.requeue or _may_be_interrupted(workload) else Fate.ENDS


def _names(workloads: Sequence[Workload]) -> str:
    named = [
        f"{workload.spec.name or workload.spec.kind.value} of {workload.spec.owner} ({workload.id})"
        for workload in workloads[:_MAX_NAMED]
    ]
    more = len(workloads) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _moment(at: float) -> str:
    return f"{utc(at):%Y-%m-%d %H:%M} UTC"
