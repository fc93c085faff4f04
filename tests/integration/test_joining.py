"""Machines join for real: a Debian of its own with sshd, over SSH and by the script, into a real Swarm.

The machines know nobody but the Swarm's manager, where the control plane runs. What they have to install comes from a
mirror of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.contract.dockerd import minimal_image, new_folder
from tests.contract.swarm import Swarm, swarm_of
from tests.contract.worker import MIRROR, Worker, worker_of
from tests.integration.api_world import until

pytestmark = [pytest.mark.needs("docker", "debootstrap"), pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
STEPS = ("--mirror", f"file:{MIRROR}", "--gpus", "simulated:1x24GiB", "--disk", "1")


@dataclass
class Site:
    """A Swarm of one manager, and the control plane on it."""

    swarm: Swarm
    hub: subprocess.Popen[bytes]
    url: str
    shared: Path

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command line, as an admin types it on the manager."""
        program = str(Path(sys.executable).with_name("commonage"))
        environment = {**os.environ, "COMMONAGE_URL": self.url, "COMMONAGE_TOKEN": "admin:root"}
        return subprocess.run(
            [*self.swarm.manager.inside(), program, *words],
            env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def done(self, *words: str) -> str:
        """What it prints; it must end well."""
        ran = self.command(*words)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def join(self, worker: Worker, *more: str, user: str = "admin") -> str:
        """`commonage node join`."""
        return self.done("node", "join", f"{user}@{worker.address}", *self.access(worker), *STEPS, *more)

    def access(self, worker: Worker) -> tuple[str, str]:
        return "--ssh-config", str(worker.ssh_config)

    def script(self, *more: str) -> str:
        """The command that a person types on a machine."""
        made = json.loads(self.done("node", "token", "--for", "10m", "--json"))
        return f"curl -fsS {made['url']} | sudo sh -s -- {made['token']} {' '.join([*STEPS, *more])}"

    def heard(self) -> dict[str, Any]:
        """What the agents said last, by machine."""
        assert self.hub.stdin is not None and self.hub.stdout is not None
        self.hub.stdin.write(b"\n")
        self.hub.stdin.flush()
        return {one["node"]: one for one in json.loads(self.hub.stdout.readline())}

    def states(self, name: str) -> list[str]:
        """What the Swarm says of all machines of this name."""
        nodes = self.swarm.manager.daemon.ask("GET", "/nodes")
        return [one["Status"]["State"] for one in nodes if one["Description"]["Hostname"] == name]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    folder, shared = new_folder(), new_folder()
    with ExitStack() as closing:
        for one in (folder, shared):
            closing.callback(shutil.rmtree, one, ignore_errors=True)
        swarm = closing.enter_context(swarm_of(0))
        manager = swarm.manager
        program = [sys.executable, "-m", "tests.integration.join_hub", str(folder), str(shared)]
        hub = swarm.run_in(
            "manager", *program, manager.daemon.url, manager.address,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert hub.stdin is not None and hub.stdout is not None
        closing.callback(hub.wait, 30)
        closing.callback(hub.stdin.close)
        yield Site(swarm, hub, json.loads(hub.stdout.readline())["url"], shared)


@pytest.fixture(scope="module")
def new_worker(site: Site) -> Iterator[Callable[[str, int], Worker]]:
    with ExitStack() as closing:
        yield lambda name, number: closing.enter_context(worker_of(site.swarm, name, number, site.shared))


@pytest.fixture(scope="module")
def worker(new_worker: Callable[[str, int], Worker]) -> Worker:
    """A machine that the tests below take through its life, in their order."""
    return new_worker("worker1", 11)


def what_is_there(worker: Worker) -> str:
    """All that joining could change: files, mounts, who runs since when, the Swarm, the firewall."""
    look = """
        find /etc /usr/local /var/lib/commonage-agent /root/.docker -type f ! -name 'report*' 2>/dev/null |
            sort | xargs sha256sum
        find /etc /usr/local -type f -printf '%p %T@ %m\\n' | sort
        mount | grep -v overlay2 | grep -v /run/docker
        for name in dockerd python3; do
            for pid in $(grep -l "^Name:.$name" /proc/[0-9]*/status 2>/dev/null | cut -d / -f 3); do
                echo "$name $pid $(cut -d ' ' -f 22 /proc/$pid/stat)"
            done
        done
        docker info --format '{{json .Swarm}}' 2>/dev/null
        dpkg-query -W
    """
    seen = worker.ssh(look)
    return seen.stdout


def test_a_plan_shows_all_and_changes_nothing(site: Site, worker: Worker) -> None:
    before = what_is_there(worker)
    said = site.join(worker, "--plan")
    for line in ("install openssl", "join the Swarm of 10.98.0.1:2377", "/etc/docker/daemon.json", "at /scratch"):
        assert line in said
    assert "Nothing was changed." in said
    assert what_is_there(worker) == before
    assert not site.states("worker1")


def test_one_command_over_ssh_and_the_machine_has_joined(site: Site, worker: Worker) -> None:
    said = site.join(worker, "--label", "zone=north")
    assert "worker1 has joined Test site" in said
    assert "tools        changed" in said, "openssl was not there, and comes from the mirror"
    assert site.states("worker1") == ["ready"]
    (resource,) = site.swarm.nodes()["worker1"]["Description"]["Resources"]["GenericResources"]
    assert resource["DiscreteResourceSpec"] == {"Kind": "VRAM", "Value": 24576}
    heard = site.heard()["worker1"]
    assert (heard["connected"], heard["devices"], heard["labels"]["zone"]) == (True, 1, "north")
    settings = json.loads(worker.ssh("cat /etc/docker/daemon.json").stdout)
    assert settings["no-new-privileges"] is True
    trusted = worker.ssh("cat /etc/docker/certs.d/10.98.0.1:8445/ca.crt").stdout
    assert trusted == worker.ssh("cat /etc/commonage/ca.crt").stdout
    logins = json.loads(worker.ssh("cat /root/.docker/config.json").stdout)
    assert logins["auths"] == {"10.98.0.1:8445": {"auth": "bWFjaGluZTpzZWNyZXQ="}}
    modes = worker.ssh("stat -f -c %T /scratch; stat -c %a /etc/commonage/agent.key /root/.docker/config.json")
    assert modes.stdout.split() == ["tmpfs", "600", "600"]


def test_the_same_again_changes_nothing(site: Site, worker: Worker) -> None:
    before = what_is_there(worker)
    said = site.join(worker, "--label", "zone=north", user="root")
    assert "Nothing to do: worker1 has joined Test site already" in said
    assert what_is_there(worker) == before


def test_what_joined_runs_containers_with_what_it_has(site: Site, worker: Worker) -> None:
    (site.shared / "image.tar").write_bytes(minimal_image())
    assert worker.ssh(f"docker import {site.shared}/image.tar commonage-test:1").returncode == 0
    vram = {"DiscreteResourceSpec": {"Kind": "VRAM", "Value": 24000}}
    service = {
        "Name": "asks-much",
        "TaskTemplate": {
            "ContainerSpec": {
                "Image": "commonage-test:1",
                "Command": ["/usr/bin/grep", "NoNewPrivs", "/proc/self/status"],
            },
            "RestartPolicy": {"Condition": "none"},
            "Placement": {"Constraints": ["node.hostname==worker1"]},
            "Resources": {"Reservations": {"GenericResources": [vram]}},
        },
    }
    made = site.swarm.manager.daemon.ask("POST", "/services/create", service)
    try:
        ended = wait_for(lambda: states_of(site, made["ID"]) & {"complete", "failed", "rejected"})
        assert ended == {"complete"}
    finally:
        site.swarm.manager.daemon.ask("DELETE", f"/services/{made['ID']}")


def test_the_agent_is_started_again_when_it_dies(site: Site, worker: Worker) -> None:
    # The brackets keep the shell that looks from finding itself.
    assert worker.ssh("kill -9 $(pgrep --full '[c]ommonage.agent run')").returncode == 0
    wait_for(lambda: not site.heard()["worker1"]["connected"])
    wait_for(lambda: site.heard()["worker1"]["connected"])


def test_the_script_does_the_same(site: Site, new_worker: Callable[[str, int], Worker]) -> None:
    other = new_worker("worker2", 12)
    first = other.ssh(site.script(), "admin")
    assert "worker2 has joined Test site" in first.stdout, first.stdout + first.stderr
    before = what_is_there(other)
    again = other.ssh(site.script(), "admin")
    assert "Nothing to do: worker2 has joined Test site already" in again.stdout
    assert what_is_there(other) == before
    assert set(site.heard()) == {"worker1", "worker2"}


def test_a_revoked_token_and_one_of_another_site_are_refused(site: Site, worker: Worker) -> None:
    command = site.script()
    site.done("node", "token", "--revoke")
    refused = worker.ssh(command, "admin")
    assert refused.returncode != 0
    assert "all tokens were revoked since" in refused.stdout + refused.stderr


def test_a_machine_that_is_removed_is_not_let_in_until_it_joins_again(site: Site, worker: Worker) -> None:
    said = site.done("node", "rm", "worker1")
    assert "certificate is revoked" in said and "put out of the Swarm" in said
    wait_for(lambda: not site.heard().get("worker1", {"connected": False})["connected"])
    assert not site.states("worker1")
    assert "was removed from this site" in wait_for(lambda: refusal(worker))
    again = site.join(worker, "--label", "zone=north")
    assert "changed: swarm, certificate, agent." in again
    assert site.states("worker1") == ["ready"]


def test_leaving_takes_everything_back(site: Site, worker: Worker) -> None:
    said = site.done("node", "leave", f"admin@{worker.address}", *site.access(worker))
    assert "Left." in said
    assert worker.ssh("docker info --format '{{.Swarm.LocalNodeState}}'").stdout.strip() == "inactive"
    left = worker.ssh("ls -d /etc/commonage /etc/init.d/commonage-agent /scratch/* /etc/docker/certs.d/*; iptables -S")
    assert "commonage" not in left.stdout.lower()
    assert not worker.ssh("grep commonage /etc/fstab").stdout
    wait_for(lambda: not site.heard()["worker1"]["connected"])
    again = site.done("node", "leave", f"admin@{worker.address}", *site.access(worker))
    assert "Nothing to do" in again


def test_a_machine_that_vanished_is_replaced_by_what_a_cloud_starts(
    site: Site, new_worker: Callable[[str, int], Worker]
) -> None:
    data = yaml.safe_load(site.done("node", "template", "--for", "10m", *STEPS))
    first = new_worker("worker3", 13)
    assert "worker3 has joined Test site" in boot_with(first, site.shared, data)
    first.vanish()
    wait_for(lambda: "ready" not in site.states("worker3"))
    first.remove()
    second = new_worker("worker3", 13)
    assert "worker3 has joined Test site" in boot_with(second, site.shared, data)
    assert site.states("worker3") == ["ready"], "the one that vanished is forgotten"
    assert site.heard()["worker3"]["connected"]


def test_a_template_without_cloud_init_is_a_script_with_a_token(site: Site) -> None:
    script = site.done("node", "template", "--shell", "--scratch", "off")
    assert script.splitlines()[-1].startswith("main cmj1.")
    assert script.splitlines()[-1].endswith(" --scratch=off")
    checked = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr


def boot_with(worker: Worker, shared: Path, data: Any) -> str:
    """Do what cloud-init does with these user data at a first start; gives the log."""
    for file in data["write_files"]:
        (shared / "brought").write_text(file["content"])
        target = file["path"]
        worker.ssh(f"mkdir -p $(dirname {target}) && install -m {file['permissions']} {shared}/brought {target}")
    (shared / "brought").unlink()
    for command in data["runcmd"]:
        worker.ssh(command)
    assert worker.ssh("ls /run/commonage").stdout.split() == ["join.sh"], "the token does not stay"
    return worker.ssh("cat /var/log/commonage-join.log").stdout


def refusal(worker: Worker) -> str:
    """What the agent says of being refused, empty until it does."""
    return worker.ssh("grep 'was removed from this site' /var/log/commonage-agent.log | tail -n 1").stdout


def states_of(site: Site, service: str) -> set[str]:
    found = json.dumps({"service": [service]})
    tasks = site.swarm.manager.daemon.ask("GET", f"/tasks?filters={found.replace(' ', '')}")
    return {one["Status"]["State"] for one in tasks}


def wait_for(condition: Callable[[], Any], seconds: float = 40) -> Any:
    """What it says, once that is something."""
    import asyncio

    last: list[Any] = []

    def holds() -> bool:
        last[:] = [condition()]
        return bool(last[0])

    asyncio.run(until(holds, seconds))
    return last[0]
