"""The agent in a container: what it must see before it joins, and what it does where it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.agent.steps.test_steps import JOIN_CONFIG, FakeHost

from commonage.agent import join_and_run
from commonage.agent.config import CERTIFICATE, STATE, read_config
from commonage.agent.join_and_run import Settings, SharedFolder, SwarmMembership, Visibility, main, token_in
from commonage.agent.steps.credentials import Registry
from commonage.agent.steps.step import JoinContext, Options, State
from commonage.join.client import JoinRefused
from commonage.join.config import MARK_FILE, JoinConfig


class FakeJoinClient:
    """A Swarm with these nodes: state by id."""

    def __init__(self, **swarm: str) -> None:
        self.swarm = swarm

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"connected": False, "revoked": False, "taken": "", "swarm": self.swarm.get(body["node_id"], "")}


def context_of(join_config: JoinConfig = JOIN_CONFIG, **swarm: str) -> JoinContext:
    return JoinContext(FakeHost(), join_config, FakeJoinClient(**swarm), Options("gpu-1"))  # type: ignore[arg-type]  # the door, too


def join_config_with(**fields: Any) -> JoinConfig:
    return JoinConfig(**{**JOIN_CONFIG.to_json(), **fields})


def test_container_must_see_processes_and_dockers_folder(tmp_path: Path) -> None:
    info = {"Name": "gpu-1", "DockerRootDir": str(tmp_path)}
    assert Visibility(info, (1, 0)).check(context_of()).message.endswith("(pid: host)")
    assert Visibility(info, (7, 1)).check(context_of()).state is State.BLOCKED
    assert "COMMONAGE_DOCKER_ROOT" in Visibility(info, (70, 69)).check(context_of()).message
    (tmp_path / "containers").mkdir()
    assert Visibility(info, (70, 69)).check(context_of()).state is State.DONE


def test_node_must_be_ready_in_the_swarm() -> None:
    info = {"Swarm": {"NodeID": "n1"}}
    assert SwarmMembership(info).check(context_of(n1="ready")).state is State.DONE
    assert "state: down" in SwarmMembership(info).check(context_of(n1="down")).message
    assert "docker swarm join-token worker" in SwarmMembership(info).check(context_of(n2="ready")).message
    assert SwarmMembership({"Swarm": {"NodeID": ""}}).check(context_of(n2="ready")).state is State.BLOCKED


def test_shared_folder_must_be_the_sites(tmp_path: Path) -> None:
    context = context_of(join_config_with(shared_dir=str(tmp_path), mark="m"))
    assert "COMMONAGE_SHARED_DIR" in SharedFolder().check(context).message
    (tmp_path / MARK_FILE).write_text("other\n")
    assert "another site" in SharedFolder().check(context).message
    (tmp_path / MARK_FILE).write_text("m\n")
    assert SharedFolder().check(context).state is State.DONE


def test_settings_and_logins_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SETTINGS", "LOGINS"):
        monkeypatch.setattr(join_and_run, name, tmp_path / name)
    monkeypatch.setattr("commonage.agent.steps.credentials.CERTIFICATES", tmp_path / "certs.d")
    monkeypatch.setattr("commonage.agent.steps.credentials.REGISTRY_LOGIN", tmp_path / "registry-login")
    (tmp_path / "registry-login").write_text("node@gpu-1:pw")
    context = context_of(join_config_with(registry="hub:5000", agent={"cpu_hold": "quota"}))
    for step in (Registry(tmp_path / "LOGINS"), Settings("unix:///host/run/docker.sock")):
        assert step.check(context).state is State.NEEDED
        step.apply(context)
        assert step.check(context).state is State.DONE
    config = read_config(tmp_path / "SETTINGS")
    assert (config.docker, config.docker_config) == ("unix:///host/run/docker.sock", str(tmp_path / "LOGINS"))
    assert (config.node, config.shared, config.cpu_hold) == ("gpu-1", "/s", "quota")
    assert (config.certificate, config.state) == (str(CERTIFICATE), str(STATE))
    assert "hub:5000" in json.loads((tmp_path / "LOGINS").read_text())["auths"]
    assert (tmp_path / "certs.d/hub:5000/ca.crt").read_text() == "PEM"


@pytest.mark.parametrize(
    ("printed", "token"),
    [
        ("cmj1.eyJ-w_d.s1g", "cmj1.eyJ-w_d.s1g"),
        ('{"token": "cmj1.a.b", "url": "https://hub/join"}', "cmj1.a.b"),
        ("On the node:\n\ncurl -fsS https://hub/join | sudo sh -s -- cmj1.a.b\n", "cmj1.a.b"),
        ("", ""),
        ("cmj1.half", ""),
    ],
)
def test_finds_the_token_in_printed_output(printed: str, token: str) -> None:
    assert token_in(printed) == token


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The arguments of the agent; its files are in a folder of the test's."""
    calls: list[list[str]] = []
    for name in ("SETTINGS", "JOINED"):
        monkeypatch.setattr(join_and_run, name, tmp_path / name)
    monkeypatch.setattr(join_and_run.run, "main", lambda words: calls.append(list(words)) or 0)
    return calls


def test_fails_without_token_and_earlier_join(
    tmp_path: Path, ran: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--token-file", str(tmp_path / "none")]) == 1
    assert "contains no join token" in capsys.readouterr().out
    assert main(["--token-file", str(tmp_path)]) == 1  # what Docker makes of a file that is not there
    assert "cannot be read" in capsys.readouterr().out
    assert not ran


def test_expired_token_is_ignored_after_a_join(
    tmp_path: Path, ran: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def expired(*_: object) -> str:
        raise JoinRefused("the token expired")

    monkeypatch.setattr(join_and_run, "authority_of", expired)
    file = tmp_path / "token"
    file.write_text("cmj1.a.b")
    assert main(["--token-file", str(file)]) == 1
    (tmp_path / "SETTINGS").touch()
    assert main(["--token-file", str(file)]) == 0
    assert "the token expired; it keeps the settings of its last join" in capsys.readouterr().out
    assert ran == [["--config", str(tmp_path / "SETTINGS")]]


def test_joins_once_per_token(tmp_path: Path, ran: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[str] = []
    monkeypatch.setattr(join_and_run, "_join", lambda host, token, asked: joined.append(token) or "")
    (tmp_path / "SETTINGS").touch()
    file = tmp_path / "token"
    for token in ("cmj1.a.b", "cmj1.a.b", "cmj1.a.c"):
        file.write_text(token)
        assert main(["--token-file", str(file)]) == 0
    assert joined == ["cmj1.a.b", "cmj1.a.c"]
    assert len(ran) == 3
