"""`commonage env`: the catalogue of environments."""

from __future__ import annotations

import re

import click

from commonage.cli import show
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server
from commonage.wire.platform import EnvironmentOut

_NAMED = 6
_NAME = re.compile(r"[^A-Za-z0-9._-]")


@click.group
def env() -> None:
    """List what workloads can run in.

    \b
    Example:
      commonage env ls
    """


@env.command("ls")
@as_json
@calls_server
def ls(server: Server, as_json: bool) -> None:
    """List the environments, and whether they stand ready.

    \b
    Example:
      commonage env ls --json
    """
    with connect(server) as client:
        found = client.environments()
    if as_json:
        show.print_json(found)
        return
    made = show.table("NAME", "TITLE", "OF", "FOR", "STATE", "WHAT")
    for one in found:
        progress = "" if one.progress is None else f" {one.progress:.0%}"
        made.add_row(
            show.text(one.name),
            show.text(one.title),
            show.text(one.tenant or "everybody"),
            ", ".join(one.kinds),
            f"{show.state(one.state)}{progress}{f' [dim]{show.text(one.reason.message)}[/]' if one.reason else ''}",
            show.text(one.description or _has(one.requirements) or _pinned(one.image)) + _needs(one),
        )
    show.console().print(made)


def _pinned(image: str | None) -> str:
    """As much of an image's digest as tells it from others."""
    name, _, digest = (image or "").rpartition("sha256:")
    return f"sha256:{digest[:12]}" if digest and (name.endswith("@") or not name) else image or ""


def _needs(one: EnvironmentOut) -> str:
    if one.vram_mib:
        return f" [dim](needs {show.memory(one.vram_mib)} of VRAM)[/]"
    return " [dim](needs a GPU)[/]" if one.needs_gpu else ""


def _has(requirements: list[str]) -> str:
    """The first few, without versions and hashes; --json has them whole."""
    names = [_NAME.split(one.strip(), maxsplit=1)[0] for one in requirements]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
