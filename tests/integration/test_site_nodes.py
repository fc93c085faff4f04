"""Nodes join an appliance for real: a Swarm behind a site agent, and a Debian that joins it with a token of the control
plane, which it does not reach.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.acceptance.served import Served, free_port, served
from tests.contract.harness.newcomer import switched_on
from tests.contract.harness.swarm import MANAGER, Swarm, swarm_of
from tests.contract.harness.worker import Worker
from tests.fakes.waiting import wait_until
from tests.integration.joining_site import STEPS, new_folders
from tests.integration.registry_site import buildah_store, forget_store
from tests.integration.swarm_site import push_image

from commonage.sdk import Client
from commonage.wire.nodes import NodeOut
from commonage.wire.workloads import SubmitIn

pytestmark = [
    pytest.mark.needs("docker", "debootstrap", "images"),
    pytest.mark.timeout(600),
    pytest.mark.made_ahead("worker base"),
]

SITE, NODE = "clinic", "worker1"
CONTROL_PLANE, APPLIANCE = "10.99.254.1", "10.99.254.2"


@contextmanager
def line_to(space: str) -> Iterator[None]:
    """Connect the appliance's namespace with this machine's; the nodes of the appliance do not have this line."""
    outer = f"cmsn{os.getpid() % 100000}"
    for words in (
        ("link", "add", outer, "type", "veth", "peer", "name", "eth9", "netns", space),
        ("address", "add", f"{CONTROL_PLANE}/30", "dev", outer),
        ("link", "set", outer, "up"),
        ("-n", space, "address", "add", f"{APPLIANCE}/30", "dev", "eth9"),
        ("-n", space, "link", "set", "eth9", "up"),
    ):
        subprocess.run(["ip", *words], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "delete", outer], check=False, capture_output=True)


@dataclass
class Appliance:
    """The Swarm's manager with its site agent, and the control plane elsewhere."""

    swarm: Swarm
    platform: Served
    admin: Client
    token: str
    folder: Path
    shared: Path
    agent: subprocess.Popen[bytes] | None = None

    def commonage(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(*words), input=stdin, capture_output=True, text=True, check=False, timeout=120,
            cwd=self.folder, env=self._environment(),
        )  # fmt: skip

    def start(self) -> None:
        with (self.folder / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(
                self._command("site", "agent"), stdout=log, stderr=log, cwd=self.folder, env=self._environment(),
                start_new_session=True,
            )  # fmt: skip

    def stop(self) -> None:
        if self.agent is not None:
            self.agent.send_signal(signal.SIGTERM)
            self.agent.wait(60)
            self.agent = None

    def _command(self, *words: str) -> list[str]:
        return [*self.swarm.manager.inside(), sys.executable, "-m", "commonage", *words, "--data-dir", str(self.folder)]

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "COMMONAGE_ENGINE": "swarm",
            "COMMONAGE_DOCKER_URL": self.swarm.manager.daemon.url,
            "COMMONAGE_SHARED_DIR": str(self.shared),
            "COMMONAGE_SITE_ADDRESS": self.swarm.manager.address,
        }

    def admins(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.platform.cli(*words, token=self.token)

    def node(self, name: str) -> NodeOut | None:
        return next((one for one in self.admin.nodes() if (one.site, one.name) == (SITE, name)), None)

    def is_ready(self, name: str) -> bool:
        node = self.node(name)
        return node is not None and node.state == "ready" and bool(node.devices)

    def said_of(self, node: str, script: str, environment: str) -> list[str]:
        wanted = SubmitIn(
            command=["sh", "-c", script], environment=environment, on={"node": node, "site": SITE}, memory_mib=64,
            cpus="0.1", gpus="1GiB",
        )  # fmt: skip
        job = self.admin.submit(wanted).workload
        ended = self.admin.wait(job.id, timeout_s=240)
        said = [line.text for line in self.admin.logs(job.id)]
        assert ended.state == "succeeded", f"{ended.reason}: {said}"
        return said


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    variables = {
        "COMMONAGE_BIND": "0.0.0.0",
        "COMMONAGE_SITE_ADDRESS": CONTROL_PLANE,
        "COMMONAGE_JOINING_PORT": str(free_port()),
        "COMMONAGE_SITES_PORT": str(free_port()),
        "COMMONAGE_REGISTRY": "true",
        "COMMONAGE_REGISTRY_BIND": CONTROL_PLANE,
        "COMMONAGE_REGISTRY_PORT": "5000",
    }
    with ExitStack() as closing:
        home = tmp_path_factory.mktemp("platform")
        variables |= buildah_store(home)
        closing.callback(forget_store, home)
        folder, shared = closing.enter_context(new_folders())
        swarm = closing.enter_context(swarm_of(0))
        closing.enter_context(line_to(swarm.manager.space))
        platform = closing.enter_context(served(home, variables=variables))
        token = platform.token("admin", "--admin")
        admin = closing.enter_context(Client(platform.url, token))
        made = Appliance(swarm, platform, admin, token, folder, shared)
        invited = made.admin.site_token(SITE)
        joined = made.commonage("site", "join", "--token-file", "-", stdin=invited.token)
        assert joined.returncode == 0, joined.stderr
        closing.callback(made.stop)
        made.start()
        wait_until(lambda: made.node(MANAGER) is not None, within_s=90)
        admin.drain(SITE, MANAGER)
        yield made


@pytest.fixture(scope="module")
def worker(appliance: Appliance) -> Iterator[Worker]:
    with switched_on(Worker(appliance.swarm, NODE, 11, appliance.shared)) as made:
        yield made


def test_a_node_joins_the_appliance_with_a_token_of_the_control_plane(appliance: Appliance, worker: Worker) -> None:
    asked = appliance.admins("node", "token", "--site", SITE, "--for", "10m", "--json")
    assert asked.returncode == 0, asked.stderr
    made = json.loads(asked.stdout)
    assert f"https://{appliance.swarm.manager.address}:" in made["command"]
    options = " ".join(["--token-file", "-", *STEPS])
    ran = worker.ssh(f"echo {made['token']} | {{ {made['command']} {options}; }}", "admin", timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{NODE} has joined {SITE}" in ran.stdout
    wait_until(lambda: appliance.is_ready(NODE), within_s=60)


def test_the_figures_of_the_node_reach_the_control_plane(appliance: Appliance) -> None:
    def is_measured() -> bool:
        node = appliance.node(NODE)
        return node is not None and node.usage is not None and bool(node.usage.memory_mib)

    wait_until(is_measured, within_s=60)
    shown = appliance.admins("node", "ls")
    assert NODE in shown.stdout


def test_an_image_of_the_registry_that_the_node_does_not_reach_says_what_to_do(
    appliance: Appliance, worker: Worker
) -> None:
    push_image(appliance.platform, "public/small")
    wanted = SubmitIn(command=["true"], environment="public/small", on={"site": SITE}, memory_mib=64, cpus="0.1")
    ended = appliance.admin.wait(appliance.admin.submit(wanted).workload.id, timeout_s=240)
    assert ended.state == "failed"
    assert ended.reason is not None
    assert f"registry {CONTROL_PLANE}:5000 cannot be reached from {NODE}" in ended.reason.message
    assert "firewall" in ended.reason.message


def test_a_job_runs_on_the_node_with_an_image_of_the_control_planes_registry(
    appliance: Appliance, worker: Worker
) -> None:
    """The node has no account there: its site agent gets a token for this image."""
    assert worker.ssh(f"ip route add {CONTROL_PLANE}/32 via {appliance.swarm.manager.address}").returncode == 0
    inside = appliance.swarm.manager.inside()
    subprocess.run([*inside, "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)
    masquerade = ["iptables", "-t", "nat", "-A", "POSTROUTING", "-o", "eth9", "-j", "MASQUERADE"]
    subprocess.run([*inside, *masquerade], check=True)
    subprocess.run([*inside, "iptables", "-I", "FORWARD", "-j", "ACCEPT"], check=True)
    assert appliance.said_of(NODE, "echo from the clinic", "public/small") == ["from the clinic"]
    assert "registrytoken" not in worker.ssh("cat /var/log/commonage-agent.log").stdout
    assert f"{CONTROL_PLANE}:5000" not in worker.ssh("cat /root/.docker/config.json").stdout


def test_an_unreachable_site_says_how_nodes_can_join_again(appliance: Appliance) -> None:
    appliance.stop()
    wait_until(lambda: next(one.state for one in appliance.admin.sites()) == "disconnected")
    refused = appliance.admins("node", "token", "--site", SITE)
    assert refused.returncode != 0
    for words in ("Site clinic has been unreachable since", "`commonage doctor` on the appliance", "try again"):
        assert words in refused.stderr
    appliance.start()
    wait_until(lambda: next(one.state for one in appliance.admin.sites()) == "connected", within_s=60)
    wait_until(lambda: appliance.is_ready(NODE), within_s=60)


def test_a_node_that_leaves_is_forgotten_by_the_control_plane(appliance: Appliance, worker: Worker) -> None:
    left = worker.ssh("commonage-agent leave", timeout=180)
    assert left.returncode == 0, left.stdout + left.stderr
    assert "the control plane removed this node" in left.stdout
    wait_until(lambda: appliance.node(NODE) is None, within_s=60)
    states = [one["Description"]["Hostname"] for one in appliance.swarm.manager.daemon.ask("GET", "/nodes")]
    assert NODE not in states
