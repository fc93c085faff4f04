"""`commonage image`: images that work runs in. What builds and pushes needs more than a server, and lives elsewhere."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

from commonage.cli import show
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server

if TYPE_CHECKING:
    from commonage.wire.images import ImageOut

# Verbs that need the server's rooms, by name only, as in the table of all verbs.
_ELSEWHERE: dict[str, str] = {
    "build": "commonage.server.commands.image_build:build",
    "push": "commonage.server.commands.image_push:push",
}


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_ELSEWHERE, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        home = _ELSEWHERE.get(cmd_name)
        if home is None:
            return super().get_command(ctx, cmd_name)
        module, _, name = home.partition(":")
        found: click.Command = getattr(import_module(module), name)
        return found


@click.group(cls=_Group)
def image() -> None:
    """Build images, push them to the site's registry, list and remove them.

    \b
    Example:
      commonage image build -t lab/torch -r requirements.txt
      commonage image push lab/torch
    """


@image.command("ls")
@as_json
@calls_server
def ls(server: Server, as_json: bool) -> None:
    """List the images that work can run in: everybody's, and those of your tenants.

    \b
    Example:
      commonage image ls --json
    """
    with connect(server) as client:
        found = client.images()
    if as_json:
        show.print_json(found)
        return
    if not found:
        click.echo("There is no image yet; make one with `commonage image build` and `commonage image push`.", err=True)
        return
    made = show.table("NAME", "KERNELS", "FOR", "SIZE", "BY", "AGE", "NODES", right=("SIZE", "AGE"))
    for one in found:
        made.add_row(
            show.text(one.name),
            show.text(", ".join(kernel.name for kernel in one.kernels)),
            ", ".join(one.kinds),
            "" if one.size_bytes is None else show.memory(one.size_bytes / 2**20),
            show.text(one.by),
            show.since(one.at),
            _nodes(one),
        )
    show.console().print(made)


@image.command("show")
@click.argument("name", metavar="TENANT/NAME[:TAG]")
@as_json
@calls_server
def show_one(server: Server, name: str, as_json: bool) -> None:
    """Show an image: what it was made from, by whom, and where it lies ready.

    \b
    Example:
      commonage image show lab/torch
    """
    with connect(server) as client:
        found = client.image(name)
    if as_json:
        show.print_json(found)
        return
    out = show.console()
    for what, value in _facts(found):
        if value:
            out.print(f"{what:<13}{show.text(value)}")


@image.command("rm")
@click.argument("names", metavar="TENANT/NAME[:TAG]", nargs=-1, required=True)
@as_json
@calls_server
def rm(server: Server, names: tuple[str, ...], as_json: bool) -> None:
    """Take images out of the catalogue. What runs in them goes on; new work in them is refused.

    From the registry they go some days later (registry_keep_days).

    \b
    Example:
      commonage image rm lab/torch:2.4
    """
    with connect(server) as client:
        gone = [client.remove_image(name) for name in names]
    if as_json:
        show.print_json(gone)
        return
    for one in gone:
        waits = f"; {len(one.waiting)} waiting for it cannot start" if one.waiting else ""
        click.echo(f"{one.image.name} is removed{waits}.")


@image.command("prepull")
@click.argument("name", metavar="TENANT/NAME[:TAG]")
@click.argument("nodes", metavar="[NODE]…", nargs=-1)
@as_json
@calls_server
def prepull(server: Server, name: str, nodes: tuple[str, ...], as_json: bool) -> None:
    """Bring an image to nodes before somebody waits for it; to all that take work if none is named.

    \b
    Example:
      commonage image prepull lab/torch gpu-1 gpu-2
    """
    with connect(server) as client:
        found = client.prepull(name, nodes)
    if as_json:
        show.print_json(found)
    else:
        click.echo(f"{found.name} is on its way; `commonage image show {found.name}` says how far.")


@image.command("collect")
@as_json
@calls_server
def collect(server: Server, as_json: bool) -> None:
    """Throw out of the registry what is old and in no catalogue, now instead of in the course of the day. For admins.

    \b
    Example:
      commonage image collect
    """
    with connect(server) as client:
        found = client.collect_registry()
    if as_json:
        show.print_json(found)
        return
    for one in found.images:
        click.echo(one)
    click.echo(f"{len(found.images)} images thrown out, {show.memory(found.freed_bytes / 2**20)} free.", err=True)


def _nodes(found: ImageOut) -> str:
    ready = sum(one.state == "ready" for one in found.nodes)
    coming = [one for one in found.nodes if one.state == "building"]
    failed = [one.node for one in found.nodes if one.state == "failed"]
    words = [f"{ready} ready"] if ready else []
    words += [f"{len(coming)} coming"] if coming else []
    words += [f"[red]failed on {show.text(', '.join(failed))}[/]"] if failed else []
    return ", ".join(words)


def _facts(found: ImageOut) -> list[tuple[str, str]]:
    made = found.provenance
    changed = " and changes that are in no commit" if made.dirty else ""
    facts = [
        ("name", found.name),
        ("title", found.title),
        ("what", found.description),
        ("reference", found.reference),
        ("for", ", ".join(found.kinds)),
        ("environments", ", ".join(found.environments)),
        *(("kernel", f"{one.name}: {one.title}, {one.prefix or 'its own Python'}") for one in found.kernels),
        ("needs", show.memory(found.vram_mib) + " of VRAM" if found.vram_mib else "a GPU" if found.needs_gpu else ""),
        ("size", "" if found.size_bytes is None else show.memory(found.size_bytes / 2**20)),
        ("pushed", f"by {found.by}, {show.clock(found.at)}"),
        ("built", "" if made.at is None else f"{show.clock(made.at)} with {made.builder or 'an unknown program'}"),
        ("on", f"{made.base} {made.base_digest}".strip()),
        ("from commit", f"{made.commit}{changed}" if made.commit else ""),
        *(("from file", f"{one.path} {one.digest}") for one in made.files),
    ]
    for one in found.nodes:
        share = "" if one.progress is None else f" {one.progress:.0%}"
        facts.append(("node", f"{one.node}: {one.state}{share} {one.reason.message if one.reason else ''}".rstrip()))
    return facts
