"""`commonage ssh` trusts neither the name of a workload nor what it says."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from commonage.cli.app import app
from commonage.cli.workloads import ssh
from commonage.sdk.execs import Executed

ID = "0123456789abcdef0123456789"
URL = "https://gpu.example.org/a b;%h"


class Machine:
    """The user's machine: what `commonage ssh` prints, and what it runs."""

    def __init__(self) -> None:
        self.name = "train"
        self.answer = Executed(0, b"root\n", b"")
        self.ran: list[str] = []

    def run(self, *arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["ssh", "--url", URL, *arguments])
        return done.exit_code, done.output


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    here = Machine()

    @contextmanager
    def connect(_server: object) -> Iterator[object]:
        yield SimpleNamespace(execute=lambda *_arguments: here.answer)

    def execute(program: str, arguments: list[str], _environment: object) -> None:
        here.ran = arguments

    config = tmp_path / "my config"
    (config / "commonage" / "ssh").mkdir(parents=True)
    for name in ("id_ed25519", "id_ed25519.pub"):
        (config / "commonage" / "ssh" / name).write_text("ssh-ed25519 x\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    monkeypatch.setenv("COMMONAGE_TOKEN", "t")
    monkeypatch.setattr(ssh, "connect", connect)
    monkeypatch.setattr(ssh, "find_workload", lambda *_: SimpleNamespace(id=ID, name=here.name))
    monkeypatch.setattr(shutil, "which", lambda name: f"/opt/my programs/{name}")
    monkeypatch.setattr(os, "execve", execute)
    return here


@pytest.mark.parametrize("name", ["$(curl evil|sh)", "* x", "-oKnownHostsCommand=x", "a\nProxyCommand x", "", "é"])
def test_a_name_that_ssh_or_a_shell_could_obey_is_not_used(machine: Machine, name: str) -> None:
    machine.name = name
    code, config = machine.run("--config", "x")
    assert (code, config.splitlines()[0]) == (0, f"Host {ID}.commonage")
    assert not name or name not in config
    machine.run("x", "date")
    assert machine.ran[-3:] == ["--", f"{ID}.commonage", "date"]
    assert not name or not any(name in one for one in machine.ran)


@pytest.mark.parametrize(
    "said", ["root\nHost *\n  ProxyCommand x", "-oProxyCommand=x", "a b", "$(x)", "", "r\x1b[2J", "root\n\n"]
)
def test_a_user_that_is_no_name_of_a_user_is_refused(machine: Machine, said: str) -> None:
    machine.answer = Executed(0, f"{said}\n".encode(), b"")
    for arguments in (["--config", "x"], ["x"]):
        code, output = machine.run(*arguments)
        assert code == 1 and "no name of a user" in output and "Host " not in output.splitlines()
        assert "\x1b" not in output and not machine.ran


def test_paths_and_addresses_are_quoted_for_ssh_and_the_shell(machine: Machine, tmp_path: Path) -> None:
    _, config = machine.run("--config", "x")
    lines = dict(line.strip().split(" ", 1) for line in config.splitlines())
    assert (lines["Host"], lines["User"]) == ("train.commonage", "root")
    command = lines["ProxyCommand"].replace("%%", "%")
    assert shlex.split(command) == ["/opt/my programs/commonage", "ssh", "--stdio", "--url", URL, "train"]
    assert "%" not in lines["ProxyCommand"].replace("%%", "")
    assert lines["IdentityFile"] == f'"{tmp_path}/my config/commonage/ssh/id_ed25519"'


def test_what_a_workload_says_does_not_control_the_terminal(machine: Machine) -> None:
    machine.answer = Executed(127, b"", b"no \x1b]0;x\x07sshd\nadd it\n")
    _, output = machine.run("x")
    assert "\x1b" not in output and "\x07" not in output and "sshd\nadd it" in output
