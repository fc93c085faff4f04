"""Messages of a site link about its engine: requests and streams of the port, and messages that the site pushes.

The control plane's end is `engines.remote`, the site's is `site_agent`. After a connect the site sends its report, the
runs of cron jobs that it fired (`cron`), and a complete `SiteStatuses`, then each change. Samples that were
measured while the link was down follow as requests.
"""

from __future__ import annotations

from dataclasses import dataclass

from commonage.domain.images import Environment, EnvironmentStatus
from commonage.domain.nodes import NodeReport
from commonage.domain.statuses import Capabilities, Measurement, ProcessOwner, StartRequest, Status
from commonage.link.messages import Nothing, RequestType
from commonage.link.sites.transport.streams import StreamType
from commonage.ports.devices import DeviceSample
from commonage.ports.execs import Terminal
from commonage.ports.metrics import Sample
from commonage.ports.registry import PullToken

# --- from the site ------------------------------------------------------------------------------------------------

STATUSES, REPORT = "site-statuses", "site-report"


@dataclass(frozen=True, slots=True)
class SiteStatuses:
    """Changed statuses of attempts, and attempts that the site's engine no longer reports.

    `complete`: these are all; the site knows no other attempt.
    """

    changed: tuple[Status, ...] = ()
    removed: tuple[str, ...] = ()
    complete: bool = False


@dataclass(frozen=True, slots=True)
class SiteReport:
    """The site's engine, nodes and environments now. `failure`: why its engine does not answer; then they are its last.

    `samples_dropped`: how many samples of an outage did not fit on the site's disk. `lets_join`: the site has a join
    service for nodes. `measures_storage`: it answers the requests of `storage`; `keeps_tenants`: that of
    `tenants`, which a site agent of an older release does not know.
    """

    capabilities: Capabilities
    nodes: tuple[NodeReport, ...] = ()
    environments: tuple[EnvironmentStatus, ...] = ()
    failure: str = ""
    samples_dropped: int = 0
    lets_join: bool = False
    measures_storage: bool = False
    keeps_tenants: bool = False


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples that were measured while the link was down, oldest first. Storing them twice has no further effect.

    Subjects of nodes and devices name no site: they are the sender's.
    """

    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class WantedImage:
    image: str


@dataclass(frozen=True, slots=True)
class ImageToken:
    """`token` is None if the image is in another registry than the control plane's."""

    token: PullToken | None = None


@dataclass(frozen=True, slots=True)
class DeviceWarning:
    """A warning of the devices of a node about an attempt there. `number` rises with each warning of a site."""

    number: int
    node: str
    attempt_id: str
    text: str


@dataclass(frozen=True, slots=True)
class DeviceWarnings:
    """Warnings, oldest first. Those that were received before are ignored, by their number."""

    warnings: tuple[DeviceWarning, ...]


STORE_SAMPLES = RequestType("store-samples", Samples, Nothing, 30.0)
"""Sent by the site, which keeps the samples until this is answered."""
STORE_WARNINGS = RequestType("store-device-warnings", DeviceWarnings, Nothing, 30.0)
"""Sent by the site, which keeps the warnings until this is answered."""

PULL_TOKEN = RequestType("get-pull-token", WantedImage, ImageToken, 15.0)
"""Refused unless the control plane has asked the site for a workload with this image, or to prepare it."""

# --- from the control plane ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Start this attempt. The bundle with the digest `bundle` was uploaded before; `bundle_path` is replaced there."""

    request: StartRequest
    bundle: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    attempt_id: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class AttemptId:
    attempt_id: str


@dataclass(frozen=True, slots=True)
class Prepare:
    environment: Environment
    node: str | None = None


@dataclass(frozen=True, slots=True)
class SiteNetwork:
    """The loopback ports by which workloads address the hub and the control plane: the site forwards them.

    `registry`: the control plane's image registry (`HOST:PORT`); empty without one.
    """

    ports: tuple[int, ...] = ()
    registry: str = ""


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The GPUs of a node now, and the owners of the processes in `samples`, looked up right after they were measured.

    Processes that began too late to be the measured ones are left out, by the clock of the site.
    """

    node: str
    samples: tuple[DeviceSample, ...] = ()
    owners: tuple[ProcessOwner, ...] = ()


@dataclass(frozen=True, slots=True)
class SiteMeasured:
    measurements: tuple[Measurement, ...]
    devices: tuple[NodeDevices, ...] = ()


START = RequestType("start-attempt", Start, Nothing, 30.0)
STOP = RequestType("stop-attempt", Stop, Nothing, 30.0)
FORGET = RequestType("forget-attempt", AttemptId, Nothing, 30.0)
MEASURE = RequestType("measure-attempts", Nothing, SiteMeasured, 2.0)
"""Short: sites are measured one after the other."""
PREPARE = RequestType("prepare", Prepare, Nothing, None)
"""No timeout: it reports progress meanwhile, and ends with the link."""
ATTACH = RequestType("attach", SiteNetwork, Nothing, None)
"""Sent once on each link, and not answered while the link lasts: so its end is noticed."""


@dataclass(frozen=True, slots=True)
class LogRequest:
    attempt_id: str
    offset: int = 0
    tail: int | None = None
    follow: bool = False


@dataclass(frozen=True, slots=True)
class LogLines:
    """Lines of a log, each as (text, offset)."""

    lines: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ExecCommand:
    attempt_id: str
    command: tuple[str, ...]
    terminal: Terminal | None = None


@dataclass(frozen=True, slots=True)
class TerminalSize:
    columns: int
    rows: int


@dataclass(frozen=True, slots=True)
class BundleUpload:
    """The files of a job: `digest` is their SHA-256 in hex digits, `size` in bytes."""

    digest: str
    size: int


LOGS = StreamType("logs", LogRequest)
EXEC = StreamType("exec", ExecCommand)
BUNDLE = StreamType("bundle", BundleUpload)
TUNNEL = StreamType("tunnel", AttemptId)
"""One TCP connection to the address that an attempt serves at: the bytes of HTTP and WebSockets as they are."""
GATEWAY = StreamType("gateway", Nothing)
"""Opened by the site: one TCP connection of a workload to the control plane's workload gateway."""
