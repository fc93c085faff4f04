"""`commonage image` and `volume`: images that workloads can run in, and volumes that they can mount.

`image build` and `push` are in `server.commands`: they need more packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commonage.cli import output
from commonage.cli.app import LazyGroup
from commonage.cli.connection import prints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commonage.sdk import Client
    from commonage.wire.environments import VolumeList
    from commonage.wire.images import CollectedOut, ImageOut, RemovedOut


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


def _print_images(images: Sequence[ImageOut]) -> None:
    if not images:
        click.echo("No images yet. Create one with `commonage image build` and `commonage image push`.", err=True)
        return
    table = output.table("NAME", "KERNELS", "KINDS", "SIZE", "PUSHED BY", "AGE", "NODES", right=("SIZE", "AGE"))
    for each in images:
        table.add_row(
            output.text(each.name),
            output.text(", ".join(kernel.name for kernel in each.kernels)),
            ", ".join(each.kinds),
            _size(each),
            output.text(each.by),
            output.since(each.at),
            _nodes(each),
        )
    output.console().print(table)


@image.command("ls")
@prints(_print_images)
def list_images(client: Client) -> Sequence[ImageOut]:
    """List the images that workloads can run in: public images, and those of your tenants.

    \b
    Example:
      commonage image ls --json
    """
    return client.images()


def _size(image: ImageOut) -> str:
    return "" if image.size_bytes is None else output.memory(image.size_bytes / 2**20)


def _nodes(image: ImageOut) -> str:
    ready = sum(each.state == "ready" for each in image.nodes)
    pulling = sum(each.state == "building" for each in image.nodes)
    failed = [output.node_label(each.site, each.node) for each in image.nodes if each.state == "failed"]
    words = [f"{ready} ready"] if ready else []
    words += [f"{pulling} pulling"] if pulling else []
    words += [f"[red]failed on {output.text(', '.join(failed))}[/]"] if failed else []
    return ", ".join(words)


def _print_image(image: ImageOut) -> None:
    origin = image.provenance
    builder, changed = origin.builder or "an unknown program", " with uncommitted changes" if origin.dirty else ""
    facts = [
        ("name", image.name),
        ("title", image.title),
        ("description", image.description),
        ("reference", image.reference),
        ("kinds", ", ".join(image.kinds)),
        ("environments", ", ".join(image.environments)),
        *(("kernel", f"{each.name}: {each.title}, {each.prefix or 'own Python'}") for each in image.kernels),
        ("needs", output.memory(image.vram_mib) + " of VRAM" if image.vram_mib else "a GPU" if image.needs_gpu else ""),
        ("size", _size(image)),
        ("pushed", f"by {image.by}, {output.clock(image.at)}"),
        ("built", "" if origin.at is None else f"{output.clock(origin.at)} with {builder}"),
        ("base", f"{origin.base} {origin.base_digest}".strip()),
        ("from commit", f"{origin.commit}{changed}" if origin.commit else ""),
        *(("from file", f"{each.path} {each.digest}") for each in origin.files),
    ]
    for each in image.nodes:
        progress = "" if each.progress is None else f" {each.progress:.0%}"
        why = each.reason.message if each.reason else ""
        facts.append(("node", f"{output.node_label(each.site, each.node)}: {each.state}{progress} {why}"))
    screen = output.console()
    for label, value in facts:
        if value:
            screen.print(f"{label:<13}{output.text(value.rstrip())}")


@image.command("show")
@click.argument("name", metavar="TENANT/NAME[:TAG]")
@prints(_print_image)
def show_image(client: Client, name: str) -> ImageOut:
    """Show an image: its contents, its origin and the nodes that have it.

    \b
    Example:
      commonage image show lab/torch
    """
    return client.image(name)


def _print_removed(removed: Sequence[RemovedOut]) -> None:
    for each in removed:
        waits = f"; {len(each.waiting)} queued workloads that request it cannot start" if each.waiting else ""
        click.echo(f"Removed {each.image.name}{waits}.")


@image.command("rm")
@click.argument("names", metavar="TENANT/NAME[:TAG]", nargs=-1, required=True)
@prints(_print_removed)
def remove_images(client: Client, names: tuple[str, ...]) -> Sequence[RemovedOut]:
    """Remove images from the catalogue.

    Running workloads continue, new workloads with these images are refused. The registry deletes the images after
    `registry_keep_days`.

    \b
    Example:
      commonage image rm lab/torch:2.4
    """
    return [client.remove_image(name) for name in names]


def _print_pull(image: ImageOut) -> None:
    click.echo(f"{image.name} is being pulled. `commonage image show {image.name}` shows the progress.")


@image.command("prepull")
@click.argument("name", metavar="TENANT/NAME[:TAG]")
@click.argument("nodes", metavar="[NODE]…", nargs=-1)
@prints(_print_pull)
def prepull(client: Client, name: str, nodes: tuple[str, ...]) -> ImageOut:
    """Pull an image in advance, on the named nodes or on all schedulable nodes.

    \b
    Example:
      commonage image prepull lab/torch gpu-1 gpu-2
    """
    return client.prepull(name, nodes)


def _print_collected(collected: CollectedOut) -> None:
    for name in collected.images:
        click.echo(name)
    freed = output.memory(collected.freed_bytes / 2**20)
    click.echo(f"Deleted {len(collected.images)} images, freed {freed}.", err=True)


@image.command("collect")
@prints(_print_collected)
def collect(client: Client) -> CollectedOut:
    """Delete old images from the registry if they are not in the catalogue. For admins.

    The server also does this daily.

    \b
    Example:
      commonage image collect
    """
    return client.collect_registry()


@click.group
def volume() -> None:
    """List the volumes that workloads can request.

    \b
    Example:
      commonage volume ls
    """


def _print_volumes(volumes: VolumeList) -> None:
    table = output.table("NAME", "TITLE", "KIND", "MODE", "SIZE", "USED", "PATH", "NOTES", right=("SIZE", "USED"))
    for each in volumes.items:
        notes = ["always mounted"] if each.always else []
        notes += ["counts as memory"] if each.in_memory else []
        notes += ["managers write"] if each.writers == "managers" else []
        notes += [] if each.sites is None else [f"at {', '.join(each.sites)}" if each.sites else "at no site of yours"]
        table.add_row(
            output.text(each.name),
            output.text(each.title if each.title != each.name else each.description),
            each.kind,
            "ro, rw" if each.writable and each.kind != "scratch" else "rw" if each.writable else "ro",
            "" if each.size_mib is None else output.memory(each.size_mib),
            "" if each.used_mib is None else output.memory(each.used_mib),
            output.text(each.place),
            output.text("; ".join([*notes, *(note.message for note in each.notes)])),
        )
    if volumes.items:
        output.console().print(table)
    else:
        click.echo("No volumes.")
    if volumes.home is not None:
        click.echo(volumes.home.text)


@volume.command("ls")
@prints(_print_volumes)
def list_volumes(client: Client) -> VolumeList:
    """List the volumes with their modes and paths, and show the size of your home.

    Request a volume with `commonage run --volume NAME`, or `NAME:rw` to write to it.

    \b
    Example:
      commonage volume ls --json
    """
    return client.volumes()
