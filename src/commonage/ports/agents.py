"""What the agents on the machines of a site tell, and do when asked: one on each machine, which dials to us.

Implemented in `commonage.link`; used by engines whose machines are others than the control plane's own. An agent is
addressed by the Swarm node id in its certificate, never by a host name. A machine without an agent is one that nothing
is heard of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from commonage.domain.fleet import Lease, NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.sightings import Measurement, ProcessOwner
from commonage.ports.devices import DeviceSample, Hold
from commonage.ports.execs import ExecStream, Terminal

CUT_OFF_AFTER_S = 8.0
"""So long an agent that reaches neither the control plane nor most of the machines it knows lets containers of ours
run on; then it pauses them. What ran there may begin elsewhere no sooner."""
HOLDS_ON_S = 4.0
"""So long it lets them run on after most of those machines answered last, if the control plane did not for longer."""
CONTAINER_BRIDGE = "docker_gwbridge"
"""The bridge by which containers of a Swarm leave their node; all tenants share it."""
FEWEST_WITNESSES = 3
"""Of fewer machines most tell nothing: then the control plane's answer alone counts."""
Told = Callable[[Reason, float | None], None]
"""Is told what is being done, and how far it is (0..1)."""


def unheard(_reason: Reason, _progress: float | None) -> None:
    """A `Told` of somebody who need not know."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The newest that a machine's agent said. `at` (unix seconds) is when; `connected`: its link stands now.

    `came` is when, too, by the clock that only rises (`time.monotonic`): what must not end early is counted by it, as a
    clock that is set right would end it.

    `engine_fault` is empty while the machine's container daemon answers the agent, else since when and why it does not.
    `fenced` are attempts whose processes the agent ended as the daemon could not any more. `paused` are those that it
    paused as it was cut off, and keeps so until it is told that they go on, or are to end.
    `owners` are those of the processes in `samples`, looked up by the agent right after it measured. `witnesses` are
    the machines, by name, of which it must reach most to hold that it is not cut off. `notices` are worth knowing, and
    no reason to take no work. `bounds_volumes`: the daemon there holds a volume to its size. `mounts`: it knows
    `Agents.mount`. `gateway` is the address by which containers of that node reach its agent, which carries what they
    send to the hub and the control plane by TLS; empty if it does not. `node` and `node_id` are the name and the Swarm
    node id that the agent's certificate binds to each other.
    """

    node: str
    report: NodeReport
    at: float
    came: float
    connected: bool
    engine_fault: str = ""
    fenced: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()
    samples: tuple[DeviceSample, ...] = ()
    owners: tuple[ProcessOwner, ...] = ()
    witnesses: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    bounds_volumes: bool = False
    mounts: bool = False
    gateway: str = ""
    node_id: str = ""


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """The network settings that the agent of every node enforces.

    At `gateway_ports` it listens for the containers of its node, and carries what they send to the control plane by
    TLS. Connections to `published_ports`, from the first to the last, which sessions and services are given, it accepts
    from `sources` only: IP addresses or networks.
    """

    gateway_ports: tuple[int, ...] = ()
    published_ports: tuple[int, int] = (0, 0)
    sources: tuple[str, ...] = ()


class Agents(Protocol):
    """All agents of a site. What is asked of a machine that is not connected raises EngineFailure (retryable)."""

    def heard(self) -> Sequence[Heard]:
        """What each said last, those included whose link is down."""
        ...

    async def bindings(self) -> Mapping[str, str]:
        """The names that valid certificates bind to Swarm node ids, by id; also of nodes that are not connected.

        Raises EngineFailure if that cannot be read.
        """
        ...

    def let_reach(self, addresses: Collection[str]) -> None:
        """What containers on all machines need of the site, as `ADDRESS:PORT`: their walls let it through, soon."""
        return

    def set_network(self, network: NodeNetwork) -> None:
        """Set the network settings that all agents enforce. They receive them soon."""
        return

    def introduce(self, machines: Collection[tuple[str, str]]) -> None:
        """The machines, as (name, address), by which all agents tell whether they are cut off. They know it soon."""
        return

    async def reaches(self, node_id: str, address: str) -> bool:
        """Whether the Docker daemon of the machine with this address answers that machine."""
        ...

    async def measure(self, node_id: str) -> Sequence[Measurement]:
        """What each attempt's container there uses now."""
        ...

    async def owners(self, node_id: str, pids: Collection[int]) -> Sequence[ProcessOwner]:
        """Whose these processes of that machine are."""
        ...

    async def confine(self, node_id: str, hold: Hold) -> Mapping[str, str]:
        """`Devices.confine` there. Raises NotConfined."""
        ...

    async def release(self, node_id: str, attempt_id: str) -> None:
        """`Devices.release` there."""
        ...

    async def mount(self, node_id: str, attempt_id: str, sources: Sequence[tuple[str, str]]) -> Sequence[str]:
        """Have folders and files, as (name, absolute path), mounted there for an attempt; where, in the same order.

        No link is followed. Idempotent. Raises EngineFailure for what is a link, or is not there.
        """
        ...

    async def unmount(self, node_id: str, attempt_id: str) -> None:
        """Take back all that `mount` did for this attempt. What runs keeps what it has."""
        ...

    async def pull(self, node_id: str, image: str, told: Told) -> None:
        """Have the image there. Raises EngineFailure, with the daemon's words."""
        ...

    async def exec(
        self, node_id: str, attempt_id: str, command: Sequence[str], terminal: Terminal | None
    ) -> ExecStream:
        """Run a command beside an attempt there, as `Engine.exec`. It ends with the link at the latest."""
        ...

    async def fence(self, node_id: str, attempt_ids: Collection[str]) -> Collection[str]:
        """End these attempts' containers there by force, without the daemon if need be; gives those that are gone."""
        ...

    async def go_on(self, node_id: str, attempt_ids: Collection[str]) -> None:
        """End the pause of these attempts there."""
        ...


class Departures(Protocol):
    """Is told by a machine's own agent that it has left its site; `control.departures` is one."""

    async def left(self, name: str) -> None:
        """It has left, and nothing of the site runs there any more. Raises CommonageError: then it is not known."""
        ...

    async def see_off(self, name: str) -> None:
        """It has been answered, and hung up. Raises nothing of ours."""
        ...


class CardsElsewhere(Protocol):
    """The cards of the machines that have an agent, for the sampling loop: what `Devices` is for those of this one."""

    def heard(self) -> Sequence[Heard]:
        """As `Agents.heard`."""
        ...

    async def note_held(self, leases: Sequence[Lease]) -> None:
        """As `Devices.note_held`, to each agent its own. One that cannot be told is told again with the next call."""
        ...

    def take_warnings(self) -> Sequence[tuple[str, str, str]]:
        """As `Devices.take_warnings`, of all machines; the name of the node that says it comes first."""
        ...

    async def resume(self, uuid: str) -> None:
        """As `Devices.resume`, on all machines; one that is not connected is left out."""
        ...
