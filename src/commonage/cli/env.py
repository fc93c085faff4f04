"""`commonage env`: the catalogue of environments."""

from __future__ import annotations

import re

import click

from commonage.cli import output
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server
from commonage.wire.environments import EnvironmentOut

_MAX_LISTED = 6
_NAME_END = re.compile(r"[^A-Za-z0-9._-]")


@click.group
def env() -> None:
    """List the environments that workloads can run in.

    \b
    Example:
      commonage env ls
    """


@env.command("ls")
@as_json
@calls_server
def ls(server: Server, as_json: bool) -> None:
    """List the environments with their state.

    \b
    Example:
      commonage env ls --json
    """
    with connect(server) as client:
        found = client.environments()
    if as_json:
        output.print_json(found)
        return
    made = output.table("NAME", "TITLE", "TENANT", "KINDS", "STATE", "DESCRIPTION")
    for one in found:
        progress = "" if one.progress is None else f" {one.progress:.0%}"
        made.add_row(
            output.text(one.name),
            output.text(one.title),
            output.text(one.tenant or "all"),
            ", ".join(one.kinds),
            f"{output.state(one.state)}{progress}{f' [dim]{output.text(one.reason.message)}[/]' if one.reason else ''}",
            output.text(one.description or _packages(one.requirements) or _pinned(one.image)) + _needs(one),
        )
    output.console().print(made)


def _pinned(image: str | None) -> str:
    """The start of an image's digest, or its name."""
    name, _, digest = (image or "").rpartition("sha256:")
    return f"sha256:{digest[:12]}" if digest and (name.endswith("@") or not name) else image or ""


def _needs(one: EnvironmentOut) -> str:
    if one.vram_mib:
        return f" [dim](needs {output.memory(one.vram_mib)} of VRAM)[/]"
    return " [dim](needs a GPU)[/]" if one.needs_gpu else ""


def _packages(requirements: list[str]) -> str:
    """The first few packages, without versions and hashes. --json has the complete list."""
    names = [_NAME_END.split(one.strip(), maxsplit=1)[0] for one in requirements]
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more
