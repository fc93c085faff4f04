"""The agent with a real Docker daemon, run from its bundle by a Python without libraries, over a real link."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.contract.agent.refusing_registry import ACCOUNT, BASIC, DENIED, refusing
from tests.contract.engines.docker.conftest import mapping as mapping_of_users
from tests.contract.harness.agents import AgentProgram, make_config
from tests.contract.harness.dockerd import IMAGE, NO_RULES, Dockerd, minimal_image, new_folder

from commonage.agent.containers.containers import CPUS_LABEL, LABEL
from commonage.agent.containers.processes import processes_of
from commonage.domain.errors import EngineFailure
from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import DaemonMapsUsers
from commonage.link.agent_connections import AgentConnections
from commonage.link.bundle import make_bundle
from commonage.link.certificate_authority import CertificateAuthority
from commonage.ports.agents import AgentReport

pytestmark = [pytest.mark.needs("docker"), pytest.mark.anyio]

NODE = "worker1"
mapping = mapping_of_users  # the fixture of a daemon that maps users
# What a Python is that has nothing installed: no site-packages, nothing of the user's.
BARE_PYTHON = (getattr(sys, "_base_executable", sys.executable), "-S", "-s")
_WITHIN_S = 40


@pytest.fixture(scope="module")
def dockerd() -> Iterator[Dockerd]:
    daemon = Dockerd(new_folder(), "--live-restore", NO_RULES)
    try:
        daemon.start()
        repository, _, tag = IMAGE.partition(":")
        daemon.ask("POST", f"/images/create?fromSrc=-&repo={repository}&tag={tag}", content=minimal_image())
        yield daemon
    finally:
        daemon.remove()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    with tarfile.open(fileobj=io.BytesIO(make_bundle())) as archive:
        archive.extractall(folder, filter="data")
    return folder


class Site:
    """A control plane's side of the link, and one node's agent."""

    def __init__(self, folder: Path, agents: AgentConnections, program: AgentProgram) -> None:
        self.folder, self.agents, self.program = folder, agents, program

    async def until(self, holds: Callable[[AgentReport], Any]) -> AgentReport:
        try:
            async with asyncio.timeout(_WITHIN_S):
                while True:
                    for agent_report in self.agents.agent_reports():
                        if agent_report.node == NODE and holds(agent_report):
                            return agent_report
                    assert self.program.process.poll() is None, self.program.log.read_text()[-3000:]
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{self.agents.agent_reports()}\n{self.program.log.read_text()[-3000:]}") from None

    async def soon(self, look: Callable[[], Awaitable[Any]]) -> Any:
        async with asyncio.timeout(_WITHIN_S):
            found = await look()
            while not found:
                await asyncio.sleep(0.1)
                found = await look()
        return found


@asynccontextmanager
async def site_with(folder: Path, dockerd: Dockerd, bundle: Path, **fields: Any) -> AsyncIterator[Site]:
    """One whose agent is that of the bundle."""
    agents = AgentConnections(CertificateAuthority.open(folder / "ca"))
    await agents.open("127.0.0.1", 0)
    about = {"docker": dockerd.url, "fence_after_s": 1.0, **fields}
    config = make_config(folder / "node", CertificateAuthority.open(folder / "ca"), NODE, agents.port, **about)
    program = AgentProgram(folder / "node", config, python=BARE_PYTHON, source=bundle)
    try:
        yield Site(folder, agents, program)
    finally:
        await asyncio.to_thread(program.close)
        await agents.close()


@pytest.fixture
async def site(tmp_path: Path, dockerd: Dockerd, bundle: Path) -> AsyncIterator[Site]:
    async with site_with(tmp_path, dockerd, bundle) as site:
        # Its daemon is asked where its files are a moment after the link stands.
        await site.until(
            lambda agent_report: agent_report.report.devices and agent_report.report.disk_free_mib is not None
        )
        yield site


def container(dockerd: Dockerd, attempt: str, *command: str, **labels: str) -> str:
    """One that runs as an engine's would; its id."""
    body = {
        "Image": IMAGE,
        "Cmd": list(command) or ["sleep", "1000"],
        "Labels": {LABEL: attempt, **labels},
        "HostConfig": {"NetworkMode": "none", "Init": True},
    }
    made = str(dockerd.ask("POST", "/containers/create", body)["Id"])
    dockerd.ask("POST", f"/containers/{made}/start")
    return made


def test_the_bundle_is_always_the_same_and_small(bundle: Path) -> None:
    make_bundle.cache_clear()
    first = make_bundle()
    make_bundle.cache_clear()
    assert make_bundle() == first
    assert len(first) < 400_000
    assert not (bundle / "commonage/link/certificate_authority.py").exists()  # an agent signs nothing


def test_all_of_the_bundle_needs_only_python(bundle: Path) -> None:
    """Each module is imported where nothing is installed; what comes from elsewhere than Python is of the bundle."""
    names = [
        ".".join(path.relative_to(bundle).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(bundle.rglob("*.py"))
        if path.name not in ("__main__.py", "sitecustomize.py")
    ]
    # Python generates _sysconfigdata_* when it is built, so the list of its modules lacks it.
    program = (
        "import importlib, sys\n"
        f"for name in {names}: importlib.import_module(name)\n"
        "found = {name.partition('.')[0] for name in sys.modules if not name.startswith('_sysconfigdata')}\n"
        "print(found - sys.stdlib_module_names - {'__main__'})"
    )
    message = subprocess.run(
        [*BARE_PYTHON, "-c", program], env={"PYTHONPATH": str(bundle)}, capture_output=True, text=True, check=False
    )
    assert message.stdout.strip() in ("{'commonage', 'pynvml'}", "{'pynvml', 'commonage'}"), message.stderr


async def test_it_tells_what_the_node_has_and_what_runs(site: Site, dockerd: Dockerd) -> None:
    [agent_report] = site.agents.agent_reports()
    assert agent_report.connected
    assert agent_report.report.name == NODE
    assert agent_report.report.memory_mib > 500
    assert len(agent_report.report.devices) == len(agent_report.samples) == 2
    assert agent_report.report.disk_free_mib is not None
    running = container(dockerd, "a-1", **{CPUS_LABEL: "2500"})
    pid = dockerd.ask("GET", f"/containers/{running}/json")["State"]["Pid"]
    measured = await site.soon(lambda: site.agents.measure(NODE))
    assert [one.attempt_id for one in measured] == ["a-1"]
    assert pid in measured[0].pids
    owners = {one.pid: one.attempt_id for one in await site.agents.owners(NODE, [pid, 1])}
    assert owners == {pid: "a-1", 1: None}
    # What a Swarm cannot say: it weighs what it asked for.

    async def is_weighed() -> bool:
        return bool(dockerd.ask("GET", f"/containers/{running}/json")["HostConfig"]["CpuShares"] == 2560)

    assert await site.soon(is_weighed)
    assert await site.agents.fence(NODE, ["a-1", "never-there"]) == ("a-1", "never-there")
    assert dockerd.containers(label=[f"{LABEL}=a-1"]) == []


async def test_an_image_that_is_not_to_be_had_is_said_in_the_daemons_words(site: Site) -> None:
    on_progress: list[Reason] = []
    await site.agents.pull(NODE, IMAGE, lambda reason, _: on_progress.append(reason))
    assert on_progress == []  # it is here
    with pytest.raises(EngineFailure, match=r"127\.0\.0\.1:1"):
        await site.agents.pull(NODE, "127.0.0.1:1/lab/none:1", lambda reason, _: on_progress.append(reason))


@pytest.mark.parametrize(
    ("way", "why"),
    [
        (ACCOUNT, r"does not accept the account of worker1, .*commonage node join.*this is no account of a node"),
        (DENIED, r"does not let worker1 have the image .*Check the name, and that the tenant in it may use it"),
        (BASIC, r"does not accept the account of worker1, .*no basic auth credentials"),
    ],
)
async def test_what_a_registry_refuses_is_final_and_says_what_to_do(site: Site, way: str, why: str) -> None:
    with refusing(way) as registry:
        image = f"{registry}/lab/torch:2"
        with pytest.raises(EngineFailure, match=why) as refused:
            await site.agents.pull(NODE, image, lambda _reason, _: None)
    assert not refused.value.is_retryable
    assert f"the image {image}" in refused.value.message
    assert f"`docker login {registry}` and `docker pull {image}`" in refused.value.message


async def test_without_its_daemon_it_ends_what_runs_itself_and_says_so(site: Site, dockerd: Dockerd) -> None:
    ours = {attempt: container(dockerd, attempt) for attempt in ("b-1", "b-2")}
    # It changes its marks, and must end all the same.
    ours["b-3"] = container(dockerd, "b-3", "env", "-i", "sleep", "1000")
    body = {"Image": IMAGE, "Cmd": ["sleep", "1000"], "HostConfig": {"NetworkMode": "none"}}
    stranger = dockerd.ask("POST", "/containers/create", body)["Id"]
    dockerd.ask("POST", f"/containers/{stranger}/start")
    ended = container(dockerd, "b-0", "true")
    dockerd.ask("POST", f"/containers/{ended}/wait")
    assert set(processes_of(ours.values()).values()) == set(ours.values())
    dockerd.kill()
    await site.until(lambda agent_report: agent_report.engine_fault)
    agent_report = await site.until(lambda agent_report: agent_report.fenced)
    assert agent_report.fenced == ("b-1", "b-2", "b-3")  # and not what had ended by itself
    assert processes_of(ours.values()) == {}
    assert stranger in processes_of([stranger]).values()
    # Asked for without the daemon, too.
    assert await site.agents.fence(NODE, ["b-1"]) == ("b-1",)
    dockerd.start()
    await site.until(lambda agent_report: not agent_report.engine_fault)
    states = {one["Labels"].get(LABEL): one["State"] for one in dockerd.containers()}
    assert states["b-1"] == states["b-2"] == states["b-3"] == "exited"
    assert states[None] == "running"
    assert site.agents.agent_reports()[0].fenced == ("b-1", "b-2", "b-3")  # remembered for later requests
    for one in dockerd.containers():
        dockerd.ask("DELETE", f"/containers/{one['Id']}?force=1")


async def test_an_agent_that_starts_without_the_daemon_still_fences(
    tmp_path: Path, dockerd: Dockerd, bundle: Path
) -> None:
    async with site_with(tmp_path, dockerd, bundle, fence_after_s=3600.0) as site:
        await site.until(lambda agent_report: not agent_report.engine_fault)
        running = container(dockerd, "c-1")
        site.program.kill()
    dockerd.kill()
    try:
        async with site_with(tmp_path, dockerd, bundle) as site:
            agent_report = await site.until(lambda agent_report: agent_report.fenced)
            assert agent_report.fenced == ("c-1",)
            assert processes_of([running]) == {}
    finally:
        dockerd.start()
    dockerd.ask("DELETE", f"/containers/{running}?force=1")


async def test_a_daemon_that_maps_users_is_a_fault(tmp_path: Path, mapping: Dockerd, bundle: Path) -> None:
    """On a Swarm the site's folders are not those users': each container would fail, without a word."""
    async with site_with(tmp_path, mapping, bundle) as site:
        agent_report = await site.until(lambda agent_report: agent_report.report.faults)
        assert agent_report.report.faults == (DaemonMapsUsers(),)
