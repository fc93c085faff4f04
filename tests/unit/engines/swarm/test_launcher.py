"""Services made and removed, over a Swarm and agents that do as they are told: images, links that break, stops."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.unit.engines.containers.test_program import order
from tests.unit.engines.swarm.test_sightings import task

from commonage.domain.environments import Environment
from commonage.domain.errors import EngineFailure
from commonage.domain.fleet import Lease, NodeReport, Share
from commonage.domain.sightings import Order, Seen, Sighting
from commonage.domain.workloads import Kind
from commonage.engines.common.runs import Runs
from commonage.engines.containers.board import Run
from commonage.engines.containers.hands import Lives
from commonage.engines.containers.looking import Looker
from commonage.engines.containers.preparing import Place
from commonage.engines.containers.turns import Turns
from commonage.engines.dockerd.connection import Json
from commonage.engines.dockerd.errors import DaemonUnreachable, Refused
from commonage.engines.dockerd.images import Images
from commonage.engines.dockerd.networks import Network
from commonage.engines.swarm.fleet import AgentAway, Fleet
from commonage.engines.swarm.hands import SwarmHands
from commonage.engines.swarm.launcher import Launcher
from commonage.engines.swarm.nodes import machines_of
from commonage.engines.swarm.settings import SwarmSettings
from commonage.engines.swarm.tasks import Tasks
from commonage.ports.agents import Heard, Told, unheard
from commonage.ports.devices import Hold
from commonage.ports.registry import RegistryAccount

pytestmark = pytest.mark.anyio
IMAGE = "registry.test:5000/lab/torch@sha256:aa"
CARD = Share("GPU-a", 0, "A100", 8192, 500, False, 40960)
NODE = {"ID": "node-1", "Description": {"Hostname": "worker1"}, "Status": {"State": "ready"}, "Spec": {}}


class FakeSwarm:
    """A manager: services by id. `held_up` is waited for before one is made; `mute`: it is made, and that not said."""

    def __init__(self) -> None:
        self.made: dict[str, Json] = {}
        self.removed: list[str] = []
        self.held_up = asyncio.Event()
        self.held_up.set()
        self.mute = False
        self.asked = asyncio.Event()
        self.all_tasks: list[Json] = []

    async def image(self, name: str) -> Json | None:
        if " " in name:
            raise Refused("that is not a name of an image", 400, retryable=False)
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

    async def tasks(self, label: str) -> Sequence[Json]:
        return self.all_tasks


class FakeAgents:
    """The agent of one machine. `breaks_at`: the call in which its link goes; `refusal` is its answer to a pull."""

    def __init__(self) -> None:
        self.connected = True
        self.released: list[str] = []
        self.pulled: list[str] = []
        self.breaks_at = ""
        self.refusal: EngineFailure | None = None

    def heard(self) -> Sequence[Heard]:
        return [Heard("worker1", NodeReport("worker1", 1000, 1024), time.time(), time.monotonic(), self.connected)]

    def _asked(self, what: str) -> None:
        if what == self.breaks_at:
            self.connected = False
            raise EngineFailure("nothing was heard of the agent for 15 s", retryable=True)

    async def pull(self, node: str, image: str, told: Told) -> None:
        self._asked("pull")
        if self.refusal is not None:
            raise self.refusal
        self.pulled.append(image)
        told("37 of 146 MB", 0.25)

    async def confine(self, node: str, hold: Hold) -> Mapping[str, str]:
        self._asked("confine")
        return {}

    async def release(self, node: str, attempt_id: str) -> None:
        self.released.append(attempt_id)


class FakeNetworks:
    async def of(self, tenant: str) -> Network:
        return Network("net-id", "commonage-net", "10.0.0.1")


class Scene:
    """Launcher and hands over one Swarm of one machine."""

    def __init__(self, folder: Path, account: RegistryAccount | None = None) -> None:
        self.swarm, self.agents = FakeSwarm(), FakeAgents()
        client: Any = self.swarm
        agents: Any = self.agents
        networks: Any = FakeNetworks()
        self.fleet = Fleet(client, agents)
        self.fleet.machines = machines_of([NODE])
        self.fleet.by_id = {"node-1": self.fleet.machines["worker1"]}
        self.hear()
        place = Place("0123456789abcdef", folder / "workspaces", {}, 1, here=False)
        settings = SwarmSettings(account=account)
        self.launcher = Launcher(place, settings, client, self.fleet, folder / "entry.sh")
        self.launcher.turns = Turns(asyncio.create_task)
        self.launcher.images, self.launcher.networks = Images(client, "site", "missing", account), networks
        self.launcher.in_thread = asyncio.to_thread
        self.tasks = Tasks(client, "0123456789abcdef")
        self.hands = SwarmHands(client, self.fleet, self.tasks, self.launcher, settings)
        self._runs = Runs(folder / "runs")
        self._runs.open()

    def hear(self) -> None:
        """As the engine does every second."""
        self.fleet.heard = {one.node: one for one in self.agents.heard()}

    def run(self, **changes: Any) -> Run:
        """A new attempt."""
        lease = Lease("w-1", "worker1", 1000, 256, changes.pop("shares", ()), 0.0)
        wish: Order = order(environment=Environment("e", "E", image=IMAGE), lease=lease, owner="ada", **changes)
        return Run(wish, self._runs.create(wish, None), Sighting("w-1", Seen.STARTING, time.time()))


@pytest.fixture
async def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


# --- images -------------------------------------------------------------------------------------------------------


async def test_the_agent_is_asked_for_the_image_each_time(scene: Scene) -> None:
    environment = Environment("e", "E", image=IMAGE)
    for _ in range(2):
        await scene.launcher.have_image(environment, "worker1", unheard)
    assert scene.agents.pulled == [IMAGE, IMAGE], "somebody may have removed it meanwhile"


async def test_who_waits_reads_of_what_the_megabytes_are(scene: Scene) -> None:
    heard: list[tuple[str, float | None]] = []
    await scene.launcher.have_image(
        Environment("e", "E", image=IMAGE), "worker1", lambda detail, progress: heard.append((detail, progress))
    )
    assert heard == [("fetching the image registry.test:5000/lab/torch: 37 of 146 MB", 0.25)]


async def test_without_its_agent_an_image_of_ours_is_waited_for(tmp_path: Path) -> None:
    scene = Scene(tmp_path, RegistryAccount("registry.test:5000", "machine", "x"))
    scene.agents.connected = False
    scene.hear()
    with pytest.raises(AgentAway):
        await scene.launcher.have_image(Environment("e", "E", image=IMAGE), "worker1", unheard)
    await scene.launcher.have_image(Environment("e", "E", image="far.test/away:1"), "worker1", unheard)
    assert scene.agents.pulled == []


# --- links that break ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["pull", "confine"])
async def test_a_link_that_breaks_is_waited_for(scene: Scene, call: str) -> None:
    scene.agents.breaks_at = call
    with pytest.raises(AgentAway, match="nothing was heard"):
        await scene.hands.launch(scene.run(shares=(CARD,)), unheard)
    assert not scene.swarm.made


async def test_what_the_agent_says_itself_is_not_its_absence(scene: Scene) -> None:
    scene.agents.refusal = EngineFailure("the disk of the Docker daemon is full", retryable=True)
    with pytest.raises(EngineFailure, match="disk") as caught:
        await scene.hands.launch(scene.run(), unheard)
    assert caught.value.is_retryable
    assert not isinstance(caught.value, AgentAway)


# --- no room ------------------------------------------------------------------------------------------------------


async def test_what_swarm_finds_no_room_for_goes_back_and_holds_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = scene.run(shares=(CARD,), secrets=(("KEY", "sesame"),))
    await scene.hands.launch(run, unheard)
    refused = task("pending", err="no suitable node (insufficient resources on 1 node)")
    scene.swarm.all_tasks = [{**refused, "NodeID": "", "CreatedAt": "1", "Version": {"Index": 1}}]
    await scene.tasks.ask()
    looker = Looker(scene.hands, asyncio.to_thread)
    waits = await looker.look(run)
    assert isinstance(waits, Sighting)
    assert (waits.seen, "no VRAM" in waits.detail) == (Seen.STARTING, True)
    monkeypatch.setattr(scene.hands, "_patience_s", -1.0)
    end = await looker.look(run)
    assert isinstance(end, Sighting)
    assert (end.seen, end.exit_code, end.detail, end.started_at) == (Seen.ENDED, None, waits.detail, None)
    assert scene.agents.released == ["w-1"]
    assert not (run.folder.path / "secrets.json").exists()


# --- stops and second tries ---------------------------------------------------------------------------------------


async def test_a_stop_while_its_service_is_made_leaves_none(scene: Scene) -> None:
    scene.swarm.held_up.clear()
    run = scene.run(kind=Kind.SESSION)
    launching = asyncio.create_task(scene.hands.launch(run, unheard))
    await scene.swarm.asked.wait()
    launching.cancel()
    with suppress(asyncio.CancelledError):
        await launching
    removing = asyncio.create_task(scene.hands.remove(run))
    await asyncio.sleep(0.01)
    scene.swarm.held_up.set()
    await removing
    assert [spec["Name"] for spec in scene.swarm.made.values()] == ["jy-ada"]
    assert scene.swarm.removed == ["id-0"]


async def test_a_second_try_finds_what_the_first_one_made(scene: Scene) -> None:
    run = scene.run(kind=Kind.SESSION)
    first = await scene.launcher.launch(run, unheard)
    assert await scene.launcher.launch(run, unheard) == first
    run.ended.set()  # its turn is over, though nobody told the board
    other = scene.run(kind=Kind.SESSION, attempt_id="w-2")
    assert await scene.launcher.launch(other, unheard) != first, "the name is taken, and by another attempt"


async def test_what_was_made_though_nobody_said_so_hears_a_stop_and_is_removed(scene: Scene) -> None:
    scene.swarm.mute = True
    run = scene.run(kind=Kind.SESSION)
    with pytest.raises(DaemonUnreachable):
        await scene.hands.launch(run, unheard)
    scene.swarm.all_tasks = [{**task("running"), "CreatedAt": "1", "Version": {"Index": 1}}]
    await scene.tasks.ask()
    assert isinstance(await scene.hands.look(run), Lives)
    await scene.hands.signal(run, "SIGTERM")
    assert (run.box.path / "wish").read_text() == "term\n"
    await scene.hands.signal(run, "SIGKILL")
    assert (run.box.path / "wish").read_text() == "kill\n"
    await scene.hands.remove(run)
    assert scene.swarm.removed == ["id-0"]


@pytest.mark.parametrize(
    ("state", "removed"), [("complete", []), ("failed", []), ("running", ["id-0"]), ("shutdown", ["id-0"])]
)
async def test_only_what_swarm_says_has_ended_is_removed_later(scene: Scene, state: str, removed: list[str]) -> None:
    run = scene.run()
    await scene.hands.launch(run, unheard)
    run.sighting = Sighting("w-1", Seen.ENDED, time.time(), exit_code=143)
    scene.swarm.all_tasks = [{**task(state), "CreatedAt": "1", "Version": {"Index": 1}}]
    await scene.tasks.ask()
    await scene.hands.remove(run)
    assert scene.swarm.removed == removed
    await scene.hands.sweep(at_once=True)
    assert scene.swarm.removed == ["id-0"]
