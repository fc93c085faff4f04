"""The node agents of a site: their reports and operations. One runs on each node and dials the control plane.

Implemented in `commonage.link`; used by engines whose nodes are not the control plane's own. An agent is addressed by
the Swarm node id in its certificate, never by a host name. A node without an agent sends no reports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from commonage.domain.nodes import Allocation, NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.statuses import Measurement, ProcessOwner
from commonage.ports.devices import DeviceSample, ShareAssignment
from commonage.ports.execs import ExecStream, Terminal
from commonage.ports.registry import PullToken

PARTITIONED_AFTER_S = 8.0
"""An agent that reaches neither the control plane nor most of the nodes it knows pauses the site's containers after
this time. Their workloads may not start elsewhere any sooner.
"""
MAJORITY_GRACE_S = 4.0
"""If the control plane is away for longer, containers run on this long after most of those nodes last answered."""
CONTAINER_BRIDGE = "docker_gwbridge"
"""The bridge by which containers of a Swarm leave their node; all tenants share it."""
MIN_NEIGHBORS = 3
"""With fewer nodes a majority means little: then only the control plane's answer counts."""
OnProgress = Callable[[Reason, float | None], None]
"""Called with the present step and its progress (0..1)."""


def ignore_progress(_reason: Reason, _progress: float | None) -> None:
    """A `OnProgress` for callers that do not need progress."""


@dataclass(frozen=True, slots=True)
class AgentReport:
    """The newest report of a node's agent. `at` (unix seconds) is its time; `connected`: its link is up now.

    `monotonic_at` is the same time by the monotonic clock (`time.monotonic`). Timeouts that must not end early use it,
    because setting the wall clock would end them.

    `engine_fault` is None while the node's container daemon answers the agent, otherwise why it does not. `fenced` are
    attempts whose processes the agent ended because the daemon no longer could. `paused` are those that it paused while
    it was cut off; they stay paused until the agent is requested to continue or to end them.

    `owners` are those of the processes in `samples`, looked up by the agent right after it measured. `neighbors` are
    names of nodes: while the agent reaches most of them, it does not consider itself cut off. `notices` are
    information, and no reason to stop scheduling onto the node. `bounds_volumes`: the daemon there enforces a volume's
    size. `mounts`: the agent supports `Agents.mount`; `pulls_by_token`: it takes the token of `Agents.pull`. `gateway`
    is the address at which containers of that node reach its agent, which forwards their traffic to the hub and the
    control plane over TLS; empty if it does not. `node` and `node_id` are the name and the Swarm node id that the
    agent's certificate binds to each other.
    """

    node: str
    report: NodeReport
    at: float
    monotonic_at: float
    connected: bool
    engine_fault: Reason | None = None
    fenced: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()
    samples: tuple[DeviceSample, ...] = ()
    owners: tuple[ProcessOwner, ...] = ()
    neighbors: tuple[str, ...] = ()
    notices: tuple[Reason, ...] = ()
    bounds_volumes: bool = False
    mounts: bool = False
    pulls_by_token: bool = False
    gateway: str = ""
    node_id: str = ""


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """The network settings that the agent of every node enforces.

    It listens on `gateway_ports` for the containers of its node, and forwards their traffic to the control plane over
    TLS. It accepts connections to `published_ports` (first to last), which sessions and services get, only from
    `sources`: IP addresses or networks.
    """

    gateway_ports: tuple[int, ...] = ()
    published_ports: tuple[int, int] = (0, 0)
    sources: tuple[str, ...] = ()


class Agents(Protocol):
    """All agents of a site. Requests to a node that is not connected raise EngineFailure (retryable)."""

    def agent_reports(self) -> Sequence[AgentReport]:
        """The last report of each agent, including those whose link is down."""

    async def bindings(self) -> Mapping[str, str]:
        """The names that valid certificates bind to Swarm node ids, by id; also of nodes that are not connected.

        Raises EngineFailure if that cannot be read.
        """

    def allow_addresses(self, addresses: Collection[str]) -> None:
        """Site addresses (`ADDRESS:PORT`) that containers on all nodes need: node firewalls allow them soon after."""
        return

    def set_network(self, network: NodeNetwork) -> None:
        """Set the network settings that all agents enforce. They receive them soon."""
        return

    def set_neighbors(self, nodes: Collection[tuple[str, str]]) -> None:
        """The nodes, as (name, address), by which agents find out whether they are cut off. Agents get them soon."""
        return

    async def reaches(self, node_id: str, address: str) -> bool:
        """Check whether the node can reach the Docker daemon of the node with this address."""

    async def measure(self, node_id: str) -> Sequence[Measurement]: ...

    async def owners(self, node_id: str, pids: Collection[int]) -> Sequence[ProcessOwner]: ...

    async def enforce(self, node_id: str, hold: ShareAssignment) -> Mapping[str, str]:
        """`Devices.enforce` on that node. Raises ShareNotEnforced."""

    async def release(self, node_id: str, attempt_id: str) -> None: ...

    async def mount(self, node_id: str, attempt_id: str, sources: Sequence[tuple[str, str]]) -> Sequence[str]:
        """Mount folders and files, as (name, absolute path), on the node; returns the mount points, in order.

        Links are not followed. Idempotent. Raises EngineFailure for a source that is a link, or does not exist.
        """

    async def unmount(self, node_id: str, attempt_id: str) -> None:
        """Undo `mount` for this attempt. Running containers keep their mounts."""

    async def pull(self, node_id: str, image: str, on_progress: OnProgress, token: PullToken | None = None) -> None:
        """Pull the image onto the node. Raises EngineFailure with the daemon's message."""

    async def exec(
        self, node_id: str, attempt_id: str, command: Sequence[str], terminal: Terminal | None
    ) -> ExecStream:
        """Run a command in an attempt's environment there, like `Engine.exec`. It ends with the link at the latest."""

    async def fence(self, node_id: str, attempt_ids: Collection[str]) -> Collection[str]:
        """Kill these attempts' containers, without the daemon if necessary; returns the attempts that are gone."""

    async def unpause(self, node_id: str, attempt_ids: Collection[str]) -> None: ...


class Drains(Protocol):
    """Notified by a node's own agent that the node has left its site; `control.nodes.drains` implements it."""

    async def left(self, name: str) -> None:
        """The node has left, and runs nothing of the site any more. On CommonageError this is not recorded."""

    async def finish_leave(self, name: str) -> None:
        """The node got its answer and disconnected. Raises no CommonageError."""


class RemoteDevices(Protocol):
    """The GPUs of the nodes that have an agent, for the sampling loop: the counterpart of `Devices` for this node's."""

    def agent_reports(self) -> Sequence[AgentReport]:
        """As `Agents.agent_report`."""

    async def note_allocations(self, allocations: Sequence[Allocation]) -> None:
        """As `Devices.note_allocations`, to each agent its own. An unreachable agent gets them with the next call."""

    def take_warnings(self) -> Sequence[tuple[str, str, str]]:
        """As `Devices.take_warnings`, of all nodes; each warning starts with the name of the node that sent it."""

    async def resume(self, uuid: str) -> None:
        """As `Devices.resume`, on all nodes; nodes that are not connected are left out."""


class NodeAgents(Agents, RemoteDevices, Protocol):
    """The agents of a site, for its engine and for the sampling loop."""
