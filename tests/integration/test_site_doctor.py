"""`commonage doctor` and `commonage site agent` on an appliance: each problem is named, with what to do about it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.integration.site_link_world import SERVES, World, site_world

from commonage.join.listener import server_context
from commonage.link.sites.credentials import SiteCredentials
from commonage.link.sites.messages.engine import SiteNetwork
from commonage.link.sites.messages.hello import Protocols
from commonage.server.commands.doctor import doctor
from commonage.server.data_dir import prepare
from commonage.server.doctor import checks
from commonage.site_agent.network import KeptNetwork

pytestmark = pytest.mark.anyio


@dataclass
class Appliance:
    """A machine with the data folder of a site agent."""

    world: World
    data: Path

    def join(self) -> SiteCredentials:
        credentials = self.world.joined()
        shutil.copytree(credentials.folder, self.data / "site")
        return credentials

    async def examine(self, *words: str) -> dict[str, dict[str, str]]:
        config = self.data.with_name("commonage.toml")
        config.write_text(f'data_dir = "{self.data}"\ndocker_url = "unix://{self.data}/no.sock"\ngpus = "none"\n')
        command = ["--config", str(config), "--json", *words]
        done = await asyncio.to_thread(CliRunner().invoke, doctor, command)
        findings = {one["check"]: one for one in json.loads(done.stdout)}
        assert done.exit_code == int(any(one["verdict"] == "bad" for one in findings.values()))
        return findings


@pytest.fixture
async def appliance(tmp_path: Path) -> AsyncIterator[Appliance]:
    async with site_world(tmp_path / "control") as world:
        yield Appliance(world, tmp_path / "data")


async def test_appliance_in_order(appliance: Appliance) -> None:
    credentials = appliance.join()
    appliance.world.dial(credentials, SERVES)
    link = await appliance.world.connected()
    with prepare(appliance.data):
        found = await appliance.examine()
    assert {name for name, one in found.items() if one["verdict"] == "bad"} == set()
    assert {"engine", "site", "link", "clock", "site agent"} < found.keys()
    assert {"database", "hub", "registry"} & found.keys() == set(), "those are the control plane's, or for containers"
    assert await appliance.world.connected() is link, "it leaves the link alone"


async def test_engine_that_does_not_answer_is_bad(appliance: Appliance) -> None:
    appliance.join()
    for engine in ("docker", "swarm"):
        found = (await appliance.examine("--engine", engine))["engine"]
        assert (found["verdict"], f"{appliance.data}/no.sock" in found["found"]) == ("bad", True)


async def test_agent_that_does_not_run_is_bad(appliance: Appliance) -> None:
    appliance.join()
    found = (await appliance.examine())["site agent"]
    assert (found["verdict"], "commonage site agent" in found["advice"]) == ("bad", True)


async def test_control_plane_that_is_away_is_bad_and_the_clock_is_unknown(appliance: Appliance) -> None:
    appliance.join()
    await appliance.world.links.close()
    found = await appliance.examine()
    assert (found["link"]["verdict"], found["clock"]["verdict"]) == ("bad", "note")
    assert found["link"]["advice"]


async def test_revoked_site_is_told_to_join_again(appliance: Appliance) -> None:
    appliance.join()
    appliance.world.registry.revoke("lab")
    found = (await appliance.examine())["link"]
    assert (found["verdict"], "join again" in found["found"]) == ("bad", True)


async def test_control_plane_of_another_version_is_named(appliance: Appliance, monkeypatch: pytest.MonkeyPatch) -> None:
    appliance.join()
    monkeypatch.setattr("commonage.link.sites.dialer.Protocols", lambda: Protocols(98, 99))
    found = (await appliance.examine())["link"]
    assert (found["verdict"], "upgrade the control plane" in found["found"]) == ("bad", True)


@pytest.mark.parametrize(("ahead_s", "direction"), [(30.0, "behind"), (-30.0, "ahead of")])
async def test_clock_that_differs_is_bad(appliance: Appliance, ahead_s: float, direction: str) -> None:
    appliance.join()
    appliance.world.clock.ahead_s = ahead_s
    found = (await appliance.examine())["clock"]
    assert (found["verdict"], direction in found["found"], "NTP" in found["advice"]) == ("bad", True, True)


async def test_expired_and_damaged_identities_are_told_to_join_again(appliance: Appliance) -> None:
    appliance.join()
    identity = appliance.data / "site" / "identity.json"
    known = json.loads(identity.read_text())
    identity.write_text(json.dumps({**known, "until": 1.0}))
    found = (await appliance.examine())["site"]
    assert (found["verdict"], "site join" in found["advice"]) == ("bad", True)
    identity.write_text("{")
    found = (await appliance.examine())["site"]
    assert (found["verdict"], "site join" in found["advice"]) == ("bad", True)


async def agent(appliance: Appliance, **settings: str) -> tuple[int | None, str]:
    """The exit code of a site agent that cannot start, and what it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "commonage", "site", "agent", "--data-dir", str(appliance.data),
        env={**os.environ, **{f"COMMONAGE_{name}": value for name, value in settings.items()}},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, printed = await process.communicate()
    return process.returncode, printed.decode()


async def test_agent_says_why_it_cannot_start(appliance: Appliance) -> None:
    code, printed = await agent(appliance)
    assert (code, "commonage site join" in printed) == (2, True)
    appliance.join()
    (appliance.data / "site" / "network.json").write_text('{"ports": []}')
    for settings, part in (
        ({"ENGINE": "podman"}, "takes process, docker, swarm or kubernetes"),
        ({"ENGINE": "docker", "GPUS": "none", "DOCKER_URL": "unix:///nonexistent.sock"}, "unix:///nonexistent.sock"),
        ({"ENGINE": "process", "GPUS": "nvml"}, "install the NVIDIA driver"),
    ):
        code, printed = await agent(appliance, **settings)
        assert (code, part in printed, printed.count("\n")) == (2, True, 1), printed


async def test_registry_needs_an_account_in_a_cluster(appliance: Appliance, monkeypatch: pytest.MonkeyPatch) -> None:
    appliance.join()
    KeptNetwork(appliance.data / "site").keep(SiteNetwork(registry="hub.example.org:5000"))
    found = (await appliance.examine("--engine", "kubernetes"))["registry"]
    assert (found["verdict"], "kubernetes_pull_secrets" in found["advice"]) == ("note", True)
    monkeypatch.setenv("COMMONAGE_KUBERNETES_PULL_SECRETS", "registry")
    found = (await appliance.examine("--engine", "kubernetes"))["registry"]
    assert (found["verdict"], "hub.example.org:5000" in found["found"]) == ("ok", True)


async def test_registry_of_the_control_plane_is_checked_from_here(
    appliance: Appliance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = appliance.join()
    kept = KeptNetwork(appliance.data / "site")
    monkeypatch.setattr(checks, "TRUSTED", tmp_path / "certs.d")

    async def registry() -> dict[str, str]:
        return (await appliance.examine("--engine", "docker"))["registry"]

    assert (await registry())["found"] == "not known before the first link"
    kept.keep(SiteNetwork())
    assert (await registry())["verdict"] == "ok"
    pair = appliance.world.authority.serve(["127.0.0.1"])
    serving = await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=server_context(pair.cert_pem, pair.key_pem)
    )
    address = f"127.0.0.1:{serving.sockets[0].getsockname()[1]}"
    kept.keep(SiteNetwork(registry=address))
    found = await registry()
    assert (found["verdict"], f"{credentials.authority.name} {tmp_path}/certs.d" in found["advice"]) == ("note", True)
    (tmp_path / "certs.d" / address).mkdir(parents=True)
    (tmp_path / "certs.d" / address / "ca.crt").touch()
    assert (await registry())["verdict"] == "ok"
    serving.close()
    await serving.wait_closed()
    found = await registry()
    assert (found["verdict"], f"{address} cannot be reached" in found["found"]) == ("bad", True)
    assert "docker load" in found["advice"]
