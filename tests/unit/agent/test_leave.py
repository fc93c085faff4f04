"""Leaving, on a fake node of files: the order of the steps, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.agent.steps.test_steps import FakeHost

from commonage.agent import leave
from commonage.agent.config import AgentConfig, config_text
from commonage.agent.leave import DONE, FAILED, main
from commonage.agent.steps import storage as steps_storage
from commonage.agent.steps.host import StepFailed
from commonage.link import messages

WORKER = '{"LocalNodeState": "active", "ControlAvailable": false}'
MANAGER = '{"LocalNodeState": "active", "ControlAvailable": true}'
DOCKER = {"docker ps": "", "docker info": WORKER, "docker swarm leave": "", "umount": ""}


class Node(FakeHost):
    """One that has joined: its agent runs, its firewall stand, /scratch is mounted. `did` is what was done, in
    order.
    """

    def __init__(self, message: dict[str, str]) -> None:
        super().__init__(("docker", "iptables"), message)
        self.firewall = True

    @property
    def did(self) -> list[str]:
        return [one for one in self.ran if one.startswith(("docker swarm", "umount", "firewall", "service"))]

    def service(self, verb: str, service: str) -> None:
        self.ran.append(f"service {verb}")

    def mounted(self, path: Path) -> str | None:
        return "tmpfs"

    def exists(self) -> bool:
        return self.firewall

    def remove(self) -> None:
        self.ran.append("firewall down")
        self.firewall = False


NodeWith = Callable[..., Node]


@pytest.fixture
def node_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> NodeWith:
    """Makes the node, with other outputs of commands (None: the command fails). Its files are in `tmp_path`."""

    def make(**message: str | None) -> Node:
        outputs = DOCKER | {name.replace("_", " "): output for name, output in message.items()}
        node = Node({name: output for name, output in outputs.items() if output is not None})
        for name in ("HOME", "STATE", "PROGRAMS", "UNIT", "SCRIPT", "COMMAND"):
            monkeypatch.setattr(leave, name, tmp_path / name)
        (tmp_path / "HOME").mkdir(exist_ok=True)
        (tmp_path / "fstab").write_text("proc /proc proc defaults 0 0\ntmpfs /scratch tmpfs size=1G 0 0 # commonage\n")
        monkeypatch.setattr(steps_storage, "FSTAB", tmp_path / "fstab")
        monkeypatch.setattr(leave, "Host", lambda: node)
        monkeypatch.setattr(leave, "Firewall", lambda: node)
        monkeypatch.setattr(leave, "is_running", lambda host: True)
        monkeypatch.setattr("os.geteuid", lambda: 0)
        return node

    return make


@pytest.fixture
def joined(tmp_path: Path) -> None:
    """The agent's settings exist; the certificate that they name does not, so no connection is possible."""
    paths = {name: str(tmp_path / name) for name in ("certificate", "key", "request", "authority")}
    (tmp_path / "HOME").mkdir()
    (tmp_path / "HOME/agent.toml").write_text(config_text(AgentConfig("gpu-7", ("10.0.0.1:8444",), **paths)))


def test_firewall_is_removed_after_all_workloads_ended(node_with: NodeWith, tmp_path: Path) -> None:
    node = node_with(docker_ps="c1\n")
    assert main(["--force"]) == DONE
    assert node.did == ["service stop", "docker swarm leave --force", "firewall down", "umount /scratch"]
    assert (tmp_path / "fstab").read_text() == "proc /proc proc defaults 0 0\n"
    assert not (tmp_path / "HOME").exists()


def refused(node: Node, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The output of a refusal, which must have changed nothing."""
    assert main(words) == FAILED
    assert node.did == []
    return capsys.readouterr().out


def test_refuses_when_docker_does_not_answer(node_with: NodeWith, capsys: pytest.CaptureFixture[str]) -> None:
    node = node_with(docker_ps=None)
    for words in ((), ("--force",)):
        said = refused(node, capsys, *words)
        assert "Docker does not answer" in said
        assert "systemctl start docker" in said


def test_ends_workloads_only_with_force(node_with: NodeWith, capsys: pytest.CaptureFixture[str]) -> None:
    node = node_with(docker_ps="c1\nc2\n")
    assert "2 workloads are running" in refused(node, capsys)


@pytest.mark.parametrize(("running", "availability"), [("", "active\n"), ("c1\n", "pause\n")])
def test_manager_must_be_unschedulable_and_drained(
    node_with: NodeWith, capsys: pytest.CaptureFixture[str], running: str, availability: str
) -> None:
    message = {"docker_info": MANAGER, "docker_ps": running, "docker_node_inspect_self": availability}
    node = node_with(**message)
    assert "docker node update --availability pause" in refused(node, capsys, "--force")


def test_manager_without_work_leaves_the_site_but_not_the_swarm(node_with: NodeWith) -> None:
    node = node_with(docker_info=MANAGER, docker_node_inspect_self="drain\n")
    assert main([]) == DONE
    assert node.did == ["service stop", "firewall down", "umount /scratch"]


def test_busy_mount_is_unmounted_by_the_next_run(node_with: NodeWith, capsys: pytest.CaptureFixture[str]) -> None:
    busy = node_with(umount=None)
    assert main([]) == FAILED
    assert "`umount /scratch` failed" in capsys.readouterr().out
    assert steps_storage.managed_mounts(busy) == ["/scratch"]
    del busy
    free = Node(DOCKER)
    assert any("unmounted /scratch" in line for line in leave.leave(free))
    assert steps_storage.managed_mounts(free) == []


@pytest.mark.usefixtures("joined")
def test_notifies_the_control_plane_before_removing_the_certificate(
    node_with: NodeWith, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = node_with(docker_ps="c1\n")

    async def ask(_dialler: object, call: object, _question: object) -> None:
        assert call is messages.LEFT
        assert (tmp_path / "HOME/agent.toml").exists()
        node.ran.append("service told")

    monkeypatch.setattr(leave.ControlPlaneConnection, "request", ask)
    assert main(["--force"]) == DONE
    assert node.did[-2:] == ["umount /scratch", "service told"]
    assert "the control plane removed this node" in capsys.readouterr().out
    assert not (tmp_path / "HOME").exists()


@pytest.mark.usefixtures("joined")
def test_leaves_without_the_control_plane_and_says_what_remains(
    node_with: NodeWith, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node_with()
    assert main([]) == DONE
    said = capsys.readouterr().out
    assert "could not be notified: the control plane cannot be reached at 10.0.0.1:8444" in said
    assert "commonage node rm" in said
    assert not (tmp_path / "HOME").exists()


@pytest.mark.usefixtures("joined")
def test_does_not_notify_while_a_workload_is_alive(
    node_with: NodeWith, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node_with(docker_ps="c1\n")
    monkeypatch.setattr(leave, "end_processes", lambda *_: {"c1"})
    assert main(["--force"]) == FAILED
    said = capsys.readouterr().out
    assert "1 containers cannot be killed: restart this machine" in said
    assert "control plane" not in said
    assert (tmp_path / "HOME/agent.toml").exists()


def test_fails_when_docker_dies_while_leaving(node_with: NodeWith, tmp_path: Path) -> None:
    node = node_with(docker_info=None)
    with pytest.raises(StepFailed, match="docker info"):
        leave.leave(node)
    assert (tmp_path / "HOME").exists()
