"""The connections of a site's agents, seen from the control plane: the port `Agents`.

Created by the server's wiring. There is one link for each Swarm node, as named in the agent's certificate; the newest
link wins. The last report of an agent is kept when its link ends, and marked as not connected.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509

from commonage.domain.errors import CommonageError, EngineFailure
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import Allocation, NodeReport
from commonage.domain.reasons.nodes import RemovedFromSite
from commonage.domain.statuses import Measurement, ProcessOwner
from commonage.link import messages, saved_reports
from commonage.link.certificate_authority import CertificateAuthority
from commonage.link.connection import Connection
from commonage.link.exchange import MAX_TEXT, ConnectionLost, RequestHandler
from commonage.link.execs import LinkExecs
from commonage.link.listener import AgentPeer, Listener, Tunnels
from commonage.link.messages import Report, RequestType
from commonage.ports.agents import AgentReport, Drains, NodeNetwork, OnProgress, ignore_progress
from commonage.ports.devices import ShareAssignment
from commonage.ports.execs import ExecStream, Terminal
from commonage.ports.registry import PullToken

_log = logging.getLogger(__name__)
Q = TypeVar("Q")
A = TypeVar("A")
_CHECK_INTERVAL_S = 5.0
_RECONNECT_TIMEOUT_S = 4.0
_MAX_WARNINGS = 1000
_REPORTED_FIELDS = {one.name for one in fields(Report)} & {one.name for one in fields(AgentReport)}


@dataclass(slots=True, eq=False)
class _Link:
    """The link of a node, by its certificate's serial number.

    `allocations` are those that its agent knows, `report_number` is that of its last report. `left`: the node reported
    that it has left the site.
    """

    node: str
    node_id: str
    serial: int
    connection: Connection = field(init=False)
    execs: LinkExecs = field(default_factory=LinkExecs)
    allocations: tuple[Allocation, ...] = field(default=())
    report_number: int = 0
    left: bool = False


class AgentConnections:
    """Implements `ports.agents.Agents` and `RemoteDevices`. Links and reports are kept by Swarm node id.

    `reports_file` keeps the agents' last reports over a restart (None: they are not kept). `always_allowed` are
    addresses that containers may reach in addition to those of `allow_addresses`. `gateway_port` is the loopback port
    that serves the connections of containers that agents carry (0: they are refused). `now` gives unix seconds.
    """

    def __init__(
        self,
        authority: CertificateAuthority,
        *,
        reports_file: Path | None = None,
        always_allowed: Collection[str] = (),
        gateway_port: int = 0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._authority, self._now, self._reports_file = authority, now, reports_file
        self._saved: Mapping[str, object] = {}
        self._report_received = asyncio.Event()
        self._always_allowed = self._allowed = tuple(always_allowed)
        self._tunnels = Tunnels(gateway_port)
        self._listener = Listener(authority, self._serve, self._tunnels.carry, now, lambda: self._allowed)
        self._neighbors = messages.Neighbors(())
        self._network: NodeNetwork | None = None
        self._links: dict[str, _Link] = {}
        self._reports: dict[str, AgentReport] = {}
        self._warnings: list[tuple[str, str, str]] = []
        self.iterations = Iterations("agents", now)
        self.port = 0
        self._drains: Drains | None = None

    async def open(self, bind: str, port: int, drains: Drains | None = None) -> None:
        """Listen for agents; `port` is set then. `drains` is notified of nodes that leave. Raises ListenError."""
        self._drains = drains
        await self._begin(await self._listener.open(bind, port))

    async def open_on(self, listening: socket.socket) -> None:
        await self._begin(await self._listener.open_on(listening))

    async def _begin(self, port: int) -> None:
        """Load the saved reports, and give the agents that were connected some time to reconnect."""
        self.port = port
        saved = () if self._reports_file is None else await asyncio.to_thread(saved_reports.read, self._reports_file)
        known = [one for one in saved if one.node_id]  # without a node id the agent must join again
        for one in known:  # it may have been connected until now
            last = replace(one, at=self._now(), monotonic_at=time.monotonic(), connected=False)
            self._reports.setdefault(one.node_id, last)
        expected = {one.node_id for one in known if one.connected}
        with suppress(TimeoutError):
            async with asyncio.timeout(_RECONNECT_TIMEOUT_S):
                while expected - {one.node_id for one in self._reports.values() if one.connected}:
                    self._report_received.clear()
                    await self._report_received.wait()

    async def close(self) -> None:
        await self._save_reports()  # before the links end: connected agents are expected again
        for link in self._links.values():
            link.connection.close("the control plane stops")
        await self._listener.close()

    # --- links ----------------------------------------------------------------------------------------------------

    async def _serve(self, agent: AgentPeer) -> None:
        link = _Link(agent.node, agent.node_id, agent.serial)
        request_handlers: Mapping[RequestType[Any, Any], RequestHandler] = {
            messages.RENEW: partial(self._renew, link),
            messages.LEFT: partial(self._on_left, link),
        }
        message_handlers = {
            "report": (Report, lambda report: self._on_report(link, report)),
            **link.execs.message_handlers(),
        }
        link.connection = connection = Connection(
            f"the agent of {agent.node}", agent.reader, agent.writer, request_handlers, message_handlers
        )
        self._end_previous_links(link)
        self._links[agent.node_id] = link
        if self._network is not None:  # until it is known, the agent keeps the network that it knows; likewise:
            connection.send("network", self._network)
        if self._neighbors.nodes:
            connection.send("neighbors", self._neighbors)
        _log.info("the agent of %s is connected", agent.node)
        try:
            await connection.run()
        except ConnectionLost as error:
            _log.warning("%s", error.message)
        finally:
            connection.close("the link ended")
            if self._links.get(agent.node_id) is link:
                del self._links[agent.node_id]
                if agent.node_id in self._reports:
                    self._reports[agent.node_id] = replace(self._reports[agent.node_id], connected=False)
                self._report_received.set()
            if link.left and self._drains is not None:  # not before: it waits on this link for the answer
                await self._drains.finish_leave(agent.node)

    def _end_previous_links(self, link: _Link) -> None:
        """End the previous link of this node, and that of another Swarm node that had the same name."""
        for one in list(self._links.values()):
            if one.node_id == link.node_id or one.node == link.node:
                one.connection.close(f"the agent of {link.node} opened a new link")
        for node_id in [one.node_id for one in self._reports.values() if one.node == link.node]:
            if node_id != link.node_id:
                self._links.pop(node_id, None)
                del self._reports[node_id]

    def _on_report(self, link: _Link, report: Report) -> None:
        if self._links.get(link.node_id) is not link:
            return  # another link took its place
        if report.report.name != link.node:
            link.connection.close(f"the agent of {link.node} reports as {report.report.name[:64]}")
            return
        self._reports[link.node_id] = AgentReport(
            node=link.node,
            node_id=link.node_id,
            at=self._now(),
            monotonic_at=time.monotonic(),
            connected=True,
            **{name: getattr(report, name) for name in _REPORTED_FIELDS},
        )
        link.report_number = report.number
        new = [(link.node, attempt_id, warning[:MAX_TEXT]) for attempt_id, warning in report.warnings]
        self._warnings = [*self._warnings, *new][-_MAX_WARNINGS:]
        link.connection.send("report-received", messages.ReportReceived(report.number))
        self._report_received.set()

    # --- certificates ---------------------------------------------------------------------------------------------

    async def _renew(self, link: _Link, request: messages.SigningRequest, _: OnProgress) -> messages.Certificate:
        pem = await asyncio.to_thread(self._authority.renew, request.csr, link.node, link.node_id, link.serial)
        certificate = x509.load_pem_x509_certificate(pem.encode())
        # From now on this certificate decides: the previous one may be dropped when it expires.
        link.serial = certificate.serial_number
        _log.info("the agent of %s has a new certificate", link.node)
        return messages.Certificate(pem, certificate.not_valid_after_utc.timestamp())

    async def _on_left(self, link: _Link, _nothing: messages.Nothing, _: OnProgress) -> messages.Nothing:
        """A node reports that it has left the site. Its certificate says which node it is."""
        if self._drains is None:
            raise EngineFailure("this control plane does not record nodes that leave")
        await self._drains.left(link.node)
        link.left = True
        return messages.Nothing()

    async def revoke(self, node: str, *, gone: bool = False) -> None:
        """Remove the node from the site: revoke its certificates and end its link.

        If an engine still lists the node, it shows a fault. `gone`: the node does not exist any more and will not
        connect again.
        """
        node_ids = await asyncio.to_thread(self._authority.node_ids, node)
        await asyncio.to_thread(self._authority.revoke, node)
        self._tunnels.end(node)
        for node_id in node_ids:
            self._disconnect_removed(node, node_id)
            if gone:
                self._reports.pop(node_id, None)

    def _disconnect_removed(self, node: str, node_id: str) -> None:
        link = self._links.get(node_id)
        if link is not None:
            reason = f"{link.node} was removed from this site: join the node again"
            link.connection.send("refused", messages.LinkRefused(reason, permanent=True))
            link.connection.close(reason)
        removed = NodeReport(node, 0, 0, faults=(RemovedFromSite(node=node),))
        unknown = AgentReport(node, removed, self._now(), time.monotonic(), connected=False, node_id=node_id)
        last = self._reports.get(node_id, unknown)
        self._reports[node_id] = replace(last, report=removed, connected=False, samples=(), owners=())
        self._report_received.set()

    # --- the loop -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Every few seconds: apply removals made by other processes, and save the agents' last reports."""
        while True:
            with self.iterations.rest():
                await asyncio.sleep(_CHECK_INTERVAL_S)
            await self._save_reports()
            try:
                revoked = await asyncio.to_thread(self._authority.revoked)
            except (OSError, ValueError) as error:
                _log.error("the list of revoked certificates cannot be read: %s", error)
                continue
            self._tunnels.end_revoked(revoked)
            for link in [link for link in self._links.values() if link.serial in revoked]:
                self._disconnect_removed(link.node, link.node_id)

    async def _save_reports(self) -> None:
        current = {
            one.node_id: replace(
                one, report=replace(one.report, disk_free_mib=None), at=0.0, monotonic_at=0.0, samples=(), owners=()
            )
            for one in self._reports.values()
        }
        if self._reports_file is None or current == self._saved:
            return
        try:
            await asyncio.to_thread(saved_reports.write, self._reports_file, list(self._reports.values()))
        except OSError as error:
            _log.warning("the agents' reports cannot be saved: %s", error)
        else:
            self._saved = current

    # --- the port: reports ----------------------------------------------------------------------------------------

    def agent_reports(self) -> Sequence[AgentReport]:
        return list(self._reports.values())

    async def bindings(self) -> Mapping[str, str]:
        """The bindings that the authority recorded, including that of a node that has just joined."""
        try:
            return await asyncio.to_thread(self._authority.bindings)
        except (OSError, ValueError) as error:
            raise EngineFailure(
                f"the certificates of the nodes cannot be read ({error}): restore the folder `authority` from a backup",
                retryable=True,
            ) from error

    def allow_addresses(self, addresses: Collection[str]) -> None:
        """Sent to all connected agents, and to each that connects later."""
        self._allowed = tuple(dict.fromkeys([*self._always_allowed, *addresses]))
        for link in self._links.values():
            link.connection.send("allowed-addresses", messages.AllowedAddresses(self._allowed))

    def set_network(self, network: NodeNetwork) -> None:
        """Sent to all connected agents, and to each that connects later."""
        self._network = network
        for link in self._links.values():
            link.connection.send("network", network)

    def set_neighbors(self, nodes: Collection[tuple[str, str]]) -> None:
        """Sent to all connected agents, and to each that connects later."""
        self._neighbors = messages.Neighbors(tuple(nodes))
        for link in self._links.values():
            link.connection.send("neighbors", self._neighbors)

    # --- the port: requests ---------------------------------------------------------------------------------------

    def _link(self, node_id: str) -> _Link:
        link = self._links.get(node_id)
        if link is None:
            report = self._reports.get(node_id)
            last = f"last report {self._now() - report.at:.0f} s ago" if report else "no report since our start"
            name = report.node if report else f"the Swarm node {node_id}"
            raise EngineFailure(
                f"the agent of {name} is not connected ({last}): check `systemctl status commonage-agent` on that node",
                retryable=True,
            )
        return link

    async def _request(
        self, node_id: str, kind: RequestType[Q, A], params: Q, on_progress: OnProgress = ignore_progress
    ) -> A:
        return await self._link(node_id).connection.request(kind, params, on_progress)

    async def measure(self, node_id: str) -> Sequence[Measurement]:
        return (await self._request(node_id, messages.MEASURE, messages.Nothing())).measurements

    async def owners(self, node_id: str, pids: Collection[int]) -> Sequence[ProcessOwner]:
        return (await self._request(node_id, messages.OWNERS, messages.Pids(tuple(pids)))).owners

    async def enforce(self, node_id: str, hold: ShareAssignment) -> Mapping[str, str]:
        return dict((await self._request(node_id, messages.ENFORCE, hold)).variables)

    async def release(self, node_id: str, attempt_id: str) -> None:
        await self._request(node_id, messages.RELEASE, messages.Attempts((attempt_id,)))

    async def mount(self, node_id: str, attempt_id: str, sources: Sequence[tuple[str, str]]) -> Sequence[str]:
        return (await self._request(node_id, messages.MOUNT, messages.Mounts(attempt_id, tuple(sources)))).targets

    async def unmount(self, node_id: str, attempt_id: str) -> None:
        await self._request(node_id, messages.UNMOUNT, messages.Attempts((attempt_id,)))

    async def pull(self, node_id: str, image: str, on_progress: OnProgress, token: PullToken | None = None) -> None:
        report = self._reports.get(node_id)
        if token is None or report is None or not report.pulls_by_token:
            await self._request(node_id, messages.PULL, messages.Image(image), on_progress)
        else:
            wanted = messages.TokenPull(image, token.address, token.text)
            await self._request(node_id, messages.PULL_BY_TOKEN, wanted, on_progress)

    async def reaches(self, node_id: str, address: str) -> bool:
        return (await self._request(node_id, messages.REACHES, messages.NodeAddress(address))).reachable

    async def exec(
        self, node_id: str, attempt_id: str, command: Sequence[str], terminal: Terminal | None
    ) -> ExecStream:
        link = self._link(node_id)
        return await link.execs.begin(link.connection, attempt_id, command, terminal)

    async def fence(self, node_id: str, attempt_ids: Collection[str]) -> Collection[str]:
        return (await self._request(node_id, messages.FENCE, messages.Attempts(tuple(attempt_ids)))).ids

    async def unpause(self, node_id: str, attempt_ids: Collection[str]) -> None:
        link = self._link(node_id)
        await link.connection.request(messages.UNPAUSE, messages.Unpause(tuple(attempt_ids), link.report_number))

    # --- GPUs on other nodes --------------------------------------------------------------------------------------

    async def note_allocations(self, allocations: Sequence[Allocation]) -> None:
        """Pass the allocations to agents with simulated GPUs: no other agent needs them."""
        by_node: dict[str, list[Allocation]] = defaultdict(list)
        for allocation in allocations:
            by_node[allocation.node].append(allocation)
        await asyncio.gather(
            *(self._note_allocations(one, tuple(by_node[one.node])) for one in list(self._links.values()))
        )

    async def _note_allocations(self, link: _Link, allocations: tuple[Allocation, ...]) -> None:
        report = self._reports.get(link.node_id)
        if report is None or link.allocations == allocations:
            return
        if any(device.simulated for device in report.report.devices):
            with suppress(EngineFailure):
                await link.connection.request(messages.NOTE_ALLOCATIONS, messages.Allocations(allocations))
                link.allocations = allocations

    def take_warnings(self) -> Sequence[tuple[str, str, str]]:
        """Warnings about attempts that agents sent since the last call."""
        taken, self._warnings = self._warnings, []
        return taken

    async def resume(self, uuid: str) -> None:
        for node_id, report in list(self._reports.items()):
            if any(device.uuid == uuid for device in report.report.devices):
                with suppress(CommonageError):
                    await self._request(node_id, messages.RESUME, messages.Device(uuid))
