#!/usr/bin/env python
"""Writes docs/reference from the code: the API, command line, settings, metrics,
permissions, problem codes and reasons.

`make docs` calls it before it builds the site. With --check it writes nothing, names what is out of date, and ends
with status 1; that is how tests/shape calls it.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import click

from commonage.api.app import describe
from commonage.api.problems import document
from commonage.cli import main as commonage
from commonage.engines.kubernetes.tenants.rbac import reference as kubernetes_access
from commonage.messages.permissions import reference as permissions_reference
from commonage.messages.reference import reference as reasons_reference
from commonage.metrics.series import SERIES
from commonage.resources.reference import reference as resources_reference
from commonage.resources.schema import schema
from commonage.server.settings.settings import reference

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
_COMMON_FROM = 8  # commands
NOTE = "<!-- Made from the code by `make docs`; change the code, not this page. -->\n"


def openapi() -> str:
    """Return the description of the API, as the server itself gives it."""
    return json.dumps(describe(), indent=2, ensure_ascii=False) + "\n"


def command_line() -> str:
    """Return a page with the help of every command, as the terminal shows it at 100 columns.

    Options of many commands are described once, at the top.
    """
    commands = list(_commands(("commonage",), commonage))
    options = (one for _, command in commands for one in command.params if isinstance(one, click.Option))
    uses = Counter(_meaning(option) for option in options)
    common = {meaning for meaning, count in uses.items() if count >= _COMMON_FROM}
    parts = [
        NOTE,
        "# Command line\n",
        "Every command has `--help`. The options in this table are common to many commands and not repeated below:\n",
    ]
    parts += ["| option | what it does |", "|---|---|"]
    parts += [f"| `{name}` | {_cell(text)} |" for name, text in sorted(common)]
    for path, command in commands:
        parts.append(f"\n## {' '.join(path)}\n\n```text\n{_help(path, command, common)}\n```")
    return "\n".join(parts) + "\n"


def _meaning(option: click.Parameter) -> tuple[str, str]:
    return option.opts[0], getattr(option, "help", None) or ""


def _help(path: tuple[str, ...], command: click.Command, common: set[tuple[str, str]]) -> str:
    """The help of a command without the options that are described at the top."""
    own = copy(command)
    own.params = [option for option in command.params if _meaning(option) not in common]
    own.add_help_option = False
    return own.get_help(click.Context(own, info_name=" ".join(path), terminal_width=100, max_content_width=100))


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
    parts = [NOTE, "# Metrics\n", "How to scrape them: [add a metric](../contribute/add-a-metric.md).\n"]
    parts += ["| series | type | labels | what it is |", "|---|---|---|---|"]
    for series in SERIES:
        labels = ", ".join(f"`{label}`" for label in series.labels)
        parts.append(f"| `{series.name}` | {series.kind} | {labels} | {_cell(series.help)} |")
    return "\n".join(parts) + "\n"


def problems() -> str:
    """Return a page with every problem code."""
    return f"{NOTE}\n{document()}"


def reasons() -> str:
    """Return a page with every code of a reason."""
    return f"{NOTE}\n{reasons_reference()}"


def resources() -> str:
    """Return a page with every kind of resource and its fields."""
    return f"{NOTE}\n{resources_reference()}"


def kubernetes_rbac() -> str:
    """Return a page with every verb that the control plane may use in a cluster."""
    return f"{NOTE}\n{kubernetes_access()}"


def resource_schema() -> str:
    """Return the JSON Schema of `commonage.yml` files."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def permissions() -> str:
    """Return a page with roles and permissions."""
    return f"{NOTE}\n{permissions_reference()}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[str, Any] = {
    "cli.md": command_line,
    "kubernetes-rbac.md": kubernetes_rbac,
    "resources.schema.json": resource_schema,
    "metrics.md": metrics,
    "openapi.json": openapi,
    "permissions.md": permissions,
    "problems.md": problems,
    "reasons.md": reasons,
    "resources.md": resources,
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
