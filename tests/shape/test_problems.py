"""The table of problem codes is complete: what is raised stands in it, and what stands in it is raised."""

import ast
from functools import cache
from pathlib import Path

from commonage.api.problems import PROBLEMS, document

SOURCE = Path(__file__).parents[2] / "src" / "commonage"
TABLE = SOURCE / "api" / "problems.py"
# Rooms whose errors never reach the API: they show them themselves.
APART = {"cli", "hub", "portal", "sdk", "testing"}
# Met when the server starts or by its own commands, or told between it and its agents; `error` is the root of the tree,
# raised nowhere.
BEFORE_THERE_IS_AN_API = {
    "agents-port",
    "authority",
    "cannot-join",
    "bundle",
    "database-newer",
    "database-outdated",
    "database-unsupported",
    "error",
    "invalid-database-url",
    "invalid-gpu-slots",
    "not-joined",
    "refused",
    "sites-port",
    "unreadable",
}


@cache
def modules() -> list[ast.Module]:
    """Modules that the API reaches, without the table itself."""
    return [
        ast.parse(path.read_text())
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] not in APART and path != TABLE
    ]


def raised() -> set[str]:
    """The codes of the error classes, and those given where an error is raised."""
    codes: set[str] = set()
    for module in modules():
        for node in ast.walk(module):
            if isinstance(node, ast.keyword) and node.arg == "code":
                codes |= strings(node.value)
            elif isinstance(node, ast.ClassDef):
                for line in node.body:
                    target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
                    if isinstance(target, ast.Name) and target.id == "code" and getattr(line, "value", None):
                        codes |= strings(line.value)
    return codes


def strings(node: ast.AST) -> set[str]:
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def test_every_code_that_is_raised_is_described() -> None:
    assert raised() - BEFORE_THERE_IS_AN_API <= set(PROBLEMS), "put them into the table of commonage/api/problems.py"


def test_every_code_that_is_described_is_used() -> None:
    used = {
        node.value
        for module in modules()
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(PROBLEMS) - used == set()


def test_the_reference_has_them_all() -> None:
    page = document()
    assert [code for code in PROBLEMS if f"| `{code}` | {PROBLEMS[code].status} |" not in page] == []
