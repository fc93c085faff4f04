"""What is said over the link, and what each side may ask of the other. Of the standard library alone.

The agent dials and says `hello`; the control plane answers `welcome`, or `refused`. Then the agent says `report` every
few seconds, and each is answered by `heard`: who hears nothing for three times as long takes the link for lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from commonage.domain.fleet import Lease, NodeReport
from commonage.domain.sightings import Measurement, ProcessOwner
from commonage.ports.devices import DeviceSample, Hold

HELLO, TUNNEL, OPEN = "hello", "tunnel", "open"
"""An agent that dials for one connection of a container, instead of the link itself, says `tunnel` with a `Hello`. The
answer is `open`, after which come no frames but the bytes of that connection; or `refused`."""
PROTOCOL = 1
"""Rises when the two sides would misunderstand each other. An agent of another protocol is told to join again."""
SERVER_NAME = "control.commonage.internal"
"""The name in the listener's certificate, whatever address an agent dials."""
NODE_ID_URI = "commonage:swarm-node:"
"""An agent's certificate names its Swarm node by a URI that begins so, as a subject alternative name."""
REPORT_EVERY_S = 2.0
SILENCE_S = 3 * REPORT_EVERY_S
RENEW_BEFORE_S = 10 * 86_400.0

Q = TypeVar("Q")
A = TypeVar("A")


# --- said ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """Who dials. `node` must be the name in its certificate."""

    node: str
    protocol: int
    version: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """`now` is the control plane's time, `until` the end of the certificate that was shown; unix seconds.

    `reaches` are what containers need to reach of the site, as `ADDRESS:PORT`: the hub, the control plane.
    """

    now: float
    until: float
    reaches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reach:
    """What containers need to reach of the site has changed."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Witnesses:
    """The machines, as (name, address), by which an agent tells whether it is cut off."""

    each: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no link. `for_good`: until the machine joins again."""

    why: str
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """All that an agent tells of its machine. The fields of `ports.agents.Heard`, and `warnings` of attempts.

    `number` rises from report to report, and comes back with `ReportHeard`. A warning is told once on a link, and again
    on the next one if it was not heard.
    """

    number: int
    report: NodeReport
    engine_fault: str = ""
    fenced: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()
    samples: tuple[DeviceSample, ...] = ()
    owners: tuple[ProcessOwner, ...] = ()
    witnesses: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()
    bounds_volumes: bool = False
    gateway: str = ""
    mounts: bool = False


@dataclass(frozen=True, slots=True)
class ReportHeard:
    """The report of this number was taken in."""

    number: int


# --- asked --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Nothing:
    """No question to it, or no answer."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the containers use."""

    each: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class Pids:
    """Processes of the machine."""

    each: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Owned:
    """Whose they are."""

    each: tuple[ProcessOwner, ...]


@dataclass(frozen=True, slots=True)
class Variables:
    """What is added to an attempt's environment."""

    each: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Attempts:
    """Attempts by their ids."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mounts:
    """The mounts of an attempt, each as (name, absolute path)."""

    attempt_id: str
    each: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Mounted:
    """Where it was mounted, in the same order."""

    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Going:
    """Attempts that go on, by what was known with the report of this number: not heeded when it comes late."""

    ids: tuple[str, ...]
    number: int


@dataclass(frozen=True, slots=True)
class Place:
    """A machine by its address."""

    address: str


@dataclass(frozen=True, slots=True)
class Reached:
    """Whether its Docker daemon answers."""

    yes: bool


@dataclass(frozen=True, slots=True)
class Image:
    """An image by its name, as a daemon takes it."""

    name: str


@dataclass(frozen=True, slots=True)
class Leases:
    """Those of the machine whose program runs now."""

    each: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """A card by its uuid."""

    uuid: str


@dataclass(frozen=True, slots=True)
class SigningRequest:
    """A certificate request, PEM."""

    csr: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """A signed certificate, PEM, and its end in unix seconds."""

    pem: str
    until: float


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, A]):
    """Something that one side may ask of the other: the type of the question and of the answer, and the patience."""

    name: str
    question: type[Q]
    answer: type[A]
    within_s: float | None


MEASURE = Call("measure", Nothing, Measured, 5.0)
OWNERS = Call("owners", Pids, Owned, 5.0)
CONFINE = Call("confine", Hold, Variables, 20.0)
RELEASE = Call("release", Attempts, Nothing, 20.0)
MOUNT = Call("mount", Mounts, Mounted, 30.0)
UNMOUNT = Call("unmount", Attempts, Nothing, 5.0)
PULL = Call("pull", Image, Nothing, None)
"""Without an end: the agent gives up when its daemon is silent, and says how far it is meanwhile."""
FENCE = Call("fence", Attempts, Attempts, 30.0)
GO_ON = Call("go-on", Going, Nothing, 10.0)
REACHES = Call("reaches", Place, Reached, 5.0)
NOTE_HELD = Call("note-held", Leases, Nothing, 5.0)
RESUME = Call("resume", Card, Nothing, 5.0)
RENEW = Call("renew", SigningRequest, Certificate, 20.0)
"""What an agent asks of the control plane."""
LEFT = Call("left", Nothing, Nothing, 20.0)
"""A machine, on a link of its own, has the control plane know that it has left and that nothing of the site runs there
any more. No other can say so of it."""
