"""The threat model names the test of each defence: each is there, and no file of the suite is left out."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "tests" / "security"
TEXT = (ROOT / "docs" / "operate" / "security.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", TEXT)))


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_that_the_threat_model_names_is_there(file: str, name: str) -> None:
    assert name in functions_of(SUITE / file)


@pytest.mark.parametrize("path", sorted(SUITE.glob("test_*.py")), ids=lambda path: path.name)
def test_every_file_of_the_suite_defends_something_in_the_threat_model(path: Path) -> None:
    assert path.name in {file for file, _ in NAMED}
