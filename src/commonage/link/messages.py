"""The messages of the link, and the requests that each side answers. Of the standard library alone.

The agent dials and sends `hello`; the control plane answers `welcome` or `refused`. Then the agent sends a `report`
every few seconds, and the control plane confirms each with `report-received`. A side that receives nothing for three
times that interval treats the link as lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from commonage.domain.nodes import Allocation, NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.statuses import Measurement, ProcessOwner
from commonage.ports.devices import DeviceSample, ShareAssignment

HELLO, TUNNEL, OPEN = "hello", "tunnel", "open"
"""To carry one connection of a container, an agent dials separately and sends `tunnel` with a `Hello`.

The answer is `refused`, or `open`: from then on the bytes of that connection follow instead of frames.
"""
PROTOCOL = 2
"""Raised when the two sides would misunderstand each other. An agent of another protocol must join again."""
SERVER_NAME = "control.commonage.internal"
"""The name in the listener's certificate, whatever address an agent dials."""
NODE_ID_URI = "commonage:swarm-node:"
"""Prefix of the URI by which an agent's certificate names its node: a subject alternative name.

The rest is the node's id in the Swarm, or its UID in Kubernetes.
"""
REPORT_EVERY_S = 2.0
SILENCE_S = 3 * REPORT_EVERY_S
RENEW_BEFORE_S = 10 * 86_400.0

Q = TypeVar("Q")
A = TypeVar("A")


# --- messages -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of an agent. `node` must be the name in its certificate."""

    node: str
    protocol: int
    version: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to `Hello`, with the control plane's time and the end of the shown certificate (unix seconds).

    `allowed_addresses` are the site addresses that containers need, as `ADDRESS:PORT`: the hub, the control plane.
    """

    now: float
    until: float
    allowed_addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AllowedAddresses:
    """The site addresses that containers may reach, as `ADDRESS:PORT`, after a change."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Neighbors:
    """The nodes, as (name, address), by which an agent detects a network partition."""

    nodes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class LinkRefused:
    """Why the link is refused. `permanent`: until the node joins again."""

    reason: str
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """The full report of a node: the fields of `ports.agents.AgentReport`, and `warnings` about attempts.

    `number` rises with each report, and comes back in `ReportReceived`. A warning is sent once on a link, and again on
    the next link if it was not confirmed.
    """

    number: int
    report: NodeReport
    engine_fault: Reason | None = None
    fenced: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()
    samples: tuple[DeviceSample, ...] = ()
    owners: tuple[ProcessOwner, ...] = ()
    neighbors: tuple[str, ...] = ()
    notices: tuple[Reason, ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()
    bounds_volumes: bool = False
    gateway: str = ""
    mounts: bool = False
    pulls_by_token: bool = False


@dataclass(frozen=True, slots=True)
class ReportReceived:
    """The report with this number was processed."""

    number: int


# --- requests -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Nothing:
    """A request without a parameter, or a result without content."""


@dataclass(frozen=True, slots=True)
class Measured:
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class Pids:
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Owners:
    owners: tuple[ProcessOwner, ...]


@dataclass(frozen=True, slots=True)
class Variables:
    variables: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Attempts:
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mounts:
    """The mounts of an attempt, each as (name, absolute path)."""

    attempt_id: str
    sources: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Mounted:
    """Where they were mounted, in the same order."""

    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unpause:
    """Attempts whose pause ends, as decided after the report with this number. Ignored if it arrives late."""

    ids: tuple[str, ...]
    number: int


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node by its address."""

    address: str


@dataclass(frozen=True, slots=True)
class Reachable:
    reachable: bool


@dataclass(frozen=True, slots=True)
class Image:
    name: str


@dataclass(frozen=True, slots=True)
class TokenPull:
    """`token` lets its bearer pull this image alone from `registry` (`HOST:PORT`), for a while."""

    image: str
    registry: str
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Allocations:
    """The allocations of the node for which a program runs now."""

    allocations: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True)
class Device:
    uuid: str


@dataclass(frozen=True, slots=True)
class SigningRequest:
    csr: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """A signed certificate, PEM, and its end in unix seconds."""

    pem: str
    until: float


@dataclass(frozen=True, slots=True)
class RequestType(Generic[Q, A]):
    """A request of one side to the other: the types of its parameters and its result, and its timeout."""

    name: str
    params: type[Q]
    result: type[A]
    timeout_s: float | None


MEASURE = RequestType("measure", Nothing, Measured, 5.0)
OWNERS = RequestType("owners", Pids, Owners, 5.0)
ENFORCE = RequestType("enforce", ShareAssignment, Variables, 20.0)
RELEASE = RequestType("release", Attempts, Nothing, 20.0)
MOUNT = RequestType("mount", Mounts, Mounted, 30.0)
UNMOUNT = RequestType("unmount", Attempts, Nothing, 5.0)
PULL = RequestType("pull", Image, Nothing, None)
"""No timeout: the agent gives up when its daemon is silent, and reports progress meanwhile."""
PULL_BY_TOKEN = RequestType("pull-by-token", TokenPull, Nothing, None)
"""As PULL, on an appliance."""
FENCE = RequestType("fence", Attempts, Attempts, 30.0)
UNPAUSE = RequestType("unpause", Unpause, Nothing, 10.0)
REACHES = RequestType("reaches", NodeAddress, Reachable, 5.0)
NOTE_ALLOCATIONS = RequestType("note-allocations", Allocations, Nothing, 5.0)
RESUME = RequestType("resume", Device, Nothing, 5.0)
RENEW = RequestType("renew", SigningRequest, Certificate, 20.0)
"""Sent by the agent to the control plane."""
LEFT = RequestType("left", Nothing, Nothing, 20.0)
"""Sent on a separate link by a node that has left the site: nothing of the site runs there any more.

A node can report this of itself only.
"""
