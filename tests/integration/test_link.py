"""The link for real: TLS on both sides over the loopback, agents let in and refused, links lost and found again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from tests.contract.harness.agents import AgentProgram, make_config
from tests.fakes.waiting import until

from commonage.agent import partition
from commonage.agent.config import AgentConfig
from commonage.agent.connection import AdmissionRefused, ControlPlaneConnection, client_context
from commonage.agent.partition import is_reachable
from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import Allocation, NodeReport, Share
from commonage.domain.reasons import Reason, attempts
from commonage.domain.reasons.engines import PrivilegesMayBeGained
from commonage.domain.reasons.nodes import DaemonNotRunning, RemovedFromSite
from commonage.domain.statuses import Measurement
from commonage.link import messages
from commonage.link.agent_connections import AgentConnections
from commonage.link.certificate_authority import CertificateAuthority
from commonage.link.connection import Connection, encode_frame, read_frame
from commonage.link.exchange import message_frame
from commonage.link.messages import Hello, Report
from commonage.ports.agents import AgentReport, OnProgress
from commonage.ports.devices import ShareAssignment, ShareNotEnforced
from commonage.server.processes.ports import free_port
from commonage.testing import factories

pytestmark = pytest.mark.anyio

NODE = "worker1"
_WITHIN_S = 20


class Site:
    """A control plane's side, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = CertificateAuthority.open(folder / "ca")
        self.agents = AgentConnections(self.authority, always_allowed=["10.0.0.5:3141"])
        self.agents.allow_addresses(["10.0.0.1:8081"])
        self.account = Account(self)

    def config(self, node: str = NODE, **fields: Any) -> AgentConfig:
        return make_config(self.folder / node, self.authority, node, self.agents.port, **fields)

    def agent_report(self, node: str = NODE) -> AgentReport | None:
        return next((one for one in self.agents.agent_reports() if one.node == node), None)

    async def connected(self, node: str = NODE) -> AgentReport:
        found: AgentReport = await until(
            lambda: (one := self.agent_report(node)) is not None and one.connected and one, f"{node} is connected"
        )
        return found

    async def gone(self, node: str = NODE) -> None:
        await until(lambda: (one := self.agent_report(node)) is None or not one.connected, f"{node} is gone")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    await site.agents.open("127.0.0.1", free_port(), site.account)
    running = asyncio.create_task(site.agents.run())
    yield site
    running.cancel()
    await site.agents.close()


class Node:
    """An agent in this process, which says and answers what a test wants."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.report = Report(1, NodeReport(config.node, 4000, 8000))
        self.allowed_addresses: tuple[str, ...] = ()
        self.asked: list[Any] = []
        self.answers: dict[str, Any] = {}
        self.held = asyncio.Event()
        calls = (messages.MEASURE, messages.ENFORCE, messages.PULL, messages.FENCE, messages.NOTE_ALLOCATIONS)
        request_handlers = {call: self._answer(call.name) for call in calls}
        message_handlers = {
            "report-received": (messages.ReportReceived, self.asked.append),
            "allowed-addresses": (
                messages.AllowedAddresses,
                lambda allowed: setattr(self, "allowed_addresses", allowed.addresses),
            ),
        }
        self.dialler = ControlPlaneConnection(config, request_handlers, message_handlers, self._linked)
        self._task: asyncio.Task[None] | None = None

    def _answer(self, name: str) -> Any:
        async def answer(params: Any, on_progress: OnProgress) -> Any:
            self.asked.append(params)
            given = self.answers.get(name, messages.Nothing())
            if isinstance(given, Exception):
                raise given
            return await given(on_progress) if callable(given) else given

        return answer

    async def _linked(self, connection: Connection, welcome: messages.Welcome) -> None:
        self.allowed_addresses = welcome.allowed_addresses
        while True:
            connection.send("report", self.report)
            await asyncio.sleep(0.2)

    async def __aenter__(self) -> Node:
        self._task = asyncio.create_task(self.dialler.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


# --- who is let in ------------------------------------------------------------------------------------------------


async def test_what_an_agent_tells_arrives_and_what_it_is_told_too(site: Site) -> None:
    async with Node(site.config()) as node:
        heard = await site.connected()
        assert heard.report == node.report.report
        await until(lambda: node.allowed_addresses, "it gets the addresses that containers may reach")
        assert node.allowed_addresses == ("10.0.0.5:3141", "10.0.0.1:8081")
        site.agents.allow_addresses(["10.0.0.2:8081"])
        await until(lambda: node.allowed_addresses == ("10.0.0.5:3141", "10.0.0.2:8081"), "it gets changes at once")
        node.report = replace(node.report, engine_fault=DaemonNotRunning(silent_s=9), fenced=("a-1",))
        await until(lambda: (one := site.agent_report()) is not None and one.fenced == ("a-1",), "the newer report")
        assert site.agent_report() is not None
    await site.gone()
    with pytest.raises(EngineFailure, match="not connected") as caught:
        await site.agents.measure(NODE)
    assert caught.value.is_retryable


async def test_impossible_figures_and_texts_of_an_agent_are_bounded(site: Site) -> None:
    async with Node(site.config()) as node:
        before = (await site.connected()).report
        node.report = replace(node.report, warnings=(("a-1", "a\ud800"),), report=replace(before, memory_mib=2**60))
        heard = await until(lambda: (one := site.agent_report()) is not None and one.report != before and one, "it")
        assert heard.report.memory_mib == 2**53 and not heard.report.is_possible
        assert (NODE, "a-1", "a\ufffd") in site.agents.take_warnings()
        node.answers[messages.MEASURE.name] = messages.Measured((Measurement("a-1", 1e306, 1),))
        assert await site.agents.measure(NODE) == (Measurement("a-1", 2.0**53, 1),)


async def refusal(config: AgentConfig) -> str:
    """Why an agent with these settings is not let in."""
    dialler = ControlPlaneConnection(config, {}, {}, _nothing)
    with pytest.raises(Exception) as caught:
        await dialler._link(config.control[0])
    return f"{type(caught.value).__name__}: {caught.value}"


async def _nothing(_connection: Connection, _welcome: messages.Welcome) -> None:
    await asyncio.sleep(3600)


async def test_a_certificate_of_another_site_is_not_let_in(site: Site, tmp_path: Path) -> None:
    config = site.config()
    other = CertificateAuthority.open(tmp_path / "other")
    theirs = make_config(tmp_path / "theirs", other, NODE, site.agents.port)
    # It trusts this site, and has a certificate of another one.
    message = await refusal(replace(theirs, authority=config.authority))
    assert "may have rejected the certificate" in message
    # It has our certificate, and finds a control plane that it was not made for.
    assert "is not the control plane of this site" in await refusal(replace(config, authority=theirs.authority))
    assert site.agent_report() is None


async def test_a_servers_certificate_is_none_of_a_node(site: Site) -> None:
    config = site.config()
    pair = site.authority.serve([NODE])
    Path(config.certificate).write_text(pair.cert_pem)
    Path(config.key).write_text(pair.key_pem)
    assert "may have rejected the certificate" in await refusal(config)


async def test_an_agents_certificate_is_none_of_a_control_plane(site: Site, tmp_path: Path) -> None:
    """A node of the site must not be able to play the control plane to the others."""
    config = site.config()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(config.certificate, config.key)
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    message = await refusal(replace(config, control=(f"127.0.0.1:{port}",)))
    server.close()
    assert "is not the control plane of this site" in message


async def test_without_a_certificate_nobody_is_heard(site: Site) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=site.authority.certificate)
    with pytest.raises(OSError, match=r"(?i)certificate required|reset"):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", site.agents.port, ssl=context, server_hostname=messages.SERVER_NAME
        )
        writer.write(encode_frame(message_frame("hello", Hello(NODE, messages.PROTOCOL, ""))))
        assert await reader.read() == b""
        raise ConnectionResetError("reset")


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (message_frame("hello", Hello("worker2", messages.PROTOCOL, "")), "and its certificate worker1"),
        (message_frame("hello", Hello(NODE, messages.PROTOCOL + 1, "")), "join the node again"),
        ({"message": "something"}, "the first frame is not a hello"),
    ],
)
async def test_who_says_other_things_than_its_certificate_is_refused(site: Site, frame: Any, words: str) -> None:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", site.agents.port, ssl=client_context(site.config()), server_hostname=messages.SERVER_NAME
    )
    writer.write(encode_frame(frame))
    refused = await read_frame(reader, _WITHIN_S)
    assert refused["message"] == "refused"
    assert words in refused["body"]["reason"]
    assert refused["body"]["permanent"]
    assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize("line", [b"{}\n", b"no json\n", b"[1]\n", b"[" * 100_000 + b"\n", b"\xff\n"])
async def test_nonsense_ends_the_link_and_nothing_else(site: Site, line: bytes) -> None:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", site.agents.port, ssl=client_context(site.config()), server_hostname=messages.SERVER_NAME
    )
    writer.write(encode_frame(message_frame("hello", Hello(NODE, messages.PROTOCOL, ""))))
    assert (await read_frame(reader, _WITHIN_S))["message"] == "welcome"
    writer.write(line)
    assert await reader.read() == b""
    writer.close()
    async with Node(site.config()):
        await site.connected()


async def test_a_report_of_another_node_ends_the_link(site: Site) -> None:
    node = Node(site.config())
    node.report = Report(1, NodeReport("worker2", 1, 1))
    async with node:
        await asyncio.sleep(0.5)
        assert site.agents.agent_reports() == []


async def test_a_removed_node_is_out_at_once_and_stays_out(site: Site) -> None:
    config = site.config()
    async with Node(config):
        await site.connected()
        await site.agents.revoke(NODE)
        report = site.agent_report()
        assert report is not None and not report.connected
        assert report.report.faults == (RemovedFromSite(node=NODE),), "if still in the Swarm, it takes no work"
        assert "AdmissionRefused: worker1 was removed from this site" in await refusal(config)
    # It joins again under its name: it has another certificate.
    async with Node(site.config()):
        await site.connected()


async def test_a_node_that_another_process_removed_is_out_soon(site: Site) -> None:
    async with Node(site.config()):
        await site.connected()
        CertificateAuthority.open(site.folder / "ca").revoke(NODE)
        await until(lambda: (one := site.agent_report()) is not None and one.report.faults, "it is out")


async def test_a_node_that_is_no_more_is_forgotten(site: Site) -> None:
    async with Node(site.config()):
        await site.connected()
        await site.agents.revoke(NODE, gone=True)
        assert site.agent_report() is None


async def test_who_was_removed_is_not_renewed_even_while_its_link_stands(site: Site) -> None:
    config = site.config()
    request = Path(config.request).read_text()
    message: list[str] = []

    async def renew(connection: Connection, _welcome: messages.Welcome) -> None:
        await connection.request(messages.RENEW, messages.SigningRequest(request))
        # The one that it came with is forgotten, as when it has expired: it is the new one that must hold.
        CertificateAuthority.open(site.folder / "ca").revoke(NODE)
        try:
            await connection.request(messages.RENEW, messages.SigningRequest(request))
        except EngineFailure as error:
            message.append(error.message)

    dialling = asyncio.create_task(ControlPlaneConnection(config, {}, {}, renew).run())
    await until(lambda: message, "it is answered")
    dialling.cancel()
    await asyncio.wait([dialling])
    assert "does not hold any more" in message[0]
    certificates = (site.folder / "ca" / "issued.json").read_text()
    assert '"revoked": false' not in certificates


async def test_an_expired_certificate_is_refused_and_one_that_ends_soon_renewed(site: Site) -> None:
    config = site.config()
    old = CertificateAuthority.open(site.folder / "ca", now=lambda: time.time() - 40 * 86_400)
    Path(config.certificate).write_text(old.sign(Path(config.request).read_text(), NODE, NODE))
    assert "may have rejected the certificate" in await refusal(config)
    ageing = CertificateAuthority.open(site.folder / "ca", now=lambda: time.time() - 25 * 86_400)
    Path(config.certificate).write_text(ageing.sign(Path(config.request).read_text(), NODE, NODE))
    before = Path(config.certificate).read_text()
    async with Node(config):
        await until(lambda: Path(config.certificate).read_text() != before, "it is renewed")
    renewed = x509.load_pem_x509_certificate(Path(config.certificate).read_bytes())
    assert renewed.not_valid_after_utc.timestamp() > time.time() + 29 * 86_400
    async with Node(config):
        await site.connected()


# --- a node that leaves ---------------------------------------------------------------------------------------


class Account:
    """Records the nodes that leave, in order."""

    def __init__(self, site: Site) -> None:
        self.site, self.departed, self.trouble = site, list[str](), ""

    async def left(self, name: str) -> None:
        if self.trouble:
            raise EngineFailure(self.trouble)
        self.departed.append(f"{name} left")

    async def finish_leave(self, name: str) -> None:
        await self.site.agents.revoke(name, gone=True)
        self.departed.append(f"{name} is seen off")


async def nothing(_connection: Connection, _welcome: messages.Welcome) -> None:
    pass


def leaver(config: AgentConfig) -> ControlPlaneConnection:
    return ControlPlaneConnection(config, {}, {}, nothing)


async def test_a_node_that_says_that_it_left_is_answered_first_and_let_in_no_more(site: Site) -> None:
    account = site.account
    config, other = site.config(), site.config("worker2")
    async with Node(other):
        await site.connected("worker2")
        async with Node(config):
            await site.connected()
        await site.gone()
        await leaver(config).request(messages.LEFT, messages.Nothing())
        await until(lambda: len(account.departed) == 2, "it is seen off")
        assert account.departed == ["worker1 left", "worker1 is seen off"]
        assert [one.node for one in site.agents.agent_reports()] == ["worker2"], "nothing is remembered of who left"
        with pytest.raises(AdmissionRefused, match="worker1 was removed from this site") as caught:
            await leaver(config).request(messages.LEFT, messages.Nothing())
        assert caught.value.permanent
        assert site.agent_report("worker2") is not None


async def test_who_cannot_be_struck_off_is_told_why_and_stays(site: Site) -> None:
    config, account = site.config(), site.account
    account.trouble = "the database does not answer"
    with pytest.raises(EngineFailure, match="the database does not answer"):
        await leaver(config).request(messages.LEFT, messages.Nothing())
    away = replace(config, control=("127.0.0.1:1", *config.control))
    account.trouble = ""
    await leaver(away).request(messages.LEFT, messages.Nothing())
    assert account.departed[:1] == ["worker1 left"], "the next address is tried"


# --- links that are lost ------------------------------------------------------------------------------------------


async def test_the_newest_link_of_a_node_is_the_one(site: Site) -> None:
    config = site.config()
    async with Node(config) as first:
        await site.connected()
        async with Node(config) as second:
            second.report = Report(1, NodeReport(NODE, 9999, 8000))
            await until(
                lambda: (one := site.agent_report()) is not None and one.report.cpus_milli == 9999, "the second"
            )
            assert first.dialler is not second.dialler
            assert len(site.agents.agent_reports()) == 1


async def test_an_agent_finds_its_control_plane_again(site: Site, tmp_path: Path) -> None:
    config = site.config(control=("127.0.0.1:1", f"127.0.0.1:{site.agents.port}"))  # the first is not there
    async with Node(config):
        await site.connected()
        port = site.agents.port
        await site.agents.close()
        site.agents = AgentConnections(site.authority)
        assert site.agents.agent_reports() == []
        await site.agents.open("127.0.0.1", port)
        await site.connected()


async def test_what_was_heard_outlives_a_restart_of_the_control_plane(tmp_path: Path) -> None:
    """Its GPUs are not missing because the control plane was away; a node that reported before is waited for."""
    site, memory = Site(tmp_path), tmp_path / "agents.json"
    first = site.agents = AgentConnections(site.authority, reports_file=memory)
    await first.open("127.0.0.1", free_port())
    node = Node(site.config())
    device = factories.device()
    node.report = Report(
        1, NodeReport(NODE, 4000, 8000, (device,)), fenced=("a-1",), notices=(PrivilegesMayBeGained(),)
    )
    async with node:
        await site.connected()
        port = first.port
        await first.close()
        site.agents = AgentConnections(site.authority, reports_file=memory)
        await site.agents.open("127.0.0.1", port)
        assert (await site.connected()).report.devices == (device,)
    await site.gone()
    await site.agents.close()
    third = AgentConnections(site.authority, reports_file=memory)
    await third.open("127.0.0.1", port)
    [report] = third.agent_reports()
    assert (report.connected, report.report.devices, report.fenced) == (False, (device,), ("a-1",))
    assert report.notices == (PrivilegesMayBeGained(),)
    await third.revoke(NODE)
    await third.close()
    memory.write_text("{ half")
    fourth = AgentConnections(site.authority, reports_file=memory)
    await fourth.open("127.0.0.1", 0)
    assert fourth.agent_reports() == []
    await fourth.close()


async def test_agents_know_by_whom_they_tell_that_they_are_cut_off_and_keep_it(site: Site) -> None:
    config, machines = site.config(), (("manager", "10.0.0.1"), (NODE, "10.0.0.2"), ("worker2", "10.0.0.3"))
    site.agents.set_neighbors(machines[:2])

    async def knows(names: list[str]) -> None:
        await until(
            lambda: (one := site.agent_report()) is not None and list(one.neighbors) == names, f"it knows {names}"
        )

    program = AgentProgram(site.folder / NODE, config)
    try:
        await knows(["manager", NODE])
        site.agents.set_neighbors(machines)
        await knows(["manager", NODE, "worker2"])
    finally:
        program.kill()
    # A control plane that has just been started knows of none yet: the agent keeps its last instructions.
    port = site.agents.port
    await site.agents.close()
    site.agents = AgentConnections(site.authority)
    await site.agents.open("127.0.0.1", port)
    program = AgentProgram(site.folder / NODE, config)
    try:
        await knows(["manager", NODE, "worker2"])
    finally:
        program.kill()


async def test_a_connection_that_is_refused_is_an_answer_and_silence_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "_PROBE_TIMEOUT_S", 60.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert await is_reachable("127.0.0.1", port)
        assert not await is_reachable("127.0.0.1", port, refused=False)
        taken.listen(0)
        assert await is_reachable("127.0.0.1", port, refused=False)
        monkeypatch.undo()
        # Its queue is full: the kernel takes no more, and says nothing.
        callers = [socket.socket() for _ in range(4)]
        for caller in callers:
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.1", port))
        assert not await is_reachable("127.0.0.1", port)
        for caller in callers:
            caller.close()


async def test_silence_is_noticed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cable is drawn: no connection ends, and nothing comes any more."""
    monkeypatch.setattr(Connection.run, "__defaults__", (3.0,))
    context = client_context(site.config())
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", site.agents.port, ssl=context, server_hostname=messages.SERVER_NAME
    )

    async def speak() -> None:
        writer.write(encode_frame(message_frame("hello", Hello(NODE, messages.PROTOCOL, ""))))
        while True:
            writer.write(encode_frame(message_frame("report", Report(1, NodeReport(NODE, 1, 1)))))
            await asyncio.sleep(0.05)

    speaking = asyncio.create_task(speak())
    await site.connected()
    asking = asyncio.create_task(site.agents.measure(NODE))
    while "request" not in await read_frame(reader, _WITHIN_S):
        pass
    speaking.cancel()
    with pytest.raises(EngineFailure, match="sent nothing for"):
        await asking
    await site.gone()
    writer.close()


# --- questions ----------------------------------------------------------------------------------------------------


async def test_questions_are_answered_also_many_at_once(site: Site) -> None:
    async with Node(site.config()) as node:
        await site.connected()
        measured = tuple(Measurement(f"a-{number}", 1.5, 100, (1, 2)) for number in range(200))
        node.answers["measure"] = messages.Measured(measured)
        answers = await asyncio.gather(*(site.agents.measure(NODE) for _ in range(20)))
        assert all(one == measured for one in answers)


async def test_what_fails_there_fails_here_in_the_same_words(site: Site) -> None:
    hold = ShareAssignment("a-1", (Share("GPU-1", 0, "A30", 1024, 100, False, 24576),), in_container=True)
    async with Node(site.config()) as node:
        await site.connected()
        node.answers["enforce"] = ShareNotEnforced("two levels side by side", retryable=True)
        with pytest.raises(ShareNotEnforced, match="two levels side by side") as caught:
            await site.agents.enforce(NODE, hold)
        assert caught.value.is_retryable
        assert node.asked[-1] == hold
        node.answers["fence"] = RuntimeError("a mistake")
        with pytest.raises(EngineFailure, match="a mistake"):
            await site.agents.fence(NODE, ["a-1"])
        with pytest.raises(EngineFailure, match="release is not known"):  # an agent that lacks it
            await site.agents.release(NODE, "a-1")
        await site.connected()


async def test_progress_is_told_and_who_gives_up_is_not_waited_for(site: Site) -> None:
    ended = asyncio.Event()
    half = attempts.PullingImage(image="lab/torch:1", pulled_bytes=50, total_bytes=100)

    async def pull(on_progress: OnProgress) -> messages.Nothing:
        on_progress(half, 0.5)
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()
        return messages.Nothing()

    on_progress: list[tuple[Reason, float | None]] = []
    async with Node(site.config()) as node:
        await site.connected()
        node.answers["pull"] = pull
        pulling = asyncio.create_task(
            site.agents.pull(NODE, "lab/torch:1", lambda *progress: on_progress.append(progress))
        )
        await until(lambda: on_progress, "progress")
        assert on_progress == [(half, 0.5)]
        pulling.cancel()
        await asyncio.wait_for(ended.wait(), _WITHIN_S)


async def test_a_link_that_is_lost_fails_who_waits(site: Site) -> None:
    async def pull(on_progress: OnProgress) -> messages.Nothing:
        await asyncio.sleep(3600)
        return messages.Nothing()

    async with Node(site.config()) as node:
        await site.connected()
        node.answers["pull"] = pull
        pulling = asyncio.create_task(site.agents.pull(NODE, "lab/torch:1", lambda *_: None))
        await until(lambda: node.asked and isinstance(node.asked[-1], messages.Image), "it is asked")
    with pytest.raises(EngineFailure) as caught:
        await pulling
    assert caught.value.is_retryable


async def test_allocations_are_told_to_those_that_simulate_devices_once(site: Site) -> None:
    allocation = Allocation("a-1", "local", NODE, 1000, 1024, (), 1.0)
    program = AgentProgram(site.folder / NODE, site.config())
    try:
        report = await site.connected()
        report = await until(
            lambda: (one := site.agent_report()) is not None and one.report.devices and one, "its GPUs"
        )
        device = report.report.devices[0]
        share = Share(device.uuid, 0, device.model, device.memory_mib, 1000, True, device.memory_mib, simulated=True)
        await site.agents.note_allocations([replace(allocation, shares=(share,), at=time.time() - 100)])
        # What it simulates is what the allocation holds.
        busy = await until(
            lambda: (one := site.agent_report()) is not None and (one.samples[0].memory_used_mib or 0) > 1000 and one,
            "it measures",
        )
        assert [one.attempt_id for one in busy.samples[0].processes] == ["a-1"]
        assert busy.samples[1].memory_used_mib == 0
        program.kill()
        await site.gone()
    finally:
        program.kill()


async def test_a_port_that_is_taken_is_said(site: Site) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Exception, match=r"the listener for agents cannot open 127.0.0.1.*set agents_port"):
            await AgentConnections(site.authority).open("127.0.0.1", taken.getsockname()[1])
