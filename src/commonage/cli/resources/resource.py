"""`commonage resource`: list, show, change and delete single platform resources."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from commonage.cli import output
from commonage.cli.connection import prints
from commonage.cli.errors import MISUSED, Failure
from commonage.cli.resources.documents import write
from commonage.sdk.errors import ApiError

if TYPE_CHECKING:
    from commonage.sdk import Client
    from commonage.wire.resources import ResourceOut


@click.group
def resource() -> None:
    """List, show, set and delete platform resources.

    \b
    Examples:
      commonage resource ls Tenant
      commonage resource set Tenant optics weight=2 nominal.gpus=4
    """


def _print_resources(resources: Sequence[ResourceOut]) -> None:
    table = output.table("KIND", "NAME", "VERSION", "MANAGED BY", "CHANGED", right=("VERSION",))
    for one in resources:
        when = f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(one.changed_at))} by {one.changed_by}"
        cells = (one.kind, one.name, str(one.version), one.managed_by, when)
        table.add_row(*(output.text(cell) for cell in cells))
    output.console().print(table)


@resource.command("ls")
@click.argument("kind", required=False)
@prints(_print_resources)
def list_resources(client: Client, kind: str | None) -> Sequence[ResourceOut]:
    """List declared resources, or those of one kind. For admins.

    \b
    Example:
      commonage resource ls Volume
    """
    return client.resources(kind)


def _print_document(resource: ResourceOut) -> None:
    click.echo(write([resource.document]), nl=False)


@resource.command("show")
@click.argument("kind")
@click.argument("name")
@prints(_print_document)
def show(client: Client, kind: str, name: str) -> ResourceOut:
    """Show a resource as in a file. For admins.

    \b
    Example:
      commonage resource show Tenant optics
    """
    return client.resource(kind, name)


@resource.command("set")
@click.argument("kind")
@click.argument("name")
@click.argument("fields", nargs=-1)
@prints(_print_document)
def set_fields(client: Client, kind: str, name: str, fields: tuple[str, ...]) -> ResourceOut:
    """Create a resource, or change some fields of it. For admins.

    FIELDS are like `title="Lab of Optics"` or `nominal.gpus=4`. An empty value restores the default.

    \b
    Example:
      commonage resource set Tenant optics weight=2 sites='[north, south]'
    """
    changes = [_assignment(text) for text in fields]
    try:
        before = client.resource(kind, name)
    except ApiError as error:
        if error.code != "resource-not-found":
            raise
        return client.put_resource(kind, name, _changed({}, changes))
    return client.put_resource(kind, name, _changed(before.document, changes), before.version)


def _print_deleted(resource: ResourceOut) -> None:
    click.echo(f"{resource.kind} {resource.name} deleted")


@resource.command("rm")
@click.argument("kind")
@click.argument("name")
@click.option("--force", is_flag=True, help="Delete it even while workloads use it.")
@prints(_print_deleted)
def remove(client: Client, kind: str, name: str, force: bool) -> ResourceOut:
    """Delete a resource. Refused while workloads use it. For admins.

    \b
    Example:
      commonage resource rm Volume old-datasets
    """
    return client.delete_resource(kind, name, client.resource(kind, name).version, force=force)


def _assignment(text: str) -> tuple[list[str], Any]:
    import yaml

    path, equals, value = text.partition("=")
    if not equals or not path:
        raise Failure(f"{text!r} is not of the form FIELD=VALUE", MISUSED)
    is_collection = value.startswith(("[", "{"))
    try:
        read = yaml.safe_load(value)
    except yaml.YAMLError as error:
        if is_collection:
            raise Failure(f"the value of {path} is not valid: {error}", MISUSED) from None
        read = value
    # `Lab: Optics` is a title, although YAML reads a mapping.
    return path.split("."), value if isinstance(read, dict | list) and not is_collection else read


def _changed(document: dict[str, Any], changes: Sequence[tuple[list[str], Any]]) -> dict[str, Any]:
    made = {name: value for name, value in document.items() if name not in ("kind", "name")}
    for path, value in changes:
        inner = made
        for name in path[:-1]:
            present = inner.get(name)
            inner[name] = dict(present) if isinstance(present, dict) else {}
            inner = inner[name]
        if value is None:
            inner.pop(path[-1], None)
        else:
            inner[path[-1]] = value
    return made
