#!/usr/bin/env python
"""Writes docs/reference from the code: the API, the command line, the settings, the metrics, the problem codes.

`make docs` calls it. With --check it writes nothing, names what is out of date, and ends with status 1; that is how
tests/shape calls it.
"""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
from commonage.api.app import describe
from commonage.cli import main as commonage
from commonage.server.settings_show import reference
from commonage.telemetry.series import SERIES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "commonage"
REFERENCE = ROOT / "docs" / "reference"
NOTE = "<!-- Made from the code by `make docs`; change the code, not this page. -->\n"


def openapi() -> str:
    """Return the description of the API, as the server itself gives it."""
    return json.dumps(describe(), indent=2, ensure_ascii=False) + "\n"


def command_line() -> str:
    """Return a page with the help of every verb, as the terminal shows it at 100 columns."""
    parts = [NOTE, "# Command line\n"]
    for path, command in _commands(("commonage",), commonage):
        context = click.Context(command, info_name=" ".join(path), terminal_width=100, max_content_width=100)
        parts.append(f"## {' '.join(path)}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def _commands(path: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            verb = command.get_command(context, name)
            if verb is not None and not verb.hidden:
                yield from _commands((*path, name), verb)


def settings() -> str:
    """Return a page with every setting: its variable, its default, what it does."""
    return NOTE + "\n" + reference()


def metrics() -> str:
    """Return a page with every series of /metrics."""
    parts = [NOTE, "# Metrics\n", "How to scrape them: [add a metric](../howto/add-a-metric.md).\n"]
    parts += ["| series | type | labels | what it is |", "|---|---|---|---|"]
    for series in SERIES:
        labels = ", ".join(f"`{label}`" for label in series.labels)
        parts.append(f"| `{series.name}` | {series.kind} | {labels} | {_cell(series.help)} |")
    return "\n".join(parts) + "\n"


class Problem(NamedTuple):
    """A problem code and where the code raises it."""

    code: str
    error: str
    sentence: str


def problems() -> str:
    """Return a page with every problem code and the sentence that comes with it; {…} is filled in."""
    parts = [NOTE, "# Problem codes\n", "| `code` | kind | sentence |", "|---|---|---|"]
    seen: dict[str, Problem] = {}
    for problem in sorted(_problems()):
        seen.setdefault(problem.code, problem)
    parts += [f"| `{found.code}` | {found.error} | {_cell(found.sentence)} |" for found in seen.values()]
    return "\n".join(parts) + "\n"


def _problems() -> Iterator[Problem]:
    """Find the codes in the source: those of the error classes, and those given where an error is raised."""
    for path in sorted(SOURCE.rglob("*.py")):
        if "testing" in path.relative_to(SOURCE).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and path.name == "errors.py" and path.parent.name == "domain":
                yield from _class_problem(node)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield from _raised_problem(node, node.func.id)


def _class_problem(node: ast.ClassDef) -> Iterator[Problem]:
    for line in node.body:
        target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
        value = getattr(line, "value", None)
        if isinstance(target, ast.Name) and target.id == "code" and isinstance(value, ast.Constant):
            yield Problem(value.value, node.name, (ast.get_docstring(node) or "").splitlines()[0])


def _raised_problem(node: ast.Call, error: str) -> Iterator[Problem]:
    for keyword in node.keywords:
        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str):
            yield Problem(keyword.value.value, error, _sentence(node.args[0]) if node.args else "")


def _sentence(node: ast.expr) -> str:
    """Return the text of a message with {…} for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_sentence(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _sentence(node.left) + _sentence(node.right)
    return "{…}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[str, Any] = {
    "cli.md": command_line,
    "metrics.md": metrics,
    "openapi.json": openapi,
    "problems.md": problems,
    "settings.md": settings,
}


def main(arguments: list[str]) -> int:
    """Write the pages, or with --check compare them."""
    stale = []
    for name, make in PAGES.items():
        path, text = REFERENCE / name, make()
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for name in stale:
        print(f"docs/reference/{name}: {'out of date, run: make docs' if '--check' in arguments else 'written'}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
