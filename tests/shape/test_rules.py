"""The rules that tools check, each as a test: format, lint (complexity and docstrings with it), types, imports."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)  # mypy without a cache on a slow node
@pytest.mark.parametrize("rule", ["format", "lint", "types", "imports"])
def test_rule_holds(rule: str) -> None:
    result = subprocess.run(["scripts/check", rule], cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.fail(f"scripts/check {rule}\n{result.stdout}{result.stderr}", pytrace=False)
