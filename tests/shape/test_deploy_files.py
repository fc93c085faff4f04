"""The files of deploy/: what they let an admin choose is shown, and what they run is what the command line has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from configparser import ConfigParser
from pathlib import Path

import click
import pytest
import yaml

from commonage.cli.app import app
from commonage.server.settings.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted(path.relative_to(DEPLOY).as_posix() for path in DEPLOY.glob("*/*.yaml"))
NOT_FOR_ADMINS = {"COMMONAGE_ENGINE"}  # of the stack: the tests take another one where there is no Swarm to work on


@pytest.mark.parametrize("name", FILES)
def test_each_variable_is_shown_in_the_example(name: str) -> None:
    used = set(re.findall(r"\$\{(COMMONAGE_\w+)", (DEPLOY / name).read_text()))
    shown = set(re.findall(r"COMMONAGE_\w+", (DEPLOY / "compose" / "env.example").read_text()))
    assert used - shown - NOT_FOR_ADMINS == set()


def test_a_stack_can_be_told_how_other_nodes_reach_it() -> None:
    stack = yaml.safe_load((DEPLOY / "swarm" / "stack.yaml").read_text())
    assert "COMMONAGE_SITE_ADDRESS" in stack["services"]["control"]["environment"]
    assert "COMMONAGE_SITE_ADDRESS" in (DEPLOY.parent / "docs" / "operate" / "deploy.md").read_text()


def check_command(words: Sequence[str]) -> None:
    """Fail if `commonage` has no such command, or not with these arguments."""
    command: click.Command = app
    context, left = click.Context(app), list(words)
    while isinstance(command, click.Group) and left and not left[0].startswith("-"):
        found = command.get_command(context, left.pop(0))
        assert found is not None, f"commonage {shlex.join(words)}"
        command = found
    command.make_context("commonage", left)


def test_composed_services_run_commands_and_settings_that_exist() -> None:
    for name in FILES:
        for service in (yaml.safe_load((DEPLOY / name).read_text()).get("services") or {}).values():
            given = service.get("environment") or {}
            if not str(service.get("image")).startswith("commonage:") or "entrypoint" in service:
                continue
            command = service["command"]
            check_command(command.split() if isinstance(command, str) else command)
            known = {f"COMMONAGE_{field.upper()}" for field in Settings.model_fields}
            assert {one for one in given if one.startswith("COMMONAGE_")} <= known, name


UNIT = DEPLOY / "systemd" / "commonage-site-agent.service"


def test_unit_of_the_site_agent_runs_a_command_that_exists() -> None:
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # its names have capitals
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert Path(program).name == "commonage"
    check_command(words)
    assert service["KillMode"] == "process", "workloads outlive the agent"
    assert (service["Restart"], service["Delegate"]) == ("always", "yes")


def test_documentation_names_the_files_of_the_site_agent_and_joins_where_they_look() -> None:
    page = (DEPLOY.parent / "docs" / "operate" / "appliances.md").read_text()
    for path in ("deploy/systemd/commonage-site-agent.service", "deploy/compose/site-agent.yaml"):
        text = (DEPLOY.parent / path).read_text()
        assert path in page
        [join] = re.findall(r"commonage (site join .*)|site-agent (site join [^<\n]*)", text)
        words = shlex.split(next(filter(None, join)).replace("FILE", "-"))
        check_command(words)
        assert "/var/lib/commonage" in text
