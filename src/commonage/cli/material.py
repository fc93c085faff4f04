"""`commonage material`: course files from git repositories, and the caller's copies of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from commonage.cli import output
from commonage.cli.connection import prints
from commonage.cli.errors import MISUSED, Failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commonage.sdk import Client
    from commonage.wire.materials import MaterialAccessOut, MaterialCopyOut, MaterialOut

_KINDS = {
    "edited": "edited by you, and never overwritten",
    "offered": "new versions in the same folder",
    "deleted": "deleted by you; a reset brings them back",
    "withdrawn": "no longer in the repository; they stay",
    "blocked": "not written, because a link or folder is in their place",
}


@click.group
def material() -> None:
    """List, sync and reset materials: course files that are kept in sync with a git repository.

    \b
    Examples:
      commonage material ls
      commonage material show course
      commonage material reset course week-1/lab.ipynb
    """


def _print_materials(found: Sequence[MaterialOut]) -> None:
    if not found:
        click.echo("No materials. A Volume with a `material` is one: see docs/use/course-files.", err=True)
        return
    table = output.table("NAME", "STATE", "COMMIT", "CHANGED", "SYNCED", "FILES", "YOUR COPY", right=("FILES",))
    for one in found:
        table.add_row(
            output.text(one.name),
            _state(one),
            (one.commit or "")[:12],
            output.since(one.published_at),
            output.since(one.synced_at),
            str(one.files),
            output.text(_copy(one.mine)),
        )
    output.console().print(table)
    for one in found:
        for told in (one.syncing, one.error):
            if told is not None:
                click.echo(told.message, err=True)


def _state(material: MaterialOut) -> str:
    color = {"current": "green", "failing": "red"}.get(material.state, "yellow")
    return f"[{color}]{material.state}[/]"


def _copy(copy: MaterialCopyOut | None) -> str:
    if copy is None:
        return "none yet"
    words = ["current" if copy.is_current else "not complete" if copy.error else "pending"]
    words += [f"{len(files)} {kind}" for kind in ("edited", "deleted", "blocked") if (files := getattr(copy, kind))]
    return ", ".join(words)


@material.command("ls")
@prints(_print_materials)
def list_materials(client: Client) -> Sequence[MaterialOut]:
    """List the materials of your tenants, with the state of their sync and of your copies.

    \b
    Example:
      commonage material ls
    """
    return client.materials()


def _print_material(one: MaterialOut) -> None:
    size = output.memory(one.size_bytes / 2**20) if one.size_bytes >= 2**20 else f"{one.size_bytes} bytes"
    rows = {
        "name": one.name,
        "state": one.state,
        "syncing": None if one.syncing is None else one.syncing.message,
        "error": None if one.error is None else f"{one.error.code}: {one.error.message}",
        "repository": one.repository,
        "branch": one.branch,
        "folder": one.folder,
        "commit": one.commit,
        "synced": None if one.synced_at is None else output.clock(one.synced_at),
        "files": f"{one.files}, {size}" + (f"; {one.skipped} links and submodules left out" if one.skipped else ""),
        "pending": f"{one.pending} running sessions" if one.pending else None,
        "your copy": f"{one.place}: {_copy(one.mine)}",
    }
    for name, value in rows.items():
        if value:
            click.echo(f"{name + ':':12}{value}")
    if one.mine is not None:
        if one.mine.error is not None:
            click.echo(f"{'':12}{one.mine.error.message}")
        for kind, meaning in _KINDS.items():
            for number, path in enumerate(getattr(one.mine, kind)):
                click.echo(f"{'' if number else f'{kind} ({meaning}):' + chr(10)}  {path}")


@material.command
@click.argument("name")
@prints(_print_material)
def show(client: Client, name: str) -> MaterialOut:
    """Show a material, and the files of your copy that differ from it.

    \b
    Example:
      commonage material show course
    """
    return client.material(name)


@material.command
@click.argument("name")
@prints(_print_material)
def sync(client: Client, name: str) -> MaterialOut:
    """Sync with the repository now. For teachers and managers.

    \b
    Example:
      commonage material sync course
    """
    return client.sync_material(name)


@material.command
@click.argument("name")
@click.argument("files", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Reset all files.")
@prints(_print_material)
def reset(client: Client, name: str, files: tuple[str, ...], everything: bool) -> MaterialOut:
    """Reset files of your copy to the material. Files that you edited are kept under another name.

    \b
    Examples:
      commonage material reset course week-1/lab.ipynb
      commonage material reset course --all
    """
    if everything == bool(files):
        raise Failure("name the files to reset, or use --all", MISUSED)
    return client.reset_material(name, files)


def _print_access(access: MaterialAccessOut) -> None:
    click.echo(f"Deploy key, to add to the repository (read-only):\n  {access.deploy_key}")
    click.echo(f"Token for HTTPS: {'set' if access.has_token else 'none'}")
    click.echo(f"Webhook, below the address of this installation:\n  {access.webhook_path}")
    click.echo(f"Secret of the webhook (GitHub), or secret token (GitLab):\n  {access.webhook_secret}")


@material.command
@click.argument("name")
@prints(_print_access)
def access(client: Client, name: str) -> MaterialAccessOut:
    """Show the deploy key and the webhook of a material. For teachers and managers.

    \b
    Example:
      commonage material access course
    """
    return client.material_access(name)


@material.command
@click.argument("name")
@click.option("--user", default="", help="User name; most servers accept any.")
@click.option("--remove", is_flag=True, help="Remove the token.")
@prints(_print_access)
def token(client: Client, name: str, user: str, remove: bool) -> MaterialAccessOut:
    """Set the token for reading the repository over HTTPS. It is read from standard input.

    \b
    Examples:
      commonage material token course <token.txt
      commonage material token course --remove
    """
    text = (
        "" if remove else (click.prompt("Token", hide_input=True) if sys.stdin.isatty() else sys.stdin.read()).strip()
    )
    if not text and not remove:
        raise Failure("no token was given on standard input; use --remove to remove it", MISUSED)
    return client.set_material_token(name, text, user)
