"""The agent of a node, the control plane's listeners and the engine, on the double of a cluster."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.fakes.waiting import until
from tests.kubernetes.rig import IMAGE, KubernetesRig
from tests.unit.agent.kubernetes.test_pods import make_group

from commonage.agent.config import AgentConfig
from commonage.agent.kubernetes.agent import LINKED, PodAgent
from commonage.agent.kubernetes.join import PodIdentity
from commonage.domain.errors import Forbidden
from commonage.domain.nodes import NodeReport
from commonage.domain.reasons.devices import GpuDriverSilent
from commonage.domain.statuses import ProcessOwner
from commonage.engines.kubernetes.agents import AUDIENCE, AUTHORITY_KEY, PodAgents
from commonage.engines.kubernetes.client import Client
from commonage.engines.kubernetes.engine import KubernetesEngine
from commonage.engines.kubernetes.translate import pod_name
from commonage.join.client import NAME
from commonage.join.listener import JoinListener
from commonage.join.pods import PodJoins
from commonage.link.agent_connections import AgentConnections
from commonage.link.certificate_authority import CertificateAuthority
from commonage.ports.agents import AgentReport
from commonage.testing import factories
from commonage.testing.engine_rig import FOREVER
from commonage.testing.fakes.kubernetes.cluster import FakeCluster
from commonage.testing.fakes.kubernetes.store import CONFIG_MAPS, PODS

pytestmark = pytest.mark.anyio
PLACE = "platform/commonage-agent"
NODE = "node-1"


class Rig(KubernetesRig):
    def __init__(self, data: Path, cluster: FakeCluster, links: AgentConnections, authority: str) -> None:
        super().__init__(data, "commonage", NODE, kubeconfig=cluster.kubeconfig, agents=PLACE)
        self.links, self.authority = links, authority

    def make(self) -> KubernetesEngine:
        return KubernetesEngine("local", self.data, settings=self.settings, agents=self.links, authority=self.authority)


@dataclass
class Site:
    cluster: FakeCluster
    rig: Rig
    engine: KubernetesEngine
    agents: PodAgents
    links: AgentConnections
    join_port: int
    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / "agent"

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[None]:
        """The agent of the node, linked."""
        state = self.state
        (state / "token").write_text(self.cluster.token_of(PLACE, NODE, AUDIENCE))
        (state / "ca.crt").write_text(self.rig.authority)
        names = {name: str(state / f"agent.{end}") for name, end in (("certificate", "crt"), ("key", "key"))}
        config = AgentConfig(
            node=NODE, control=(f"127.0.0.1:{self.links.port}",), request=str(state / "agent.csr"),
            authority=str(state / "ca.crt"), state=str(state), gpus="none", **names,
        )  # fmt: skip
        identity = PodIdentity(config, state / "token", f"127.0.0.1:{self.join_port}")
        agent = PodAgent(config, identity, self.folder / "host", [self.folder])
        task = asyncio.create_task(agent.run())
        try:
            await until((state / LINKED).exists, "the agent is linked")
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    authority = CertificateAuthority.open(tmp_path / "authority")
    links = AgentConnections(authority)
    await links.open("127.0.0.1", 0)
    (tmp_path / "agent").mkdir()
    (tmp_path / "host/proc").mkdir(parents=True)
    (tmp_path / "host/proc/meminfo").write_text("MemTotal: 4194304 kB\nMemAvailable: 1048576 kB\n")
    async with FakeCluster(tmp_path / "cluster", nodes=[NODE], images=[IMAGE]) as cluster:
        cluster.store.create(CONFIG_MAPS, {"metadata": {"namespace": "platform", "name": "commonage-agent"}})
        rig = Rig(tmp_path / "data", cluster, links, authority.certificate)
        engine = await rig.engine()
        assert engine.agents is not None
        listener = JoinListener(None, pods=PodJoins(authority, engine.agents.identify))
        pair = authority.serve([NAME])
        port = await listener.start("127.0.0.1", 0, pair.cert_pem, pair.key_pem)
        yield Site(cluster, rig, engine, engine.agents, links, port, tmp_path)
        await listener.stop()
        await links.close()
        await rig.end_all(forget=True)


async def test_node_shows_what_its_agent_measures(site: Site) -> None:
    [before] = await site.engine.nodes()
    assert before.usage is None
    async with site.agent():
        [node] = await site.engine.nodes()
        assert node.usage is not None
        assert node.usage.memory_mib == 3072
        assert node.usage.disk_total_mib
        # What the cluster says of the node stays.
        assert (node.cpus_milli, node.memory_mib) == (before.cpus_milli, before.memory_mib)
    await until(lambda: not any(one.connected for one in site.links.agent_reports()), "the link ended")
    [after] = await site.engine.nodes()
    assert after.usage is None
    assert not (site.state / LINKED).exists()


async def test_attempts_are_measured_by_the_agent(site: Site) -> None:
    request = await site.rig.started(site.rig.start_request(FOREVER))
    uid = site.cluster.store.get(PODS, ("commonage", pod_name(request.attempt_id)))["metadata"]["uid"]
    make_group(site.folder / "host", f"kubepods/burstable/pod{uid}")
    make_group(site.folder / "host", "kubepods/burstable/pod11111111-2222-3333-4444-555555555555")
    async with site.agent():
        [measured] = await site.engine.measure()
    assert (measured.attempt_id, measured.cpu_s, measured.memory_mib) == (request.attempt_id, 2.5, 60)


class Told(AgentConnections):
    """Links to agents that told this."""

    told: tuple[AgentReport, ...] = ()

    def agent_reports(self) -> tuple[AgentReport, ...]:
        return self.told


def test_processes_on_gpus_belong_to_attempts(tmp_path: Path) -> None:
    links = Told(CertificateAuthority.open(tmp_path))
    owners = (ProcessOwner(1, "uid-1", "python", 0.0), ProcessOwner(2, "uid-2", "python", 0.0))
    links.told = (AgentReport(NODE, NodeReport(NODE, 0, 0), 0.0, 0.0, connected=True, owners=owners),)
    [seen] = PodAgents(Client(), links, PLACE, "", lambda: {"uid-1": "job-1.1"}).agent_reports()
    assert [one.attempt_id for one in seen.owners] == ["job-1.1", None]


def test_faults_of_gpus_are_those_that_the_agent_sees(tmp_path: Path) -> None:
    links = Told(CertificateAuthority.open(tmp_path))
    device = factories.device()
    broken = replace(device, faults=(GpuDriverSilent(),))
    agent = NodeReport(NODE, 0, 0, (broken,))
    links.told = (AgentReport(NODE, agent, 0.0, time.monotonic(), connected=True, node_id="uid"),)
    agents = PodAgents(Client(), links, PLACE, "", dict)
    report = agents.enrich(NodeReport(NODE, 1, 1, (device,)), {"metadata": {"name": NODE, "uid": "uid"}})
    assert report.devices == (broken,)
    # The agent of a node that was replaced under the same name says nothing of the new one.
    report = agents.enrich(NodeReport(NODE, 1, 1, (device,)), {"metadata": {"name": NODE, "uid": "another"}})
    assert report.devices == (device,)


@pytest.mark.parametrize(
    ("account", "audience", "said"),
    [
        ("platform/default", AUDIENCE, "the token is of system:serviceaccount:platform:default"),
        ("tenant/commonage-agent", AUDIENCE, "the token is of system:serviceaccount:tenant:commonage-agent"),
        (PLACE, "https://kubernetes.default.svc", "invalid bearer token"),
    ],
)
async def test_other_tokens_are_refused(site: Site, account: str, audience: str, said: str) -> None:
    with pytest.raises(Forbidden, match=said):
        await site.agents.identify(site.cluster.token_of(account, NODE, audience))


async def test_agents_find_the_authority_in_their_config_map(site: Site) -> None:
    def found() -> object:
        return site.cluster.store.get(CONFIG_MAPS, ("platform", "commonage-agent")).get("data")

    await until(lambda: found() == {AUTHORITY_KEY: site.rig.authority}, "the certificate is there")
