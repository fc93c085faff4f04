"""Preparation of a container, during which a stop may arrive."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.engines.containers.test_program import request
from tests.unit.engines.docker.slow_daemon import SlowDaemon

from commonage.domain.nodes import Allocation, Share
from commonage.domain.statuses import Phase, Status
from commonage.engines.containers.attempt_backend import Run
from commonage.engines.containers.daemon import networks
from commonage.engines.containers.daemon.connection import DaemonRefused, DaemonUnreachable
from commonage.engines.containers.daemon.networks import Network, Relays
from commonage.engines.containers.files.prepare import ContainerDefaults
from commonage.engines.docker.daemon import Daemon
from commonage.engines.docker.launcher import Launcher, Networks
from commonage.engines.rundir.runs import Runs
from commonage.engines.settings import DockerSettings
from commonage.files.safe_path import SafePath
from commonage.ports.devices import ShareAssignment

pytestmark = pytest.mark.anyio
GPU = Share("GPU-a", 0, "A100", 8192, 500, False, 40960)


class FakeDevices:
    """`stopped` is an attempt that is stopped, and has its shares released, while they are about to be held."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.stopped: Run | None = None

    def enforce(self, hold: ShareAssignment) -> Mapping[str, str]:
        if self.stopped is not None:
            self.stopped.control_folder.forbid_start()
            self.release(hold.attempt_id)
        self.held.add(hold.attempt_id)
        return {}

    def release(self, attempt_id: str) -> None:
        self.held.discard(attempt_id)


@pytest.mark.parametrize(("stopped", "held"), [(False, {"w-1"}), (True, set())])
async def test_stop_during_preparation_releases_share(tmp_path: Path, stopped: bool, held: set[str]) -> None:
    runs = Runs(tmp_path / "runs")
    runs.open()
    stop = request(allocation=Allocation("w-1", "local", "is_local", 1000, 256, (GPU,), 0.0))
    run = Run(stop, runs.create(stop, None), Status("w-1", Phase.STARTING, 0.0))
    nobody: Any = None
    devices: Any = FakeDevices()
    devices.stopped = run if stopped else None
    defaults = ContainerDefaults("0123456789abcdef", SafePath(tmp_path) / "workspaces", {}, 1, is_local=True)
    settings = DockerSettings()
    daemon = Daemon(nobody, settings, nobody)
    launcher = Launcher(defaults, tmp_path / "injected", settings, nobody, daemon, nobody, devices, nobody, nobody)
    launcher._prepare(run, Network("net-id", "commonage-net", "10.0.0.1"), volume_quota=False)
    assert devices.held == held


INSTALLATION = "0123456789abcdef"


class FakeClient:
    """A daemon's networks. `mute`: it makes one and does not say so."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.mute = False

    async def create_network(self, config: Mapping[str, Any]) -> str:
        if config["Name"] in {one["Name"] for one in self.made}:
            raise DaemonRefused(f"Docker: network with name {config['Name']} already exists", 409, retryable=False)
        self.made.append({**config, "Id": f"id-{len(self.made)}"})
        if self.mute:
            raise DaemonUnreachable("the connection was lost")
        return str(self.made[-1]["Id"])

    async def network(self, network: str) -> Mapping[str, Any] | None:
        return next((one for one in self.made if one["Id"] == network), None)

    async def networks(self, label: str) -> Sequence[Mapping[str, Any]]:
        return self.made


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    monkeypatch.setattr(networks, "networks_here", list)
    return FakeClient()


def tenants(client: FakeClient) -> Networks:
    daemon: Any = client
    return Networks(daemon, INSTALLATION, "10.213.0.0/16", Relays((), 0))


async def test_network_is_found_after_lost_create_response(client: FakeClient) -> None:
    installation_filter, client.mute = tenants(client), True
    with pytest.raises(DaemonUnreachable):
        await installation_filter.of("lab")
    found = await installation_filter.of("lab")
    assert (found.id, len(client.made)) == ("id-0", 1)
    client.mute = False
    assert (await installation_filter.of("other")).id == "id-1"


async def test_foreign_network_of_the_same_name_is_not_used(client: FakeClient) -> None:
    await tenants(client).of("lab")
    client.made[0]["Labels"] = {}
    with pytest.raises(DaemonRefused, match="already exists"):
        await tenants(client).of("lab")


async def test_addresses_of_a_removed_network_are_not_used_again_at_once(client: FakeClient) -> None:
    installation_filter = tenants(client)
    await installation_filter.of("lab")
    removed = client.made.pop()
    installation_filter.forget("lab")
    await installation_filter.of("lab")
    assert client.made[0]["IPAM"] != removed["IPAM"]


async def test_a_stop_waits_until_the_container_is_created(tmp_path: Path) -> None:
    """Otherwise it could be created after the attempt was forgotten, and would never be removed."""
    nobody: Any = None
    daemon: Any = SlowDaemon()
    runs = Runs(tmp_path / "runs")
    runs.open()
    run = Run(request(), runs.create(request(), None), Status("w-1", Phase.STARTING, 0.0))
    launcher = Launcher(nobody, tmp_path, DockerSettings(), daemon, nobody, nobody, nobody, nobody, nobody)
    await daemon.stop(launcher._create_container(run, {}))
    assert daemon.names == ["commonage-w-1"]
