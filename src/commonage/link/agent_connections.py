"""All agents of a site as the control plane sees them: the port `Agents` over their links.

Created by the server's wiring. There is one link for each Swarm node, as named in the agent's certificate; the newest
link wins. The last report of an agent is kept when its link ends, and marked as old.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from cryptography import x509

from commonage.domain.errors import CommonageError, EngineFailure
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import Allocation, NodeReport
from commonage.domain.statuses import Measurement, ProcessOwner
from commonage.link import messages, saved_reports
from commonage.link.certificate_authority import CertificateAuthority
from commonage.link.connection import Answer, Connection, ConnectionLost
from commonage.link.execs import LinkExecs
from commonage.link.listener import AgentPeer, Listener
from commonage.link.messages import Report, RequestType
from commonage.link.tunnels import Tunnels
from commonage.ports.agents import AgentReport, Drains, NodeNetwork, OnProgress
from commonage.ports.devices import Hold
from commonage.ports.execs import ExecStream, Terminal

_log = logging.getLogger(__name__)
_LOOK_EVERY_S = 5.0
_COME_AGAIN_S = 4.0
_MOST_WARNINGS = 1000


@dataclass(slots=True, eq=False)
class _Link:
    """The link of a node, by its certificate's serial number.

    `held` are the allocations (allocations) that its agent knows, `number` is that of its last report. `left`: the node
    reported that it has left the site.
    """

    node: str
    node_id: str
    serial: int
    peer: Connection = field(init=False)
    execs: LinkExecs = field(default_factory=LinkExecs)
    held: tuple[Allocation, ...] = field(default=())
    number: int = 0
    left: bool = False


class AgentConnections:
    """Implements `ports.agents.Agents` and `RemoteDevices`. Links and reports are kept by Swarm node id.

    `memory` is the file that keeps the agents' last reports over a restart (None: nothing is kept). `always_reach` is
    what containers may reach in addition to what engines add (`allow_addresses`). `gateway_port` is the loopback port
    that
    serves the connections of containers that agents carry (0: they are refused). `now` gives unix seconds.
    """

    def __init__(
        self,
        authority: CertificateAuthority,
        *,
        memory: Path | None = None,
        always_reach: Collection[str] = (),
        gateway_port: int = 0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._authority, self._now, self._memory = authority, now, memory
        self._kept: Mapping[str, object] = {}
        self._news = asyncio.Event()
        self._always_reach = self._reaches = tuple(always_reach)
        self._tunnels = Tunnels(gateway_port)
        self._listener = Listener(authority, self._attend, self._tunnels.carry, now, lambda: self._reaches)
        self._neighbors = messages.Neighbors(())
        self._network: NodeNetwork | None = None
        self._links: dict[str, _Link] = {}
        self._agent_reports: dict[str, AgentReport] = {}
        self._warnings: list[tuple[str, str, str]] = []
        self.iterations = Iterations("agents", now)
        self.port = 0
        self._drains: Drains | None = None

    async def open(self, bind: str, port: int, drains: Drains | None = None) -> None:
        """Listen for agents; `port` is set then. `drains` is notified of nodes that leave. Raises ListenError."""
        self._drains = drains
        await self._begin(await self._listener.open(bind, port))

    async def open_on(self, listening: socket.socket) -> None:
        """Listen on an existing socket, which this object then owns."""
        await self._begin(await self._listener.open_on(listening))

    async def _begin(self, port: int) -> None:
        """Load the remembered reports, and give the agents that were connected some time to reconnect."""
        self.port = port
        kept = () if self._memory is None else await asyncio.to_thread(saved_reports.read, self._memory)
        known = [one for one in kept if one.node_id]  # without a node id the agent must join again
        for one in known:  # it may have been in contact until now
            self._agent_reports.setdefault(
                one.node_id, replace(one, at=self._now(), monotonic_at=time.monotonic(), connected=False)
            )
        awaited = {one.node_id for one in known if one.connected}
        with suppress(TimeoutError):
            async with asyncio.timeout(_COME_AGAIN_S):
                while awaited - {one.node_id for one in self._agent_reports.values() if one.connected}:
                    self._news.clear()
                    await self._news.wait()

    async def close(self) -> None:
        """End all links. The agents keep dialling until a control plane answers."""
        await self._remember()  # before the links end: connected agents are expected again
        for link in self._links.values():
            link.peer.close("the control plane stops")
        await self._listener.close()

    # --- links ----------------------------------------------------------------------------------------------------

    async def _attend(self, caller: AgentPeer) -> None:
        """Serve a link from its welcome to its end."""
        link = _Link(caller.node, caller.node_id, caller.serial)
        offers: Mapping[RequestType[Any, Any], Answer] = {
            messages.RENEW: partial(self._renew, link),
            messages.LEFT: partial(self._has_left, link),
        }
        hears = {"report": (Report, lambda report: self._take_in(link, report)), **link.execs.hears()}
        link.peer = peer = Connection(f"the agent of {caller.node}", caller.reader, caller.writer, offers, hears)
        self._forget_former(link)
        self._links[caller.node_id] = link
        if self._network is not None:  # until it is known, the agent keeps the network that it knows; likewise:
            peer.say("network", self._network)
        if self._neighbors.each:
            peer.say("neighbors", self._neighbors)
        _log.info("the agent of %s is connected", caller.node)
        try:
            await peer.run()
        except ConnectionLost as error:
            _log.warning("%s", error.message)
        finally:
            peer.close("the link ended")
            if self._links.get(caller.node_id) is link:
                del self._links[caller.node_id]
                self._has_gone(caller.node_id)
            if link.left and self._drains is not None:  # not before: it waits on this link for the answer
                await self._drains.finish_leave(caller.node)

    def _forget_former(self, link: _Link) -> None:
        """End the previous link of this node, and that of another Swarm node that had the same name."""
        for one in list(self._links.values()):
            if one.node_id == link.node_id or one.node == link.node:
                one.peer.close(f"the agent of {link.node} came again")
        for node_id in [one.node_id for one in self._agent_reports.values() if one.node == link.node]:
            if node_id != link.node_id:
                self._links.pop(node_id, None)
                del self._agent_reports[node_id]

    def _has_gone(self, node_id: str) -> None:
        if node_id in self._agent_reports:
            self._agent_reports[node_id] = replace(self._agent_reports[node_id], connected=False)
        self._news.set()

    def _take_in(self, link: _Link, report: Report) -> None:
        node = link.node
        if self._links.get(link.node_id) is not link:
            return  # another link took its place
        if report.report.name != node:
            link.peer.close(f"the agent of {node} reports of {report.report.name[:64]}")
            return
        self._agent_reports[link.node_id] = AgentReport(
            node,
            report.report,
            self._now(),
            time.monotonic(),
            connected=True,
            engine_fault=report.engine_fault,
            fenced=report.fenced,
            paused=report.paused,
            samples=report.samples,
            owners=report.owners,
            neighbors=report.neighbors,
            notices=report.notices,
            bounds_volumes=report.bounds_volumes,
            gateway=report.gateway,
            mounts=report.mounts,
            node_id=link.node_id,
        )
        link.number = report.number
        told = [(node, attempt_id, words) for attempt_id, words in report.warnings]
        self._warnings = [*self._warnings, *told][-_MOST_WARNINGS:]
        link.peer.say("heard", messages.ReportHeard(report.number))
        self._news.set()

    async def _renew(self, link: _Link, request: messages.SigningRequest, _told: OnProgress) -> messages.Certificate:
        pem = await asyncio.to_thread(self._authority.renew, request.csr, link.node, link.node_id, link.serial)
        given = x509.load_pem_x509_certificate(pem.encode())
        # From now on this certificate decides: the previous one may be dropped when it expires.
        link.serial = given.serial_number
        _log.info("the agent of %s has a new certificate", link.node)
        return messages.Certificate(pem, given.not_valid_after_utc.timestamp())

    async def _has_left(self, link: _Link, _nothing: messages.Nothing, _told: OnProgress) -> messages.Nothing:
        """A node reports that it has left the site. Its certificate says which node it is."""
        if self._drains is None:
            raise EngineFailure("nobody here keeps account of nodes")
        await self._drains.left(link.node)
        link.left = True
        return messages.Nothing()

    async def revoke(self, node: str, *, gone: bool = False) -> None:
        """Remove the node from the site: revoke its certificates and end its link.

        If an engine still lists it, it is at fault. `gone`: the node itself does not exist any more and will not be
        seen again.
        """
        node_ids = await asyncio.to_thread(self._authority.node_ids, node)
        await asyncio.to_thread(self._authority.revoke, node)
        self._tunnels.end(node)
        for node_id in node_ids:
            self._put_out(node, node_id)
            if gone:
                self._agent_reports.pop(node_id, None)

    def _put_out(self, node: str, node_id: str) -> None:
        self._end(node_id)
        fault = f"{node} was removed from this site: have it join again (`commonage node join`), or take it out by hand"
        never = AgentReport(
            node, NodeReport(node, 0, 0), self._now(), time.monotonic(), connected=False, node_id=node_id
        )
        before = self._agent_reports.get(node_id, never)
        report = NodeReport(node, 0, 0, faults=(fault,))
        self._agent_reports[node_id] = replace(before, report=report, connected=False, samples=(), owners=())
        self._news.set()

    def _end(self, node_id: str) -> None:
        link = self._links.get(node_id)
        if link is not None:
            why = f"{link.node} was removed from this site: have the node join again"
            link.peer.say("refused", messages.Refused(why, for_good=True))
            link.peer.close(why)

    async def run(self) -> None:
        """Every few seconds: apply removals made by other processes, and save the agents' last reports."""
        while True:
            with self.iterations.rest():
                await asyncio.sleep(_LOOK_EVERY_S)
            await self._remember()
            try:
                revoked = await asyncio.to_thread(self._authority.revoked)
            except (OSError, ValueError) as error:
                _log.error("which nodes were removed cannot be read: %s", error)
                continue
            self._tunnels.end_revoked(revoked)
            for link in [link for link in self._links.values() if link.serial in revoked]:
                self._put_out(link.node, link.node_id)

    async def _remember(self) -> None:
        """Save the reports if more than their times and measurements changed."""
        essence = {
            one.node_id: replace(
                one, report=replace(one.report, disk_free_mib=None), at=0.0, monotonic_at=0.0, samples=(), owners=()
            )
            for one in self._agent_reports.values()
        }
        if self._memory is None or essence == self._kept:
            return
        try:
            await asyncio.to_thread(saved_reports.write, self._memory, list(self._agent_reports.values()))
        except OSError as error:
            _log.warning("what agents say is not kept: %s", error)
        else:
            self._kept = essence

    # --- the port: reports ----------------------------------------------------------------------------------------

    def agent_reports(self) -> Sequence[AgentReport]:
        """The last report of each agent."""
        return list(self._agent_reports.values())

    async def bindings(self) -> Mapping[str, str]:
        """As the authority recorded them: includes a node that has just joined."""
        try:
            return await asyncio.to_thread(self._authority.bindings)
        except (OSError, ValueError) as error:
            raise EngineFailure(
                f"which node is which Swarm node cannot be read ({error}): put the folder `authority` back from a "
                "backup",
                retryable=True,
            ) from error

    def allow_addresses(self, addresses: Collection[str]) -> None:
        """Sent to all connected agents, and to each that connects later."""
        self._reaches = tuple(dict.fromkeys([*self._always_reach, *addresses]))
        for link in self._links.values():
            link.peer.say("reach", messages.Reach(self._reaches))

    def set_network(self, network: NodeNetwork) -> None:
        """Sent to all connected agents, and to each that connects later."""
        self._network = network
        for link in self._links.values():
            link.peer.say("network", network)

    def set_neighbors(self, nodes: Collection[tuple[str, str]]) -> None:
        """Sent to all connected agents, and to each that connects later."""
        self._neighbors = messages.Neighbors(tuple(nodes))
        for link in self._links.values():
            link.peer.say("neighbors", self._neighbors)

    # --- the port: requests ---------------------------------------------------------------------------------------

    def _peer(self, node_id: str) -> Connection:
        link = self._links.get(node_id)
        if link is None:
            since = self._agent_reports.get(node_id)
            last = f"last heard of {self._now() - since.at:.0f} s ago" if since else "never heard of since our start"
            name = since.node if since else f"the Swarm node {node_id}"
            raise EngineFailure(
                f"the agent of {name} is not connected ({last}): look there at `systemctl status commonage-agent`",
                retryable=True,
            )
        return link.peer

    async def measure(self, node_id: str) -> Sequence[Measurement]:
        """The resource use of the node's containers."""
        return (await self._peer(node_id).ask(messages.MEASURE, messages.Nothing())).each

    async def owners(self, node_id: str, pids: Collection[int]) -> Sequence[ProcessOwner]:
        """The owners of these processes on the node."""
        return (await self._peer(node_id).ask(messages.OWNERS, messages.Pids(tuple(pids)))).each

    async def confine(self, node_id: str, hold: Hold) -> Mapping[str, str]:
        """Apply the shares of an attempt on the node."""
        return dict((await self._peer(node_id).ask(messages.CONFINE, hold)).each)

    async def release(self, node_id: str, attempt_id: str) -> None:
        """Release the shares of an attempt on the node."""
        await self._peer(node_id).ask(messages.RELEASE, messages.Attempts((attempt_id,)))

    async def mount(self, node_id: str, attempt_id: str, sources: Sequence[tuple[str, str]]) -> Sequence[str]:
        """Mount the folders of an attempt on the node."""
        return (await self._peer(node_id).ask(messages.MOUNT, messages.Mounts(attempt_id, tuple(sources)))).places

    async def unmount(self, node_id: str, attempt_id: str) -> None:
        """Unmount the folders of an attempt."""
        await self._peer(node_id).ask(messages.UNMOUNT, messages.Attempts((attempt_id,)))

    async def pull(self, node_id: str, image: str, told: OnProgress) -> None:
        """Pull the image on the node."""
        await self._peer(node_id).ask(messages.PULL, messages.Image(image), told)

    async def reaches(self, node_id: str, address: str) -> bool:
        """Whether the node reaches this address."""
        return (await self._peer(node_id).ask(messages.REACHES, messages.Place(address))).yes

    async def exec(
        self, node_id: str, attempt_id: str, command: Sequence[str], terminal: Terminal | None
    ) -> ExecStream:
        """Run a command in an attempt on the node."""
        peer = self._peer(node_id)
        return await self._links[node_id].execs.begin(peer, attempt_id, command, terminal)

    async def fence(self, node_id: str, attempt_ids: Collection[str]) -> Collection[str]:
        """Kill attempts on the node."""
        return (await self._peer(node_id).ask(messages.FENCE, messages.Attempts(tuple(attempt_ids)))).ids

    async def unpause(self, node_id: str, attempt_ids: Collection[str]) -> None:
        """End the pause of attempts."""
        peer = self._peer(node_id)
        await peer.ask(messages.UNPAUSE, messages.Unpause(tuple(attempt_ids), self._links[node_id].number))

    # --- GPUs on other nodes --------------------------------------------------------------------------------------

    async def note_allocations(self, allocations: Sequence[Allocation]) -> None:
        """Pass the allocations (allocations) to agents with simulated GPUs: no other agent needs them."""
        by_node: dict[str, list[Allocation]] = defaultdict(list)
        for allocation in allocations:
            by_node[allocation.node].append(allocation)
        await asyncio.gather(
            *(self._note_allocations(one, tuple(by_node[one.node])) for one in list(self._links.values()))
        )

    async def _note_allocations(self, link: _Link, allocations: tuple[Allocation, ...]) -> None:
        heard = self._agent_reports.get(link.node_id)
        if heard is None or link.held == allocations:
            return
        if any(device.simulated for device in heard.report.devices):
            with suppress(EngineFailure):
                await link.peer.ask(messages.NOTE_ALLOCATIONS, messages.Allocations(allocations))
                link.held = allocations

    def take_warnings(self) -> Sequence[tuple[str, str, str]]:
        """Warnings about attempts that agents sent since the last call."""
        taken, self._warnings = self._warnings, []
        return taken

    async def resume(self, uuid: str) -> None:
        """Clear the faults of this GPU on its node."""
        for node_id, heard in list(self._agent_reports.items()):
            if any(device.uuid == uuid for device in heard.report.devices):
                with suppress(CommonageError):
                    await self._peer(node_id).ask(messages.RESUME, messages.Device(uuid))
