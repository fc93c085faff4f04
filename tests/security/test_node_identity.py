"""A worker's root tries to pass for another node, and to stay after it was removed.

The attacker has all that is on its own machine: the keys of its agent and of its Swarm node, its host name, a join
token that is still valid. The Swarm, the daemons, the join service, the signatures and the links are real.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from tests.contract.engines.rigs import SwarmRig, swarm_rig
from tests.contract.harness.agents import make_config, without_node_id
from tests.contract.harness.swarm import MANAGER, Swarm, swarm_of
from tests.fakes.waiting import until, wait_until
from tests.integration.api_world import URL
from tests.integration.joining_world import SwarmAuthority, World, opened, request_for
from tests.integration.test_link import Node, refusal

from commonage.agent.steps.host import Host
from commonage.agent.steps.swarm import prove, swarm_node
from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import NodeReport
from commonage.domain.reasons.nodes import HostNameChanged, NodeTakesNoWork, NoNodeCertificate, NotReporting
from commonage.domain.statuses import Measurement
from commonage.engines.swarm.nodes.membership import SwarmManager
from commonage.join.client import NAME, JoinClient, JoinRefused
from commonage.join.config import statement
from commonage.join.listener import JoinListener
from commonage.join.service import JoinService, Site
from commonage.join.tokens import Tokens
from commonage.link.agent_connections import AgentConnections
from commonage.link.certificate_authority import CertificateAuthority
from commonage.link.messages import Measured, Report
from commonage.server.bootstrap import SystemClock
from commonage.testing.engine_rig import FOREVER
from commonage.wire.hub import PORTAL_PATH

pytestmark = pytest.mark.anyio


# --- a certificate for another node -----------------------------------------------------------------------------------


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """The join service, with two nodes in its Swarm: `victim` has joined, `attacker` has a join token."""
    async with opened(tmp_path) as made:
        made.swarm.nodes = {"victim1": ("victim", "ready"), "attacker1": ("attacker", "ready")}
        await made.join("victim", "victim1", tmp_path)
        yield made


async def test_a_node_id_cannot_be_had_without_its_key(world: World, tmp_path: Path) -> None:
    victims, _ = world.swarm.authority.node("victim1")
    _, own_key = world.swarm.authority.node("attacker1")
    with pytest.raises(JoinRefused, match="not signed with the key of the Swarm certificate"):
        await world.ask_for_certificate("victim", victims, own_key, tmp_path)
    assert not world.authority.revoked(), "the victim's certificate still holds"


async def test_a_swarm_certificate_that_the_attacker_made_is_refused(world: World, tmp_path: Path) -> None:
    other = SwarmAuthority()  # of the same names, with another key
    certificate, key = other.node("victim1")
    with pytest.raises(JoinRefused, match="not of this site's Swarm"):
        await world.ask_for_certificate("victim", certificate, key, tmp_path)
    chained = certificate + world.swarm.authority.trust.roots
    with pytest.raises(JoinRefused, match="not of this site's Swarm"):
        await world.ask_for_certificate("victim", chained, key, tmp_path)


async def test_a_swarm_certificate_that_is_no_nodes_is_refused(world: World, tmp_path: Path) -> None:
    certificate, key = world.swarm.authority.node("victim1", role="something-else")
    with pytest.raises(JoinRefused, match="is of 'something-else'"):
        await world.ask_for_certificate("victim", certificate, key, tmp_path)


async def test_a_proof_is_good_for_its_own_request_name_and_token_alone(world: World, tmp_path: Path) -> None:
    """The victim's proof was overheard. The attacker sends it with a key, a name or a token of its own."""
    certificate, key = world.swarm.authority.node("victim1")
    csr, join_client = await asyncio.to_thread(request_for, "victim", tmp_path), world.join_client()

    def signed(*, token: str = join_client.token, node: str = "victim", request: str = csr) -> dict[str, str]:
        message = statement(world.authority.certificate, token, node, request)
        signature = base64.b64encode(key.sign(message, ec.ECDSA(hashes.SHA256()))).decode()
        return {"swarm_certificates": certificate, "signature": signature}

    own_csr = await asyncio.to_thread(request_for, "victim", tmp_path)
    for proof in (signed(request=own_csr), signed(node="attacker"), signed(token="cmj1.an.other")):
        with pytest.raises(JoinRefused, match="not signed with the key"):
            await asyncio.to_thread(join_client.post, "/certificate", {"node": "victim", "csr": csr, **proof})
    await asyncio.to_thread(join_client.post, "/certificate", {"node": "victim", "csr": csr, **signed()})


async def test_a_name_that_another_node_has_cannot_be_taken(world: World, tmp_path: Path) -> None:
    with pytest.raises(JoinRefused, match="reports the host name attacker, and it asks to join as victim"):
        await world.join("victim", "attacker1", tmp_path)
    world.swarm.nodes["attacker1"] = ("victim", "ready")
    with pytest.raises(JoinRefused, match=r"another node has the name victim \(Swarm node victim1\)"):
        await world.join("victim", "attacker1", tmp_path)
    world.swarm.nodes["victim1"] = ("victim", "down")
    world.connected.append(("victim", "victim1"))
    with pytest.raises(JoinRefused, match="another node has the name victim"):
        await world.join("victim", "attacker1", tmp_path)
    assert world.authority.bindings() == {"victim1": "victim"}


async def test_a_worker_that_changes_its_host_name_keeps_nobody_from_joining(world: World, tmp_path: Path) -> None:
    await world.join("attacker", "attacker1", tmp_path)
    world.swarm.nodes["attacker1"] = ("newcomer", "ready")
    await world.join("newcomer", "newcomer1", tmp_path)
    assert world.authority.bindings()["newcomer1"] == "newcomer"


async def test_a_node_that_was_removed_gets_no_certificate(world: World, tmp_path: Path) -> None:
    certificate, key = world.swarm.authority.node("victim1")
    await world.join_service.remove_node("victim")
    assert world.swarm.removed == ["victim1"]
    with pytest.raises(JoinRefused, match="the Swarm no longer lists the node victim1"):
        await world.ask_for_certificate("victim", certificate, key, tmp_path)


async def test_a_removed_node_is_put_out_whatever_its_host_name_is_now(world: World, tmp_path: Path) -> None:
    await world.join("attacker", "attacker1", tmp_path)
    world.swarm.nodes["attacker1"] = ("victim", "ready")
    await world.join_service.remove_node("attacker")
    assert world.swarm.removed == ["attacker1"]
    assert world.authority.bindings() == {"victim1": "victim"}, "and nobody else"


# --- the agents' link -------------------------------------------------------------------------------------------------


class Links:
    """The control plane's end of the link, and agents that dial it with what they have."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.authority = folder, CertificateAuthority.open(folder / "ca")
        self.agents = AgentConnections(self.authority)

    def node(self, name: str, node_id: str) -> Node:
        config = make_config(self.folder / node_id, self.authority, name, self.agents.port, node_id=node_id)
        node = Node(config)
        node.answers["measure"] = Measured((Measurement(name, 0.0, 1),))
        return node

    def states(self) -> dict[str, tuple[str, bool]]:
        return {one.node_id: (one.node, one.connected) for one in self.agents.agent_reports()}


@pytest.fixture
async def links(tmp_path: Path) -> AsyncIterator[Links]:
    links = Links(tmp_path)
    await links.agents.open("127.0.0.1", 0)
    yield links
    await links.agents.close()


async def test_what_is_asked_of_a_node_goes_to_the_agent_with_its_id(links: Links) -> None:
    async with links.node("victim", "n1"), links.node("attacker", "n2"):
        await until(lambda: links.states() == {"n1": ("victim", True), "n2": ("attacker", True)}, "both are there")
        assert [one.attempt_id for one in await links.agents.measure("n1")] == ["victim"]
        assert [one.attempt_id for one in await links.agents.measure("n2")] == ["attacker"]


async def test_an_agent_that_reports_for_another_node_is_hung_up_on(links: Links) -> None:
    async with links.node("victim", "n1") as victim, links.node("attacker", "n2") as attacker:
        await until(lambda: len(links.states()) == 2, "both are there")
        attacker.report = Report(2, NodeReport("victim", 1, 1, faults=(NotReporting(),)))
        await until(lambda: links.states()["n2"] == ("attacker", False), "its link is ended")
        [agent_report] = [one for one in links.agents.agent_reports() if one.node == "victim"]
        assert (agent_report.node_id, agent_report.report) == ("n1", victim.report.report)


async def test_a_certificate_without_a_node_id_is_refused(links: Links) -> None:
    """As an earlier release signed them, for whatever name the node said."""
    config = make_config(links.folder / "old", links.authority, "victim", links.agents.port)
    certificate = Path(config.certificate)
    certificate.write_text(without_node_id(links.folder / "ca", certificate.read_text()))
    assert "names no node: join the node again" in await refusal(config)


async def test_a_name_that_passed_to_another_node_is_that_nodes_alone(links: Links) -> None:
    """The node was lost and replaced; its credentials are invalid when it comes back."""
    async with links.node("gpu", "n1") as former:
        await until(lambda: links.states() == {"n1": ("gpu", True)}, "it is there")
        replacement = links.node("gpu", "n2")
        links.authority.admit(Path(replacement.config.request).read_text(), "other", "n1")  # revokes what n1 had
        async with replacement:
            await until(lambda: links.states() == {"n2": ("gpu", True)}, "nothing is kept of the one before")
            assert "was removed from this site" in await refusal(former.config)


async def test_bindings_that_cannot_be_read_stop_the_engine_and_not_the_server(links: Links) -> None:
    (links.folder / "ca" / "issued.json").write_text("{ half")
    with pytest.raises(EngineFailure, match="restore the folder `authority` from a backup"):
        await links.agents.bindings()


# --- a real Swarm -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swarm() -> Iterator[Swarm]:
    with swarm_of(3) as swarm:
        yield swarm


class JoinServiceProcess:
    """The join service of a site over a real Swarm, and what a node does that joins."""

    def __init__(self, folder: Path, swarm: Swarm) -> None:
        self._swarm = swarm
        self.authority = CertificateAuthority.open(folder / "ca")
        self.tokens = Tokens(folder / "secret", self.authority.fingerprint)
        self.agents = AgentConnections(self.authority)
        site = Site("Lab", f"{URL}{PORTAL_PATH}join", (), (), folder / "shared")
        manager = SwarmManager(swarm.manager.daemon.url)
        self.join_service = JoinService(site, self.authority, self.tokens, manager, SystemClock())
        self.join_client = JoinListener(self.join_service)
        self._folder, self._at = folder, ""

    async def open(self) -> None:
        await asyncio.to_thread(self.join_service.open, b"", self.agents)
        await self.agents.open("127.0.0.1", 0)
        pair = self.authority.serve([NAME])
        self._at = f"127.0.0.1:{await self.join_client.start('127.0.0.1', 0, pair.cert_pem, pair.key_pem)}"

    async def close(self) -> None:
        await self.agents.close()
        await self.join_client.stop()

    async def join(self, node: str, *, name: str = "", certificates_of: str = "") -> dict[str, Any]:
        """Request a certificate as `commonage node join` does on this machine. The attacker may use another name, or
        another node's Swarm certificate.
        """
        return await asyncio.to_thread(self._join, node, name or node, certificates_of or node)

    def _join(self, node: str, name: str, shown: str) -> dict[str, Any]:
        join_client = JoinClient(self.tokens.make([self._at], time.time()), self.authority.certificate)
        csr = request_for(name, self._folder)
        signed = statement(self.authority.certificate, join_client.token, name, csr)
        proof = prove(Host(), swarm_node(self._swarm.machines[node].daemon.url), signed)
        if shown != node:
            folder = swarm_node(self._swarm.machines[shown].daemon.url).folder
            proof = replace(proof, certificates=(folder / "swarm-node.crt").read_text())
        body = {"csr": csr, "swarm_certificates": proof.certificates, "signature": proof.signature}
        return join_client.post("/certificate", {"node": name, **body})


@pytest.mark.needs("docker")
@pytest.mark.timeout(300)
async def test_a_renamed_worker_gets_none_of_anothers_work_and_does_not_survive_its_removal(
    tmp_path: Path, swarm: Swarm
) -> None:
    """worker1 is the attacker, worker2 the victim, worker3 a machine that joined the Swarm alone."""
    site = JoinServiceProcess(tmp_path, swarm)
    ids = {name: swarm.node_id(name) for name in swarm.machines}
    await site.open()
    try:
        await site.join("worker1")
        await site.join("worker2")
        assert site.authority.bindings() == {ids["worker1"]: "worker1", ids["worker2"]: "worker2"}
        with pytest.raises(JoinRefused, match="not signed with the key"):
            await site.join("worker1", name="worker2", certificates_of="worker2")
        swarm.machines["worker1"].rename("worker2")
        await asyncio.to_thread(wait_until, lambda: _host_names(swarm, ids) == ["worker2", "worker2"])
        with pytest.raises(JoinRefused, match="another node has the name worker2"):
            await site.join("worker1", name="worker2")
        (tmp_path / "data").mkdir()
        # No agent is connected here: the certificates alone say which node is which.
        agents: Any = site.agents
        async with swarm_rig(tmp_path / "data", swarm, agents, without_agents=True) as rig:
            await _places_work_by_id(rig, swarm)
        await _is_out(site, swarm, ids)
    finally:
        await site.close()


async def _places_work_by_id(rig: SwarmRig, swarm: Swarm) -> None:
    engine = await rig.engine()
    faults = {one.name: one.faults for one in await engine.nodes()}
    assert faults.keys() == {MANAGER, "worker1", "worker2", "worker3"}
    assert HostNameChanged(node="worker1", host_name="worker2") in faults["worker1"]
    assert not faults["worker2"]
    assert any(isinstance(one, NoNodeCertificate) for one in faults["worker3"])
    order = rig.start_request(FOREVER)
    order = await rig.started(replace(order, allocation=replace(order.allocation, node="worker2")))
    label = [f"commonage.attempt={order.attempt_id}"]
    there = [name for name, one in swarm.machines.items() if one.daemon.containers(label=label)]
    assert there == ["worker2"]
    for name in ("worker1", "worker3"):
        order = rig.start_request(FOREVER)
        order = replace(order, allocation=replace(order.allocation, node=name))
        ended = await rig.ended(order)
        assert ended.exit_code is None and isinstance(ended.reason, NodeTakesNoWork), ended


async def _is_out(site: JoinServiceProcess, swarm: Swarm, ids: dict[str, str]) -> None:
    """`node rm` removes exactly this node, whatever its host name is now, and no other."""
    manager = swarm.manager.daemon
    token = manager.ask("GET", "/swarm")["JoinTokens"]["Worker"]
    await site.join_service.remove_node("worker1")
    there = {one["ID"] for one in manager.ask("GET", "/nodes")}
    assert there == {ids[MANAGER], ids["worker2"], ids["worker3"]}
    assert site.authority.bindings() == {ids["worker2"]: "worker2"}
    assert manager.ask("GET", "/swarm")["JoinTokens"]["Worker"] != token
    attacker = swarm.machines["worker1"].daemon
    with suppress(JoinRefused):  # its Swarm key is of no use any more
        await site.join("worker1", name="worker2")
        raise AssertionError("a node that was removed got a certificate")
    with suppress(RuntimeError):
        attacker.ask("POST", "/swarm/leave?force=1")
    join = {"RemoteAddrs": [f"{swarm.manager.address}:2377"], "JoinToken": token, "ListenAddr": "0.0.0.0:2377"}
    with pytest.raises(RuntimeError, match="join token"):
        attacker.ask("POST", "/swarm/join", {**join, "AdvertiseAddr": swarm.machines["worker1"].address})
    await site.join_service.remove_node("worker3")
    assert {one["ID"] for one in manager.ask("GET", "/nodes")} == {ids[MANAGER], ids["worker2"]}


def _host_names(swarm: Swarm, ids: dict[str, str]) -> list[str]:
    """Of the two workers that have certificates."""
    nodes = {one["ID"]: one for one in swarm.manager.daemon.ask("GET", "/nodes")}
    two = [nodes[ids[name]] for name in ("worker1", "worker2")]
    return [one["Description"]["Hostname"] for one in two if one["Status"]["State"] == "ready"]
