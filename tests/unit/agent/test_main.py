"""The agent's program: its verbs, and what it says of settings that cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commonage.agent import run
from commonage.agent.__main__ import main
from commonage.agent.config import AgentConfig, config_text


def test_unknown_verb_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["dance"]) == 2
    assert "run" in capsys.readouterr().err


def test_invalid_settings_are_reported_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--config", str(tmp_path / "none.toml")]) == 2
    assert "joining a site writes this file" in capsys.readouterr().err
    file = tmp_path / "agent.toml"
    about = AgentConfig("w1", ("hub:1",), "a", "b", "c", "d", str(tmp_path / "state"), docker="tcp://far:2375")
    file.write_text(config_text(about))
    assert run.main(["--config", str(file)]) == 2
    assert "the daemon of its own node" in capsys.readouterr().err


def test_stops_on_sigterm_without_daemon_and_control_plane(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    about = AgentConfig(
        "w1", ("127.0.0.1:1",), "a", "b", "c", "d", str(tmp_path / "state"), docker=f"unix://{tmp_path}/none",
        gpus="none", firewall=False,
    )  # fmt: skip
    file.write_text(config_text(about))
    command = [sys.executable, "-m", "commonage.agent", "run", "--config", str(file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as program:
        assert program.stderr is not None
        said = ""
        while "dialling again" not in said:
            line = program.stderr.readline()
            assert line, said
            said += line
        program.terminate()
        assert program.wait(30) == 0
