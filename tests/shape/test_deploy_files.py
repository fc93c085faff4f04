"""The files of deploy/: what they let an admin choose is shown, and what nodes need to join can be said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

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
