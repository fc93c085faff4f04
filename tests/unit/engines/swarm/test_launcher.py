"""Services created and removed, over a scripted Swarm and scripted agents: images, broken links, stops."""

import asyncio
import base64
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.engines.containers.test_program import request
from tests.unit.engines.swarm.test_statuses import task

from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment
from commonage.domain.nodes import Allocation, NodeReport, Share
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import PullingImage, SwarmSeesNoGpuMemory
from commonage.domain.reasons.nodes import AgentTooOld, NoAgent, NodeTakesNoWork
from commonage.domain.statuses import Phase, StartRequest, Status
from commonage.domain.workloads import Kind
from commonage.engines.containers.attempt_backend import Run, Running
from commonage.engines.containers.daemon import networks
from commonage.engines.containers.daemon.connection import DaemonRefused, DaemonUnreachable, Json
from commonage.engines.containers.daemon.images import Images, Logins
from commonage.engines.containers.daemon.networks import Network
from commonage.engines.containers.files.prepare import ContainerDefaults
from commonage.engines.containers.lifecycle import StartLimiter
from commonage.engines.containers.status_reader import StatusReader
from commonage.engines.rundir.runs import Runs
from commonage.engines.settings import SwarmSettings
from commonage.engines.swarm.client import Client
from commonage.engines.swarm.container_client import SwarmContainerClient
from commonage.engines.swarm.launcher import Launcher, Networks
from commonage.engines.swarm.nodes.fencing import Fencing
from commonage.engines.swarm.nodes.node_tracker import AgentUnreachable, NodeTracker
from commonage.engines.swarm.nodes.swarm_nodes import swarm_nodes_of
from commonage.engines.swarm.statuses import Tasks
from commonage.engines.swarm.swarm_files import SwarmFiles
from commonage.files.safe_path import SafePath
from commonage.ports.agents import AgentReport, OnProgress, ignore_progress
from commonage.ports.devices import ShareAssignment
from commonage.ports.registry import PullToken, RegistryAccount

pytestmark = pytest.mark.anyio
IMAGE = "registry.test:5000/lab/torch@sha256:aa"
GPU = Share("GPU-a", 0, "A100", 8192, 500, False, 40960)
NODE = {"ID": "node-1", "Description": {"Hostname": "worker1"}, "Status": {"State": "ready"}, "Spec": {}}


PULLING = PullingImage(image="lab/torch", pulled_bytes=37_000_000, total_bytes=146_000_000)


class FakeSwarm:
    """A manager: services by id. `held_up` is waited for before one is made; `mute`: it is made, and that not said."""

    def __init__(self) -> None:
        self.made: dict[str, Json] = {}
        self.delivered: dict[str, tuple[str, Json]] = {}
        self._numbers = count()
        self.removed: list[str] = []
        self.held_up = asyncio.Event()
        self.held_up.set()
        self.mute = False
        self.asked = asyncio.Event()
        self.all_tasks: list[Json] = []

    async def image(self, name: str) -> Json | None:
        if " " in name:
            raise DaemonRefused("that is not a name of an image", 400, retryable=False)
        return None

    async def create_service(self, spec: Json) -> str | None:
        self.asked.set()
        await self.held_up.wait()
        if spec["Name"] in {one["Name"] for one in self.made.values()}:
            return None
        self.made[f"id-{len(self.made)}"] = spec
        if self.mute:
            raise DaemonUnreachable("the connection was lost")
        return f"id-{len(self.made) - 1}"

    async def services(self, *labels: str) -> Sequence[Json]:
        wanted = set(labels)
        return [
            {"ID": one, "Spec": spec}
            for one, spec in self.made.items()
            if one not in self.removed and wanted <= {f"{name}={value}" for name, value in spec["Labels"].items()}
        ]

    async def remove_service(self, service: str) -> None:
        self.removed.append(service)

    async def nodes(self) -> Sequence[Json]:
        return [NODE]

    async def create_delivery(self, kind: str, body: Json) -> str | None:
        if body["Name"] in {one["Name"] for known, one in self.delivered.values() if known == kind}:
            return None
        self.delivered[f"delivery-{next(self._numbers)}"] = (kind, body)
        return next(reversed(self.delivered))

    async def deliveries(self, kind: str, *labels: str) -> Sequence[Json]:
        wanted = set(labels)
        return [
            {"ID": one, "Spec": spec}
            for one, (known, spec) in self.delivered.items()
            if known == kind and wanted <= {f"{name}={value}" for name, value in spec["Labels"].items()}
        ]

    async def remove_delivery(self, kind: str, delivery: str) -> bool:
        said = str([spec for one, spec in self.made.items() if one not in self.removed])
        return f"'{delivery}'" not in said and self.delivered.pop(delivery, None) is not None

    async def tasks(self, label: str) -> Sequence[Json]:
        return self.all_tasks


class FakeAgents:
    """The agent of one node. `breaks_at`: the call in which its link goes; `refusal` is its answer to a pull."""

    def __init__(self) -> None:
        self.connected = True
        self.gateway = ""
        self.released: list[str] = []
        self.mount_through_agent: dict[str, Sequence[tuple[str, str]]] = {}
        self.pulled: list[str] = []
        self.breaks_at = ""
        self.refusal: EngineFailure | None = None

    def agent_reports(self) -> Sequence[AgentReport]:
        report, now = NodeReport("worker1", 1000, 1024), time.monotonic()
        told = AgentReport("worker1", report, time.time(), now, self.connected, mounts=True, node_id="node-1")
        return [replace(told, gateway=self.gateway)]

    async def bindings(self) -> dict[str, str]:
        return {"node-1": "worker1"}

    def _asked(self, what: str) -> None:
        if what == self.breaks_at:
            self.connected = False
            raise EngineFailure("nothing was heard of the agent for 15 s", retryable=True)

    async def pull(self, node_id: str, image: str, told: OnProgress, token: PullToken | None = None) -> None:
        self._asked("pull")
        if self.refusal is not None:
            raise self.refusal
        self.pulled.append(image)
        told(PULLING, 0.25)

    async def enforce(self, node_id: str, hold: ShareAssignment) -> Mapping[str, str]:
        self._asked("enforce")
        return {}

    async def mount(self, node_id: str, attempt_id: str, sources: Sequence[tuple[str, str]]) -> Sequence[str]:
        self._asked("mount")
        self.mount_through_agent[attempt_id] = sources
        return [f"/run/commonage/attempts/{attempt_id}/{name}" for name, _ in sources]

    async def unmount(self, node_id: str, attempt_id: str) -> None:
        self.mount_through_agent.pop(attempt_id, None)

    async def release(self, node_id: str, attempt_id: str) -> None:
        self.released.append(attempt_id)


class FakeNetworks:
    async def of(self, tenant: str) -> Network:
        return Network("net-id", "commonage-net", "10.0.0.1")


class Scene:
    def __init__(self, folder: Path, account: RegistryAccount | None = None) -> None:
        self.swarm, self.agents = FakeSwarm(), FakeAgents()
        client: Any = self.swarm
        agents: Any = self.agents
        networks: Any = FakeNetworks()
        self.node_tracker = NodeTracker(client, agents)
        self.node_tracker.swarm_nodes = swarm_nodes_of([NODE])
        self.node_tracker.by_id = {"node-1": self.node_tracker.swarm_nodes["worker1"]}
        self.hear()
        defaults = ContainerDefaults("0123456789abcdef", SafePath(folder) / "workspaces", {}, 1, is_local=False)
        settings = SwarmSettings(account=account, reaches=(8081,))
        self.launcher = Launcher(
            defaults, settings, client, self.node_tracker, SwarmFiles(client, "0123456789abcdef"),
            Images(client, "site", "missing", Logins(account)), networks, StartLimiter(asyncio.create_task),
            asyncio.to_thread,
        )  # fmt: skip
        self.tasks = Tasks(client, "0123456789abcdef")
        self.fencing = Fencing(self.node_tracker, asyncio.to_thread)
        self.container_client = SwarmContainerClient(
            client,
            Fencing(self.node_tracker, asyncio.to_thread),
            self.tasks,
            self.launcher,
            settings,
            asyncio.to_thread,
        )
        self._runs = Runs(folder / "runs", SafePath(folder) / "shared")
        self._runs.open()

    def hear(self) -> None:
        self.node_tracker.agent_reports = {one.node: one for one in self.agents.agent_reports()}

    def run(self, **changes: Any) -> Run:
        attempt, node = changes.setdefault("attempt_id", "w-1"), changes.pop("node", "worker1")
        allocation = Allocation(attempt, "local", node, 1000, 256, changes.pop("shares", ()), 0.0)
        stop: StartRequest = request(
            environment=Environment("e", "E", image=IMAGE), allocation=allocation, owner="ada", **changes
        )
        return Run(stop, self._runs.create(stop, None), Status(attempt, Phase.STARTING, time.time()))


@pytest.fixture
async def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


# --- images -------------------------------------------------------------------------------------------------------


async def test_the_agent_is_asked_for_the_image_each_time(scene: Scene) -> None:
    environment = Environment("e", "E", image=IMAGE)
    for _ in range(2):
        await scene.launcher.ensure_image(environment, "worker1", ignore_progress)
    assert scene.agents.pulled == [IMAGE, IMAGE], "it may have been removed meanwhile"


async def test_pull_progress_counts_megabytes(scene: Scene) -> None:
    agent_report: list[tuple[Reason, float | None]] = []
    await scene.launcher.ensure_image(
        Environment("e", "E", image=IMAGE), "worker1", lambda reason, progress: agent_report.append((reason, progress))
    )
    assert agent_report == [(PULLING, 0.25)]


async def test_without_its_agent_an_image_of_ours_is_waited_for(tmp_path: Path) -> None:
    scene = Scene(tmp_path, RegistryAccount("registry.test:5000", "swarm_node", "x"))
    scene.agents.connected = False
    scene.hear()
    with pytest.raises(AgentUnreachable):
        await scene.launcher.ensure_image(Environment("e", "E", image=IMAGE), "worker1", ignore_progress)
    await scene.launcher.ensure_image(Environment("e", "E", image="far.test/away:1"), "worker1", ignore_progress)
    assert scene.agents.pulled == []


# --- links that break ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["pull", "enforce", "mount"])
async def test_broken_agent_link_is_retried(scene: Scene, call: str) -> None:
    scene.agents.breaks_at = call
    with pytest.raises(AgentUnreachable, match="nothing was heard"):
        await scene.container_client.launch(scene.run(shares=(GPU,)), ignore_progress)
    assert not scene.swarm.made


async def test_agent_error_is_not_agent_unreachable(scene: Scene) -> None:
    scene.agents.refusal = EngineFailure("the disk of the Docker daemon is full", retryable=True)
    with pytest.raises(EngineFailure, match="disk") as caught:
        await scene.container_client.launch(scene.run(), ignore_progress)
    assert caught.value.is_retryable
    assert not isinstance(caught.value, AgentUnreachable)


# --- the way to the hub -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gateway", "seen"), [("172.18.0.1", "172.18.0.1"), ("", "10.0.0.1")])
async def test_container_uses_agent_gateway_or_relay(scene: Scene, gateway: str, seen: str) -> None:
    scene.agents.gateway = gateway
    scene.hear()
    await scene.container_client.launch(
        scene.run(variables=(("HUB", "http://127.0.0.1:8081/hub/api"),)), ignore_progress
    )
    [spec] = scene.swarm.made.values()
    assert f"HUB=http://{seen}:8081/hub/api" in spec["TaskTemplate"]["ContainerSpec"]["Env"]


# --- no room ------------------------------------------------------------------------------------------------------


async def test_unplaceable_service_is_given_back(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    run = scene.run(shares=(GPU,), secrets=(("KEY", "sesame"),))
    await scene.container_client.launch(run, ignore_progress)
    refused = task("pending", err="no suitable node (insufficient resources on 1 node)")
    scene.swarm.all_tasks = [{**refused, "NodeID": "", "CreatedAt": "1", "Version": {"Index": 1}}]
    await scene.tasks.ask()
    status_reader = StatusReader(scene.container_client, asyncio.to_thread)
    waits = await status_reader.inspect(run)
    assert isinstance(waits, Status)
    assert (waits.phase, type(waits.reason)) == (Phase.STARTING, SwarmSeesNoGpuMemory)
    monkeypatch.setattr(scene.container_client, "settings", SwarmSettings(room_timeout_s=-1.0))
    end = await status_reader.inspect(run)
    assert isinstance(end, Status)
    assert (end.phase, end.exit_code, end.reason, end.started_at) == (Phase.ENDED, None, waits.reason, None)
    assert scene.agents.released == ["w-1"]
    assert not (run.folder.path / "secrets.json").exists()


# --- stops and second tries ---------------------------------------------------------------------------------------


async def test_stop_during_creation_leaves_no_service(scene: Scene) -> None:
    scene.swarm.held_up.clear()
    run = scene.run(kind=Kind.SESSION)
    launching = asyncio.create_task(scene.container_client.launch(run, ignore_progress))
    await scene.swarm.asked.wait()
    launching.cancel()
    with suppress(asyncio.CancelledError):
        await launching
    removing = asyncio.create_task(scene.container_client.remove(run))
    await asyncio.sleep(0.01)
    scene.swarm.held_up.set()
    await removing
    assert [spec["Name"] for spec in scene.swarm.made.values()] == ["jy-ada"]
    assert scene.swarm.removed == ["id-0"]


async def test_retry_finds_existing_container(scene: Scene) -> None:
    run = scene.run(kind=Kind.SESSION)
    first = await scene.launcher.launch(run, ignore_progress)
    assert await scene.launcher.launch(run, ignore_progress) == first
    run.ended.set()  # its turn is over, although the live state was not updated
    other = scene.run(kind=Kind.SESSION, attempt_id="w-2")
    assert await scene.launcher.launch(other, ignore_progress) != first, "the name is taken, and by another attempt"


async def test_service_with_lost_create_response_is_stopped_and_removed(scene: Scene) -> None:
    scene.swarm.mute = True
    run = scene.run(kind=Kind.SESSION)
    with pytest.raises(DaemonUnreachable):
        await scene.container_client.launch(run, ignore_progress)
    scene.swarm.all_tasks = [{**task("running"), "CreatedAt": "1", "Version": {"Index": 1}}]
    await scene.tasks.ask()
    assert isinstance(await scene.container_client.inspect(run), Running)
    await scene.container_client.signal(run, "SIGTERM")
    assert (run.control_folder.path / "stop").read_text() == "term\n"
    await scene.container_client.signal(run, "SIGKILL")
    assert (run.control_folder.path / "stop").read_text() == "kill\n"
    await scene.container_client.remove(run)
    assert scene.swarm.removed == ["id-0"]


@pytest.mark.parametrize(
    ("state", "removed"), [("complete", []), ("failed", []), ("running", ["id-0"]), ("shutdown", ["id-0"])]
)
async def test_only_what_swarm_says_has_ended_is_removed_later(scene: Scene, state: str, removed: list[str]) -> None:
    run = scene.run()
    await scene.container_client.launch(run, ignore_progress)
    run.status = Status("w-1", Phase.ENDED, time.time(), exit_code=143)
    scene.swarm.all_tasks = [{**task(state), "CreatedAt": "1", "Version": {"Index": 1}}]
    await scene.tasks.ask()
    await scene.container_client.remove(run)
    assert scene.swarm.removed == removed
    await scene.container_client.sweep(at_once=True)
    assert scene.swarm.removed == ["id-0"]


# --- what the Swarm delivers ----------------------------------------------------------------------------------------


def delivered(scene: Scene, kind: str) -> dict[str, Json]:
    return {one: spec for one, (known, spec) in scene.swarm.delivered.items() if known == kind}


async def test_secrets_come_from_the_swarm_and_go_with_the_attempt(scene: Scene) -> None:
    run = scene.run(secrets=(("KEY", "sesame"),))
    await scene.container_client.launch(run, ignore_progress)
    [(secret, spec)] = delivered(scene, "secrets").items()
    assert base64.b64decode(spec["Data"]) == b"export KEY='sesame'\n"
    [service] = scene.swarm.made.values()
    [reference] = service["TaskTemplate"]["ContainerSpec"]["Secrets"]
    assert (reference["SecretID"], reference["File"]["Mode"]) == (secret, 0o400)
    assert not (run.control_folder.path / "secrets").exists()
    await scene.launcher.launch(run, ignore_progress)
    assert list(delivered(scene, "secrets")) == [secret], "a second try finds what the first one made"
    await scene.container_client.remove(run)
    assert delivered(scene, "secrets") == {}


async def test_secrets_of_failed_attempt_are_recreated(scene: Scene) -> None:
    run = scene.run(secrets=(("KEY", "sesame"),))
    scene.agents.breaks_at = "mount"
    with pytest.raises(AgentUnreachable):
        await scene.container_client.launch(run, ignore_progress)
    [before] = delivered(scene, "secrets")
    scene.agents.breaks_at, scene.agents.connected = "", True
    scene.hear()
    await scene.container_client.launch(run, ignore_progress)
    [after] = delivered(scene, "secrets")
    assert after != before


async def test_our_files_come_with_a_session_that_holds_a_part_of_a_gpu(scene: Scene) -> None:
    deliveries = SwarmFiles(cast(Client, scene.swarm), "0123456789abcdef")
    part = Share("GPU-a", 0, "A100", 1024, 500, False, 40960, True)
    stop = request(kind=Kind.SESSION, allocation=Allocation("w-1", "local", "is_local", 1500, 64, (part,), 0.0))
    given = await deliveries.injected(stop)
    assert await deliveries.injected(stop) == given
    places = [place for _, place in given]
    assert places[:2] == [
        "/run/commonage/python/sitecustomize.py",
        "/run/commonage/jupyter/labconfig/default_setting_overrides.json",
    ]
    extensions = "/run/commonage/jupyter/labextensions"
    assert f"{extensions}/@commonage/session/static/remoteEntry.js" in places
    assert f"{extensions}/commonage/static/run_as_job.js" in places
    texts = [base64.b64decode(delivered(scene, "configs")[one.id]["Data"]).decode() for one, _ in given]
    assert "set_per_process_memory_fraction" in texts[0]
    assert json.loads(texts[1])["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
    assert (
        await deliveries.injected(request(allocation=Allocation("w-2", "local", "is_local", 1500, 64, (), 0.0))) == []
    )


async def test_leftovers_of_a_crash_are_removed(scene: Scene) -> None:
    deliveries = SwarmFiles(cast(Client, scene.swarm), "0123456789abcdef")
    for attempt in ("w-1", "w-2"):
        await deliveries.secrets(attempt, {"KEY": "x"})
    entry = await deliveries.entry()
    labels = {"commonage.installation": "0123456789abcdef"}
    await scene.swarm.create_delivery("configs", {"Name": "of an older version", "Labels": labels, "Data": ""})
    await scene.swarm.create_delivery("secrets", {"Name": "another's", "Labels": {}, "Data": ""})
    await scene.launcher.deliveries.clear(lambda attempt: attempt == "w-2")
    assert list(delivered(scene, "configs")) == [entry.id]
    left = [spec["Labels"].get("commonage.attempt") for spec in delivered(scene, "secrets").values()]
    assert left == ["w-2", None]


async def test_secrets_that_are_too_large_say_so(scene: Scene) -> None:
    with pytest.raises(EngineFailure, match="500 KiB") as caught:
        await scene.container_client.launch(scene.run(secrets=(("KEY", "x" * 600_000),)), ignore_progress)
    assert not caught.value.is_retryable


# --- folders that the agent mounts ----------------------------------------------------------------------------------


async def test_docker_gets_paths_mounted_by_agent(scene: Scene) -> None:
    run = scene.run()
    await scene.container_client.launch(run, ignore_progress)
    [service] = scene.swarm.made.values()
    mounts = service["TaskTemplate"]["ContainerSpec"]["Mounts"]
    binds = {one["Target"]: one["Source"] for one in mounts if one["Type"] == "bind"}
    mine = "/run/commonage/attempts/w-1"
    assert binds == {
        "/home/ada": f"{mine}/workspace",
        "/run/commonage/control": f"{mine}/control",
        "/run/commonage/log": f"{mine}/log",
    }
    assert dict(scene.agents.mount_through_agent["w-1"])["control"] == str(run.control_folder.path)
    await scene.container_client.release(run)
    assert scene.agents.mount_through_agent == {}


async def test_without_an_agent_a_node_takes_no_work_unless_it_is_alone(scene: Scene) -> None:
    other = {**NODE, "ID": "node-2", "Description": {"Hostname": "worker2"}}
    scene.node_tracker.agent_reports = {}
    await scene.container_client.launch(scene.run(), ignore_progress)
    [service] = scene.swarm.made.values()
    assert service["TaskTemplate"]["ContainerSpec"]["Mounts"][0]["Source"].endswith("/workspaces/ada")
    scene.node_tracker.swarm_nodes = swarm_nodes_of([NODE, other])
    with pytest.raises(EngineFailure) as caught:
        await scene.launcher.launch(scene.run(), ignore_progress)
    assert caught.value.reason == NodeTakesNoWork(node="worker1", cause=NoAgent())
    assert all(report.faults[0] == NoAgent() for report in scene.node_tracker.reports())
    allowed = NodeTracker(cast(Client, scene.swarm), None, without_agents=True)
    allowed.swarm_nodes = scene.node_tracker.swarm_nodes
    assert [one.faults for one in allowed.reports()] == [(), ()]


async def test_an_agent_of_an_older_version_is_named(scene: Scene) -> None:
    scene.node_tracker.agent_reports = {
        name: replace(one, mounts=False) for name, one in scene.node_tracker.agent_reports.items()
    }
    [report] = scene.node_tracker.reports()
    assert report.faults[0] == AgentTooOld()


class FakeNetworkManager:
    """Creates networks, and does not report their addresses yet."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []

    async def create_network(self, config: Mapping[str, Any]) -> str:
        self.made.append({**config, "Id": f"id-{len(self.made)}", "IPAM": {"Driver": "default", "Config": None}})
        return str(self.made[-1]["Id"])

    async def network(self, network: str) -> Mapping[str, Any] | None:
        return next((one for one in self.made if one["Id"] == network), None)

    async def networks(self, label: str) -> Sequence[Mapping[str, Any]]:
        return self.made

    async def overlays(self) -> Sequence[Mapping[str, Any]]:
        return []


async def test_a_network_that_has_no_addresses_yet_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "networks_here", list)
    swarm: Any = FakeNetworkManager()
    found = await Networks(swarm, "0123456789abcdef", SwarmSettings(), "10.0.0.1").of("lab")
    assert (found.id, found.gateway) == ("id-0", "10.0.0.1")
