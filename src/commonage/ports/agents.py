"""What the agents on the machines of a site tell, and do when asked: one on each machine, which dials to us.

Implemented in `commonage.link`; used by engines whose machines are others than the control plane's own. A machine is
named by `node`, as in its report. A machine without an agent is one that nothing is heard of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from commonage.domain.fleet import Lease, NodeReport
from commonage.domain.sightings import Measurement, ProcessOwner
from commonage.ports.devices import DeviceSample, Hold
from commonage.ports.execs import ExecStream, Terminal

CUT_OFF_AFTER_S = 8.0
"""So long an agent that reaches neither the control plane nor most of the machines it knows lets containers of ours
run on; then it pauses them. What ran there may begin elsewhere no sooner."""
HOLDS_ON_S = 4.0
"""So long it lets them run on after most of those machines answered last, if the control plane did not for longer."""
FEWEST_WITNESSES = 3
"""Of fewer machines most tell nothing: then the control plane's answer alone counts."""
Told = Callable[[str, float | None], None]
"""Is told what is being done, and how far it is (0..1)."""


def unheard(_detail: str, _progress: float | None) -> None:
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
    no reason to take no work. `bounds_volumes`: the daemon there holds a volume to its size.
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


class Agents(Protocol):
    """All agents of a site. What is asked of a machine that is not connected raises EngineFailure (retryable)."""

    def heard(self) -> Sequence[Heard]:
        """What each said last, those included whose link is down."""
        ...

    def let_reach(self, addresses: Collection[str]) -> None:
        """What containers on all machines need of the site, as `ADDRESS:PORT`: their walls let it through, soon."""
        ...

    def introduce(self, machines: Collection[tuple[str, str]]) -> None:
        """The machines, as (name, address), by which all agents tell whether they are cut off. They know it soon."""
        ...

    async def reaches(self, node: str, address: str) -> bool:
        """Whether the Docker daemon of the machine with this address answers that machine."""
        ...

    async def measure(self, node: str) -> Sequence[Measurement]:
        """What each attempt's container there uses now."""
        ...

    async def owners(self, node: str, pids: Collection[int]) -> Sequence[ProcessOwner]:
        """Whose these processes of that machine are."""
        ...

    async def confine(self, node: str, hold: Hold) -> Mapping[str, str]:
        """`Devices.confine` there. Raises NotConfined."""
        ...

    async def release(self, node: str, attempt_id: str) -> None:
        """`Devices.release` there."""
        ...

    async def pull(self, node: str, image: str, told: Told) -> None:
        """Have the image there. Raises EngineFailure, with the daemon's words."""
        ...

    async def exec(self, node: str, attempt_id: str, command: Sequence[str], terminal: Terminal | None) -> ExecStream:
        """Run a command beside an attempt there, as `Engine.exec`. It ends with the link at the latest."""
        ...

    async def fence(self, node: str, attempt_ids: Collection[str]) -> Collection[str]:
        """End these attempts' containers there by force, without the daemon if need be; gives those that are gone."""
        ...

    async def go_on(self, node: str, attempt_ids: Collection[str]) -> None:
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
        """All leases now; each agent is told its own. One that cannot be told is told again with the next call."""
        ...

    def take_warnings(self) -> Sequence[tuple[str, str]]:
        """As `Devices.take_warnings`, of all machines."""
        ...

    async def resume(self, uuid: str) -> None:
        """As `Devices.resume`, on all machines; one that is not connected is left out."""
        ...
