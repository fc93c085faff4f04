"""Fences a lost node: its attempts are ended, or known to be paused, before they start elsewhere.

A node is lost when the Swarm marks it as down, or when it left the Swarm. `partition_detector.py` decides when attempts
on it certainly do not run any more. If the node's agent answers, it ends them first. The agent of a partitioned node
has paused them; when it reconnects, it learns which attempts continue. Used by `container_client`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

from commonage.domain.errors import EngineFailure
from commonage.domain.iterations import Iterations
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import NodeLost
from commonage.domain.reasons.nodes import FencedByAgent, MayStillRun, NotInSwarm, SwarmNodeDown
from commonage.engines.containers.attempt_backend import Run
from commonage.engines.containers.files.control_folder import ControlFolder
from commonage.engines.rundir.runs import Exit
from commonage.engines.rundir.tasks import InThread
from commonage.engines.swarm.nodes.node_tracker import NodeTracker
from commonage.ports.agents import AgentReport

# The entry reads a request within a second; its effect shows on a shared folder a moment later.
REACTS_WITHIN_S = 1.6
_POLLS = 16
_KILLED = 137
_RESOLVE_PAUSE_S = 1.0


class Fencing:
    """Fencing of the attempts on `nodes`."""

    def __init__(self, nodes: NodeTracker, in_thread: InThread) -> None:
        self.nodes = nodes
        self._in_thread = in_thread
        self._ending: dict[str, str] = {}  # attempts that agents are ending, and their nodes
        self._given_up: set[str] = set()

    # --- is it lost? ----------------------------------------------------------------------------------------------

    def why_lost(self, attempt_id: str, node_id: str, node: str) -> Reason | None:
        """Why the attempts of this node must be given up; None while they need not be."""
        swarm_node = self.nodes.by_id.get(node_id)
        if swarm_node is None and node_id:
            return NodeLost(node=node, cause=NotInSwarm(node=node, nodes=tuple(sorted(self.nodes.swarm_nodes))))
        if self.was_fenced(attempt_id, node):
            return NodeLost(node=node, cause=FencedByAgent())
        if swarm_node is not None and swarm_node.is_down and node not in self.nodes.waits:
            return NodeLost(node=node, cause=SwarmNodeDown(error=swarm_node.why_down))
        return None

    def was_fenced(self, attempt_id: str, node: str) -> bool:
        """True if the node's agent ended it, because the daemon there could not."""
        agent_report = self.nodes.agent_reports.get(node)
        return agent_report is not None and attempt_id in agent_report.fenced

    def nodes_being_fenced(self) -> set[str]:
        """Names of the down nodes whose agents are ending attempts."""
        swarm_nodes = self.nodes.swarm_nodes
        self._ending = {
            attempt_id: node
            for attempt_id, node in self._ending.items()
            if node in swarm_nodes and swarm_nodes[node].is_down
        }
        return set(self._ending.values())

    # --- ending -------------------------------------------------------------------------------------------------

    async def fence_attempt(self, attempt_id: str, node: str) -> bool:
        """Have the node's agent end the attempt before it is given up. If the agent is away, it is paused by now.

        Returns False for a node that left the Swarm, because its state is unknown. Raises EngineFailure while the
        attempt may run there: it must not start elsewhere yet.
        """
        agents = self.nodes.agent_of(node)
        if self.was_fenced(attempt_id, node):
            return True
        if agents is None:
            if node in self.nodes.waits:  # its link was lost since
                raise EngineFailure(MayStillRun(node=node, cause=self.nodes.waits[node].why), retryable=True)
            self._given_up.add(attempt_id)
            return node in self.nodes.swarm_nodes
        self._ending[attempt_id] = node
        try:
            gone = await agents.fence(self.nodes.id_of(node), [attempt_id])
        except EngineFailure as error:
            raise EngineFailure(
                f"it is being ended on {node} first: {error.message}", retryable=True, native=error.native
            ) from error
        if attempt_id not in gone:
            raise EngineFailure(f"it is being ended on {node} first: its processes do not end", retryable=True)
        self._ending.pop(attempt_id, None)
        return True

    async def give_up(self, run: Run, why: Reason) -> Exit:
        """Give up an attempt whose node is lost. If it may still run there, it is ended first.

        An attempt that ended by itself before keeps its own code. Raises EngineFailure while it may still run.
        """
        if (own := await self._in_thread(partial(_own_end, run.control_folder))) is not None:
            return own
        with suppress(OSError):
            # An attempt that was seen running has run, whatever it did to its control folder since: it may still run.
            if await self._in_thread(run.control_folder.forbid_start) and not run.is_running:
                return Exit(None, why, time.time())
        if not await self.fence_attempt(run.id, run.request.allocation.node):
            with suppress(OSError):
                await self._in_thread(partial(run.control_folder.stop, "kill"))
            await self._wait_for_end(run.control_folder)
        return await self._in_thread(partial(_own_end, run.control_folder)) or Exit(None, why, time.time())

    async def _wait_for_end(self, control_folder: ControlFolder) -> None:
        """Wait until it ends, or until it clearly does not react."""
        for _ in range(_POLLS):
            if await self._in_thread(control_folder.has_end):
                return
            await asyncio.sleep(REACTS_WITHIN_S / _POLLS)

    # --- paused attempts of a node that is back -------------------------------------------------------------------

    async def keep_resolving(self, live: Callable[[], Collection[str]], iterations: Iterations) -> None:
        """Resolve paused attempts until cancelled; `live` returns the attempts that have not ended."""
        while True:
            with iterations.rest():
                await asyncio.sleep(_RESOLVE_PAUSE_S)
            await self.resolve_paused(live())

    async def resolve_paused(self, live: Collection[str]) -> None:
        """Tell agents that paused attempts while cut off whether each continues or must end, as it may run elsewhere.

        `live` are the attempts that have not ended. An attempt that was given up does not continue, even before that is
        written to disk.
        """
        self._given_up &= set(live)
        if not self.nodes.fault:
            paused = {name: report for name, report in self.nodes.agent_reports.items() if report.paused}
            await asyncio.gather(*(self._resolve_paused_on(name, report, live) for name, report in paused.items()))

    async def _resolve_paused_on(self, name: str, agent_report: AgentReport, live: Collection[str]) -> None:
        agents, swarm_node = self.nodes.agent_of(name), self.nodes.swarm_nodes.get(name)
        if agents is None or swarm_node is None:
            return
        over = [attempt_id for attempt_id in agent_report.paused if attempt_id not in live]
        going_on = [
            attempt_id
            for attempt_id in agent_report.paused
            if attempt_id in live and attempt_id not in self._given_up and not swarm_node.is_down
        ]
        with suppress(EngineFailure):  # it reports its paused attempts again
            if going_on:
                await agents.unpause(agent_report.node_id, going_on)
            if over:
                await agents.fence(agent_report.node_id, over)


def _own_end(control_folder: ControlFolder) -> Exit | None:
    """The end of a command that exited by itself. None if it did not, or was killed: then its node is the cause."""
    end = control_folder.end()
    if end is None or end.signalled or (end.code == _KILLED and not end.oom):
        return None
    return Exit(end.code, None, end.at, end.oom and end.code != 0)
