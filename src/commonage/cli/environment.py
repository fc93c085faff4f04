"""`commonage environment`: environments, their contents, and packages that users added.

`environment build` is in `server.commands`: it needs more packages.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from commonage.cli import output
from commonage.cli.app import LazyGroup
from commonage.cli.connection import prints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commonage.sdk import Client
    from commonage.wire.environments import EnvironmentDetailsOut, EnvironmentOut
    from commonage.wire.workloads import WorkloadOut

_MAX_LISTED = 6
_NAME_END = re.compile(r"[^A-Za-z0-9._-]")


@click.group(cls=LazyGroup, lazy={"build": "commonage.server.commands.environment_build:build"})
def environment() -> None:
    """List, show, build and remove the environments that workloads run in. `env` is short for it.

    \b
    Examples:
      commonage environment ls
      commonage environment build lab/nlp --from requirements.txt
    """


def _print_environments(environments: Sequence[EnvironmentOut]) -> None:
    columns = ("NAME", "TITLE", "TENANT", "KINDS", "KERNELS", "APPS", "SIZE", "AGE", "STATE", "DESCRIPTION")
    table = output.table(*columns, right=("SIZE", "AGE"))
    for each in environments:
        table.add_row(
            output.text(each.name),
            output.text(each.title),
            output.text(each.tenant or "all"),
            ", ".join(each.kinds),
            output.text(", ".join(each.kernels)),
            ", ".join(each.apps),
            _size(each),
            "" if each.built_at is None else output.since(each.built_at),
            _state(each),
            output.text(each.description or _packages(each.requirements) or _pinned(each.image)) + _needs(each),
        )
    output.console().print(table)


@environment.command("ls")
@prints(_print_environments)
def list_environments(client: Client) -> Sequence[EnvironmentOut]:
    """List the environments with their kernels, apps, size, age and state.

    \b
    Example:
      commonage environment ls --json
    """
    return client.environments()


def _state(environment: EnvironmentOut) -> str:
    progress = "" if environment.progress is None else f" {environment.progress:.0%}"
    reason = f" [dim]{output.text(environment.reason.message)}[/]" if environment.reason else ""
    return f"{output.state(environment.state)}{progress}{reason}"


def _size(environment: EnvironmentOut) -> str:
    return "" if environment.size_bytes is None else output.memory(environment.size_bytes / 2**20)


def _pinned(image: str | None) -> str:
    """The start of an image's digest, or its name."""
    name, _, digest = (image or "").rpartition("sha256:")
    return f"sha256:{digest[:12]}" if digest and (name.endswith("@") or not name) else image or ""


def _needs(environment: EnvironmentOut) -> str:
    if environment.vram_mib:
        return f" [dim](needs {output.memory(environment.vram_mib)} of VRAM)[/]"
    return " [dim](needs a GPU)[/]" if environment.needs_gpu else ""


def _packages(requirements: list[str]) -> str:
    """The first few packages, without versions and hashes. --json has the complete list."""
    names = [_NAME_END.split(requirement.strip(), maxsplit=1)[0] for requirement in requirements]
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more


def _print_details(found: EnvironmentDetailsOut) -> None:
    shown = found.environment
    facts = [
        ("name", shown.name),
        ("title", shown.title),
        ("description", shown.description),
        ("tenant", shown.tenant or "all"),
        ("kinds", ", ".join(shown.kinds)),
        ("image", shown.image or ""),
        ("needs", _needs(shown).strip()),
        ("state", _state(shown)),
        ("apps", ", ".join(shown.apps)),
        ("size", _size(shown)),
        ("built", "" if shown.built_at is None else output.clock(shown.built_at)),
        ("built by", f"workload {shown.built_by}" if shown.built_by else ""),
    ]
    screen = output.console()
    for label, value in facts:
        if value:
            screen.print(f"{label:<13}{value if label in ('state', 'needs') else output.text(value)}")
    for kernel in found.kernels:
        screen.print(f"{'kernel':<13}{output.text(f'{kernel.name}: {kernel.title}, {len(kernel.packages)} packages')}")
        for package in kernel.packages:
            screen.print(f"{'':<13}  {output.text(f'{package.name} {package.version}')}")


@environment.command("show")
@click.argument("name", metavar="NAME")
@prints(_print_details)
def show(client: Client, name: str) -> EnvironmentDetailsOut:
    """Show an environment: its kernels with their packages, its apps, size and age.

    \b
    Example:
      commonage environment show lab/nlp
    """
    return client.environment(name)


def _print_removed(removed: EnvironmentOut) -> None:
    click.echo(f"Removed {removed.name}.")


@environment.command("rm")
@click.argument("name", metavar="TENANT/NAME")
@prints(_print_removed)
def remove(client: Client, name: str) -> EnvironmentOut:
    """Remove an environment that was built from a list of packages. For managers of its tenant.

    Running workloads continue. Remove an image with `commonage image rm`.

    \b
    Example:
      commonage environment rm lab/nlp
    """
    return client.remove_environment(name)


def _print_reset(session: WorkloadOut) -> None:
    click.echo(f"Deleted the packages that were added in {session.name or session.id}. Restart its kernels.")


@environment.command("reset")
@click.argument("session", metavar="SESSION")
@prints(_print_reset)
def reset(client: Client, session: str) -> WorkloadOut:
    """Delete the packages that you installed in a running session, given by its id.

    The session keeps running. Restart its kernels to unload the packages.

    \b
    Example:
      commonage environment reset 1kz3v8q2m4x7a
    """
    return client.reset_packages(session)
