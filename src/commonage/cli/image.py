"""`commonage image`: the images of the catalogue. Build and push are in `server.commands`: they need more packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commonage.cli import output
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server
from commonage.cli.groups import LazyGroup

if TYPE_CHECKING:
    from commonage.wire.images import ImageOut


@click.group(
    cls=LazyGroup,
    lazy={
        "build": "commonage.server.commands.image_build:build",
        "push": "commonage.server.commands.image_push:push",
    },
)
def image() -> None:
    """Build images, push them to the registry, list and remove them.

    \b
    Examples:
      commonage image build -t lab/torch -r requirements.txt
      commonage image push lab/torch
    """


@image.command("ls")
@as_json
@calls_server
def ls(server: Server, as_json: bool) -> None:
    """List the images that workloads can run in: public images, and those of your tenants.

    \b
    Example:
      commonage image ls --json
    """
    with connect(server) as client:
        found = client.images()
    if as_json:
        output.print_json(found)
        return
    if not found:
        click.echo("No images yet. Create one with `commonage image build` and `commonage image push`.", err=True)
        return
    table = output.table("NAME", "KERNELS", "KINDS", "SIZE", "PUSHED BY", "AGE", "NODES", right=("SIZE", "AGE"))
    for one in found:
        table.add_row(
            output.text(one.name),
            output.text(", ".join(kernel.name for kernel in one.kernels)),
            ", ".join(one.kinds),
            "" if one.size_bytes is None else output.memory(one.size_bytes / 2**20),
            output.text(one.by),
            output.since(one.at),
            _nodes(one),
        )
    output.console().print(table)


@image.command("show")
@click.argument("name", metavar="TENANT/NAME[:TAG]")
@as_json
@calls_server
def show_one(server: Server, name: str, as_json: bool) -> None:
    """Show an image: its contents, its origin and the nodes that have it.

    \b
    Example:
      commonage image show lab/torch
    """
    with connect(server) as client:
        found = client.image(name)
    if as_json:
        output.print_json(found)
        return
    out = output.console()
    for label, value in _facts(found):
        if value:
            out.print(f"{label:<13}{output.text(value)}")


@image.command("rm")
@click.argument("names", metavar="TENANT/NAME[:TAG]", nargs=-1, required=True)
@as_json
@calls_server
def rm(server: Server, names: tuple[str, ...], as_json: bool) -> None:
    """Remove images from the catalogue.

    Running workloads continue, new workloads with these images are refused. The registry deletes the images after
    `registry_keep_days`.

    \b
    Example:
      commonage image rm lab/torch:2.4
    """
    with connect(server) as client:
        removed = [client.remove_image(name) for name in names]
    if as_json:
        output.print_json(removed)
        return
    for one in removed:
        waits = f"; {len(one.waiting)} queued workloads that request it cannot start" if one.waiting else ""
        click.echo(f"Removed {one.image.name}{waits}.")


@image.command("prepull")
@click.argument("name", metavar="TENANT/NAME[:TAG]")
@click.argument("nodes", metavar="[NODE]…", nargs=-1)
@as_json
@calls_server
def prepull(server: Server, name: str, nodes: tuple[str, ...], as_json: bool) -> None:
    """Pull an image on nodes in advance; without names on all schedulable nodes.

    \b
    Example:
      commonage image prepull lab/torch gpu-1 gpu-2
    """
    with connect(server) as client:
        found = client.prepull(name, nodes)
    if as_json:
        output.print_json(found)
    else:
        click.echo(f"{found.name} is being pulled. `commonage image show {found.name}` shows the progress.")


@image.command("collect")
@as_json
@calls_server
def collect(server: Server, as_json: bool) -> None:
    """Delete old images that are not in the catalogue from the registry, now instead of daily. For admins.

    \b
    Example:
      commonage image collect
    """
    with connect(server) as client:
        found = client.collect_registry()
    if as_json:
        output.print_json(found)
        return
    for one in found.images:
        click.echo(one)
    click.echo(f"Deleted {len(found.images)} images, freed {output.memory(found.freed_bytes / 2**20)}.", err=True)


def _nodes(found: ImageOut) -> str:
    ready = sum(one.state == "ready" for one in found.nodes)
    pulling = [one for one in found.nodes if one.state == "building"]
    failed = [one.node for one in found.nodes if one.state == "failed"]
    words = [f"{ready} ready"] if ready else []
    words += [f"{len(pulling)} pulling"] if pulling else []
    words += [f"[red]failed on {output.text(', '.join(failed))}[/]"] if failed else []
    return ", ".join(words)


def _facts(found: ImageOut) -> list[tuple[str, str]]:
    made = found.provenance
    changed = " with uncommitted changes" if made.dirty else ""
    facts = [
        ("name", found.name),
        ("title", found.title),
        ("description", found.description),
        ("reference", found.reference),
        ("kinds", ", ".join(found.kinds)),
        ("environments", ", ".join(found.environments)),
        *(("kernel", f"{one.name}: {one.title}, {one.prefix or 'own Python'}") for one in found.kernels),
        ("needs", output.memory(found.vram_mib) + " of VRAM" if found.vram_mib else "a GPU" if found.needs_gpu else ""),
        ("size", "" if found.size_bytes is None else output.memory(found.size_bytes / 2**20)),
        ("pushed", f"by {found.by}, {output.clock(found.at)}"),
        ("built", "" if made.at is None else f"{output.clock(made.at)} with {made.builder or 'an unknown program'}"),
        ("base", f"{made.base} {made.base_digest}".strip()),
        ("from commit", f"{made.commit}{changed}" if made.commit else ""),
        *(("from file", f"{one.path} {one.digest}") for one in made.files),
    ]
    for one in found.nodes:
        share = "" if one.progress is None else f" {one.progress:.0%}"
        facts.append(("node", f"{one.node}: {one.state}{share} {one.reason.message if one.reason else ''}".rstrip()))
    return facts
